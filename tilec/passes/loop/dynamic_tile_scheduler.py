"""A walk over tiles that the machine hands out: by cluster launch control, in place of a fixed stride.

The grid has a cluster for each tile. Those that run ask for the work of one that has not begun, which then never does:
who is done early does more, and blocks that begin late do less. One thread of the producer asks, in the first block of
the cluster, at the beginning of each tile for the one after it. The answers come into a ring of few bytes, in every
block of the cluster; each role awaits the next answer at the end of its part of a tile, reads it, and releases it to
who asks. The last answer says that there is nothing left, and nobody asks again after it (PTX ISA,
clusterlaunchcontrol.try_cancel).

Between a role's read of an answer and the request that overwrites it stands a fence of the asynchronous proxy, which
writes the answers: `lower.insert_sync` places it in front of the release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import tile, warp
from tilec.ir.layout import unswizzled_layout
from tilec.ir.types import BOOL, INT32, UINT32
from tilec.ops.cluster_launch import ANSWER_WORDS
from tilec.support.options import Arrivals

VERSIONS = 3
"""Of an answer. Two let a producer be one tile ahead of the others, as far as two versions of a sum let it; with one
more it need not wait for the last role to have read. (CUTLASS has one more than versions of the sum, too.)"""

RING_BYTES = VERSIONS * warp.SMALL_STRIDE


def walk_of(kernel: tile.Kernel) -> tile.For | None:
    """The loop over tiles that are dynamically scheduled, if the kernel has one."""
    return next(
        (s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.For) and s.dynamically_scheduled), None
    )


def answer_of(loop: tile.For) -> tile.Buffer:
    """Where its answers come."""
    return tile.Buffer(f"{loop.var.name}.answer", (ANSWER_WORDS,), UINT32, "shared", loop.span)


def ring_of(loop: tile.For, kernel: tile.Kernel, by: Arrivals) -> warp.Ring:
    """The ring of answers. How many release one is known when the roles are: `counted`."""
    answer = answer_of(loop)
    return warp.Ring(answer.name, VERSIONS, (answer.name,), answer.bytes, 1, by=by, heard_by=kernel.cluster.blocks)


def tile_of(loop: tile.For) -> warp.SharedTile:
    return warp.SharedTile(answer_of(loop), unswizzled_layout((ANSWER_WORDS,), UINT32.bytes), VERSIONS)


def counted(ring: warp.Ring, roles: Sequence[warp.Role]) -> warp.Ring:
    """The ring with the arrivals of all roles that hear its answers, in all blocks of the cluster. Who asks for
    products of two blocks runs in the first of them only."""
    arrivals = 0
    for role in roles:
        if any(
            isinstance(op, warp.RingRelease) and op.cursor.ring == ring.name for op in warp.walk_operations(role.body)
        ):
            is_of_pairs = any(isinstance(op, warp.TensorMma) and op.paired for op in warp.walk_operations(role.body))
            arrivals += role.arrivals(ring.by) * (ring.heard_by // 2 if is_of_pairs else ring.heard_by)
    return replace(ring, arrivals=arrivals)


def walked(loop: tile.For, body: tuple[warp.Operation, ...], role: str, cluster: Sequence[int]) -> warp.Loop:
    """A role's part of the walk, whose body is its part of a tile."""
    answer = answer_of(loop)
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
    first_block = _asked("clc_get_first_ctaid_x", answer)
    hearing = (
        warp.RingWait(hears, span=loop.span),
        warp.Let(
            following.is_there,
            tile.Binary("ne", _asked("clc_is_canceled", answer), tile.int32_const(0), BOOL),
            cursors=(hears,),
            span=loop.span,
        ),
        warp.Let(
            following.value,
            tile.Binary("floordiv", first_block, tile.int32_const(cluster[0]), INT32)
            if cluster[0] > 1
            else first_block,
            cursors=(hears,),
            span=loop.span,
        ),
        warp.RingRelease(hears, span=loop.span),
        warp.Advance(hears, span=loop.span),
    )
    iteration = (*asking, *body, *hearing)
    return warp.Loop(loop.var, loop.start, loop.stop, loop.step, iteration, following=following, span=loop.span)


def _asked(question: str, answer: tile.Buffer) -> tile.Expr:
    """What an answer says: a call of tile IR that has its words (`ops.cluster_launch`)."""
    return tile.Call(
        question, tuple(tile.Load(answer, (tile.int32_const(word),)) for word in range(ANSWER_WORDS)), INT32
    )
