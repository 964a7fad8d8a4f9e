"""Loops over tiles that the hardware schedules dynamically (cluster launch control), in place of a fixed stride.

The grid has a cluster for each tile. Running clusters request the tile of one that has not begun, which then never
does: early finishers do more, late starters less. One producer thread, in the first block of the cluster, makes the
request at the beginning of each tile for the next one. The answers arrive in a small ring in every block of the
cluster. Each role waits for the next answer at the end of its part of a tile, reads it, and releases it. The last
answer says that no tile is left, and no request follows it (PTX ISA, clusterlaunchcontrol.try_cancel).

Answers are written by the asynchronous proxy. `lower.insert_sync` therefore puts a proxy fence between a role's read of
an answer and its release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import tile, warp
from tilec.ir.layout import unswizzled_layout
from tilec.ir.types import BOOL, INT32, UINT32
from tilec.ops.synchronisation.cluster_launch import ANSWER_WORDS
from tilec.support.options import Arrivals

ANSWER_VERSIONS = 3
"""The versions of an answer. With two, the producer can be one tile in advance of the others, if a sum has two
versions; with a third it need not wait for the last role to have read. (CUTLASS too has one more than versions of the
sum.)"""

RING_BYTES = ANSWER_VERSIONS * warp.SMALL_STRIDE


def find_dynamic_loop(kernel: tile.Kernel) -> tile.For | None:
    """Return the kernel's loop over dynamically scheduled tiles, or None."""
    return next(
        (s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.For) and s.dynamically_scheduled), None
    )


def build_answer_buffer(loop: tile.For) -> tile.Buffer:
    """Return the shared buffer that receives one answer to the loop's tile requests."""
    return tile.Buffer(f"{loop.var.name}.answer", (ANSWER_WORDS,), UINT32, "shared", loop.span)


def build_answer_ring(loop: tile.For, kernel: tile.Kernel, by: Arrivals) -> warp.Ring:
    """Return the ring of answers to tile requests, with 1 arrival until `set_ring_arrivals` knows the roles."""
    answer = build_answer_buffer(loop)
    return warp.Ring(
        answer.name, ANSWER_VERSIONS, (answer.name,), answer.bytes, 1, by=by, heard_by=kernel.cluster.blocks
    )


def build_answer_tile(loop: tile.For) -> warp.SharedTile:
    """Return the shared tile of the loop's answers, with all versions."""
    return warp.SharedTile(build_answer_buffer(loop), unswizzled_layout((ANSWER_WORDS,), UINT32.bytes), ANSWER_VERSIONS)


def set_ring_arrivals(ring: warp.Ring, roles: Sequence[warp.Role]) -> warp.Ring:
    """Return the ring with its number of arrivals set to that of all roles that release it, in all blocks. A role that
    issues products of CTA pairs runs only in the first block of a pair."""
    arrivals = 0
    for role in roles:
        operations = list(warp.walk_operations(role.body))
        if any(isinstance(op, warp.RingRelease) and op.cursor.ring == ring.name for op in operations):
            is_of_pairs = any(isinstance(op, warp.TensorMma) and op.paired for op in operations)
            arrivals += role.arrivals(ring.by) * (ring.heard_by // 2 if is_of_pairs else ring.heard_by)
    return replace(ring, arrivals=arrivals)


def build_scheduler_loop(
    loop: tile.For, body: tuple[warp.Operation, ...], role: str, cluster: Sequence[int]
) -> warp.Loop:
    """Return a role's loop over tiles given by answers: request (if producer), `body`, wait, decode, release."""
    answer = build_answer_buffer(loop)
    hears = warp.Cursor(f"{answer.name}.{role}", answer.name)
    asking: tuple[warp.Operation, ...] = ()
    if role == "producer":
        asks = warp.Cursor(f"{answer.name}.asked", answer.name)
        asking = (
            warp.RingAcquire(asks, span=loop.span),
            warp.TryCancel(answer, None, 0, cursors=(asks,), span=loop.span),
            warp.Advance(asks, span=loop.span),
        )
    following = warp.NextIteration(tile.Var(f"{loop.var.name}.following"), tile.Var(f"{loop.var.name}.is_there", BOOL))
    is_there = tile.Binary("ne", _decode_answer("clc_is_canceled", answer), tile.int32_const(0), BOOL)
    value = _decode_answer("clc_get_first_ctaid_x", answer)
    if cluster[0] > 1:
        value = tile.Binary("floordiv", value, tile.int32_const(cluster[0]), INT32)
    hearing = (
        warp.RingWait(hears, span=loop.span),
        warp.Let(following.is_there, is_there, cursors=(hears,), span=loop.span),
        warp.Let(following.value, value, cursors=(hears,), span=loop.span),
        warp.RingRelease(hears, span=loop.span),
        warp.Advance(hears, span=loop.span),
    )
    iteration = (*asking, *body, *hearing)
    return warp.Loop(loop.var, loop.start, loop.stop, loop.step, iteration, following=following, span=loop.span)


def _decode_answer(question: str, answer: tile.Buffer) -> tile.Expr:
    """Return the call of this name that decodes an answer from its words."""
    words = tuple(tile.Load(answer, (tile.int32_const(word),)) for word in range(ANSWER_WORDS))
    return tile.Call(question, words, INT32)
