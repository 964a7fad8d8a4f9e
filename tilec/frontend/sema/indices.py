"""Conversion of indices to 32 bits, in which kernels address elements.

An extent is at most 2³¹ - 1, so a 64-bit index that 32 bits do not hold is outside every tensor. It is clamped, and so
stays outside. A sum is computed in 32 bits only if it and both operands are known to fit: a clamped operand may come
back inside when the other one is added.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.ir import tile
from tilec.ir.affine import Interval, value_interval
from tilec.ir.expr import cast_expr, integer_range, make_constant
from tilec.ir.types import INT32, UINT32
from tilec.passes.analysis.fold_constants import fold_expr

_LOW, _HIGH = integer_range(INT32)


def as_index(expr: tile.Expr, ranges: Mapping[str, tuple[int, int]]) -> tile.Expr:
    """Convert an integer to int32. `ranges` are the smallest and largest values of variables, by name."""
    intervals: dict[tile.Var, Interval] = (
        {} if expr.dtype.bits < 64 else {tile.Var(name): ends for name, ends in ranges.items()}
    )
    return fold_expr(_narrow_index(expr, intervals))


def _narrow_index(expr: tile.Expr, ranges: Mapping[tile.Var, Interval]) -> tile.Expr:
    if expr.dtype.bits < 64:
        return cast_expr(expr, INT32)
    match expr:
        case tile.Const(value=value):
            return make_constant(min(max(int(value), _LOW), _HIGH), INT32)
        case tile.Cast(a=a) if a.dtype.kind != "float" and a.dtype.bits < 64:
            return cast_expr(a, INT32)
        case tile.Binary(op="add" | "sub" | "mul" | "floordiv" | "floormod" | "min" | "max", a=a, b=b) if all(
            _fits_int32(e, ranges) for e in (a, b, expr)
        ):
            return tile.Binary(expr.op, _narrow_index(a, ranges), _narrow_index(b, ranges), INT32)
        case _:
            clamped = tile.Binary("min", expr, make_constant(_HIGH, expr.dtype), expr.dtype)
            if expr.dtype.kind == "int":
                clamped = tile.Binary("max", clamped, make_constant(_LOW, expr.dtype), expr.dtype)
            return tile.Cast(clamped, INT32)


def _fits_int32(expr: tile.Expr, ranges: Mapping[tile.Var, Interval]) -> bool:
    if (
        isinstance(expr, tile.Cast)
        and expr.a.dtype.kind != "float"
        and expr.a.dtype.bits < 64
        and expr.a.dtype != UINT32
    ):
        return True
    low, high = value_interval(expr, ranges)
    return low >= _LOW and high <= _HIGH
