"""Transpose operands for wgmma: it takes types that are not of 16 bits only stored along K.

All threads transpose the others in shared memory, which costs less than each warp gathering its part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilec.analysis.usage import find_writes
from tilec.ir import tile
from tilec.ops.copies.transpose import AccumulatedOrder, Transpose
from tilec.ops.products.gemm import Gemm
from tilec.ops.synchronisation.rendezvous import Rendezvous
from tilec.ops.synchronisation.sync import BlockBarrier, WaitCopies
from tilec.passes.layout.fragments.convert_layouts import cover_buffer

OPERANDS = ((0, False), (1, True))
"""Index of the region of a T.gemm, and the value of its transpose flag where it is stored along K."""


_SUFFIX = ".turned"


def is_operand_transposition(stmt: tile.Stmt) -> bool:
    """Return True if the statement transposes an operand into a tile that the compiler has added."""
    return isinstance(stmt, Transpose) and is_transposed_operand(stmt.regions[1].buffer)


def is_transposed_operand(buffer: tile.Buffer) -> bool:
    """Return True if the tile was added to hold a transposed operand, by its name."""
    return buffer.name.endswith(_SUFFIX)


def find_invariant_transpositions(loop: tile.For, parts: Sequence[tuple[tile.Stmt, ...]]) -> tuple[tile.Stmt, ...]:
    """Return the transpositions of operands, among what the loop's statements have become, that every iteration would
    repeat, since the loop does not write the operand. None where the loop waits: then other roles, or copies that began
    before it, may write."""
    if any(_waits_for_others(stmt) for stmt in tile.walk_statements(loop.body)):
        return ()
    written = {buffer for stmt in loop.body for buffer in find_writes(stmt)}
    return tuple(
        stmt
        for part in parts
        for stmt in part
        if isinstance(stmt, Transpose) and is_operand_transposition(stmt) and stmt.regions[0].buffer not in written
    )


def _waits_for_others(stmt: tile.Stmt) -> bool:
    """Return whether a statement of the kernel waits for other threads or for copies."""
    return isinstance(stmt, BlockBarrier | Rendezvous | WaitCopies) or (
        isinstance(stmt, tile.TileOp) and stmt.synchronises_roles
    )


def transpose_operands(
    op: Gemm, fits: Callable[[Gemm], bool], buffer: Callable[[tile.Buffer], tile.Buffer]
) -> tuple[tuple[Transpose, ...], Gemm]:
    """Return transpositions of shared operands for `fits`, and the product on them; () and itself if it fits already.

    `buffer` records each transposed tile, and only where all of it fits.
    """
    kind = op.regions[0].buffer.dtype
    if fits(op) or kind.bits not in (8, 32) or not all(r.is_whole for r in op.regions):
        return (), op
    order: AccumulatedOrder | None = None
    suffix = _SUFFIX
    if kind.bits == 8 and op.regions[0].buffer.scope == "fragment":
        # Most such factors are accumulators of another product, and would else change threads.
        order, suffix = "as accumulated", f".accumulated{_SUFFIX}"
    steps = []
    new = op
    for place, along_k in OPERANDS:
        region = new.regions[place]
        if (
            (new.transpose_B if place else new.transpose_A) == along_k
            or region.buffer.scope != "shared"
            or len(region.extent) != 2
        ):
            continue
        transposed_tile = replace(region.buffer, name=region.buffer.name + suffix, extents=region.extent[::-1])
        whole = cover_buffer(transposed_tile, region.span)
        steps.append((region, whole))
        new = replace(new, b=whole, transpose_B=along_k) if place else replace(new, a=whole, transpose_A=along_k)
    if not fits(new):
        return (), op
    for _, whole in steps:
        buffer(whole.buffer)
    if order is not None:
        new = replace(new, order=order)
    return tuple(Transpose(*step, order=order, span=op.span) for step in steps), new
