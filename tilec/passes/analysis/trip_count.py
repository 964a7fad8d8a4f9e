"""How often a loop runs."""

from __future__ import annotations

from tilec.ir.affine import add
from tilec.ir.tile import Binary, Const, Expr, For, integer
from tilec.ir.types import INT32

MAX_UNROLL = 64
"""A T.unroll of more trips that says no more stays a loop."""


def static_trips(loop: For) -> int | None:
    """None where that is known only at run time."""
    if isinstance(loop.start, Const) and isinstance(loop.stop, Const):
        return max(0, -(-(int(loop.stop.value) - int(loop.start.value)) // loop.step))
    return None


def trip_count(loop: For) -> Expr:
    """max(0, ⌈(stop − start) / step⌉) as an expression."""
    span = loop.stop if loop.start == integer(0) else Binary("sub", loop.stop, loop.start, INT32)
    rounded = span
    if loop.step != 1:
        rounded = Binary("floordiv", add(span, integer(loop.step - 1)), integer(loop.step), INT32)
    return Binary("max", rounded, integer(0), INT32)
