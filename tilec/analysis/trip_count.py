"""Trip counts of loops."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir import tile
from tilec.ir.affine import add_exprs, affine_form
from tilec.ir.types import INT32

MAX_UNROLL = 64
"""A T.unroll of more iterations without a factor stays a loop."""
UNKNOWN_TRIP_COUNT = 16
"""A guess: enough that a loop counts for more than what is around it."""


def get_static_trip_count(loop: tile.For) -> int | None:
    """Return the loop's trip count from constant bounds, or None where a bound is known only at run time."""
    if isinstance(loop.start, tile.Const) and isinstance(loop.stop, tile.Const):
        return max(0, -(-(int(loop.stop.value) - int(loop.start.value)) // loop.step))
    return None


def build_trip_count(loop: tile.For) -> tile.Expr:
    """Return the loop's trip count max(0, ⌈(stop − start) / step⌉) as an expression."""
    span = loop.stop if loop.start == tile.int32_const(0) else tile.Binary("sub", loop.stop, loop.start, INT32)
    rounded = span
    if loop.step != 1:
        rounded = tile.Binary(
            "floordiv", add_exprs(span, tile.int32_const(loop.step - 1)), tile.int32_const(loop.step), INT32
        )
    return tile.Binary("max", rounded, tile.int32_const(0), INT32)


def estimate_trip_count(loop: tile.For) -> int:
    """Return a guess of a loop's trip count: half of what the least extent that it indexes allows, or 16 if it
    indexes none. It is at least 1; the loop's own bounds are not looked at.

    All numbers up to the most that stays inside are taken to be equally likely.
    """
    most = [-(-extent // abs(by)) for by, extent in find_strides(loop) if by]
    return max(1, min(most) // 2) if most else UNKNOWN_TRIP_COUNT


def find_strides(loop: tile.For) -> Iterator[tuple[int, int]]:
    """Yield, for each index of a load or region in the loop, by how much an iteration moves it, and its constant
    extent. Dimensions of unknown extent are left out; an index that moves by no constant counts as fixed."""
    for stmt in tile.walk_statements(loop.body):
        places = [(r.start, r.buffer.extents) for r in stmt.regions] if isinstance(stmt, tile.TileOp) else []
        places += [(load.indices, load.buffer.extents) for load in tile.walk_loads(stmt)]
        for indices, extents in places:
            for index, extent in zip(indices, extents, strict=True):
                if isinstance(extent, int):
                    yield dict(affine_form(index).terms).get(loop.var, 0) * loop.step, extent
