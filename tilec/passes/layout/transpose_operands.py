"""Operands that wgmma cannot take as they lie: of types other than 16-bit ones it takes those that are stored along K.

All threads together turn the others in shared memory, which costs less than that each warp gathers its part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilec.ir.tile import Attr, Buffer, Region, Stmt, TileOp, integer, with_attr
from tilec.ops.transpose import AS_ACCUMULATED

OPERANDS = ((0, "transpose_A", False), (1, "transpose_B", True))
"""Which region of a T.gemm, the attribute that says how it is stored, and what that is where it is along K."""


_NAME = ".turned"


def is_turning(stmt: Stmt) -> bool:
    """Whether the statement is one of these transpositions, and nobody's own."""
    return isinstance(stmt, TileOp) and stmt.name == "transpose" and is_turned(stmt.regions[1].buffer)


def is_turned(tile: Buffer) -> bool:
    """Whether the tile was made for one of them."""
    return tile.name.endswith(_NAME)


def turned(
    op: TileOp, fits: Callable[[TileOp], bool], tile: Callable[[Buffer], Buffer]
) -> tuple[tuple[TileOp, ...], TileOp]:
    """The transpositions before a T.gemm after which it `fits`, and what it is then; none where it does already, or
    never. `tile` makes room."""
    kind = op.regions[0].buffer.dtype
    if fits(op) or kind.bits not in (8, 32) or not all(r.is_whole for r in op.regions):
        return (), op
    steps = []
    new = op
    for place, attribute, along_k in OPERANDS:
        region = new.regions[place]
        if new.attr(attribute) == along_k or region.buffer.scope != "shared" or len(region.extent) != 2:
            continue
        wanted = replace(region.buffer, name=region.buffer.name + _NAME, extents=region.extent[::-1])
        whole = Region(wanted, tuple(integer(0) for _ in wanted.shape), wanted.shape, region.span)
        steps.append((region, whole))
        regions = tuple(whole if i == place else r for i, r in enumerate(new.regions))
        new = with_attr(replace(new, regions=regions), attribute, along_k)
    if not fits(new):
        return (), op
    for _, whole in steps:
        tile(whole.buffer)
    order: tuple[tuple[str, Attr], ...] = ()
    if kind.bits == 8 and new.regions[0].buffer.scope == "fragment":
        # Most such factors were accumulated by another product, and would else change threads.
        order, new = (AS_ACCUMULATED,), with_attr(new, *AS_ACCUMULATED)
    return tuple(TileOp("transpose", step, order, op.span) for step in steps), new
