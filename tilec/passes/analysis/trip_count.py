"""How often a loop runs."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir import tile
from tilec.ir.affine import add, affine
from tilec.ir.types import INT32
from tilec.passes.analysis.usage import expressions

MAX_UNROLL = 64
"""A T.unroll of more iterations that says no more stays a loop."""
UNKNOWN_TRIP_COUNT = 16
"""A guess: enough that what a loop does counts for more than what is around it."""


def static_trip_count(loop: tile.For) -> int | None:
    """None where that is known only at run time."""
    if isinstance(loop.start, tile.Const) and isinstance(loop.stop, tile.Const):
        return max(0, -(-(int(loop.stop.value) - int(loop.start.value)) // loop.step))
    return None


def trip_count(loop: tile.For) -> tile.Expr:
    """max(0, ⌈(stop − start) / step⌉) as an expression."""
    span = loop.stop if loop.start == tile.integer(0) else tile.Binary("sub", loop.stop, loop.start, INT32)
    rounded = span
    if loop.step != 1:
        rounded = tile.Binary("floordiv", add(span, tile.integer(loop.step - 1)), tile.integer(loop.step), INT32)
    return tile.Binary("max", rounded, tile.integer(0), INT32)


def likely_trip_count(loop: tile.For) -> int:
    """Of a loop whose iterations only a launch or its data count: half of the most that stay inside what it indexes,
    as if each number of them were as likely; `UNKNOWN_TRIP_COUNT` where that has no bound either."""
    most = [-(-extent // abs(by)) for by, extent in _strides(loop) if by]
    return max(1, min(most) // 2) if most else UNKNOWN_TRIP_COUNT


def _strides(loop: tile.For) -> Iterator[tuple[int, int]]:
    """By how much an iteration moves an index, and the extent that it moves in."""
    for stmt in tile.walk(loop.body):
        places = [(r.start, r.buffer.extents) for r in stmt.regions] if isinstance(stmt, tile.TileOp) else []
        read = (e for expr in expressions(stmt) for e in tile.walk_expr(expr) if isinstance(e, tile.Load))
        places += [(load.indices, load.buffer.extents) for load in read]
        for indices, extents in places:
            for index, extent in zip(indices, extents, strict=True):
                if isinstance(extent, int):
                    yield dict(affine(index).terms).get(loop.var, 0) * loop.step, extent
