"""How often a loop runs."""

from __future__ import annotations

from tilec.ir import tile
from tilec.ir.affine import add
from tilec.ir.types import INT32

MAX_UNROLL = 64
"""A T.unroll of more iterations that says no more stays a loop."""


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
