"""Indices are 32-bit integers: what a kernel computes in 64 bits to address an element becomes one.

An extent is at most 2³¹ - 1, so an index in 64 bits that 32 do not hold is outside of every tensor, and stays so: it
becomes the nearest that they hold. A sum is computed in 32 bits only if it and both its sides are known to fit: a side
that has become the nearest may come back inside when the other one is added.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.ir import tile
from tilec.ir.affine import Interval, interval
from tilec.ir.expr import cast, constant, integer_range
from tilec.ir.types import INT32, UINT32
from tilec.passes.analysis.fold_constants import fold_expr

_LOW, _HIGH = integer_range(INT32)


def as_index(expr: tile.Expr, ranges: Mapping[str, tuple[int, int]]) -> tile.Expr:
    """The integer as int32. `ranges` are the smallest and largest values of variables, by name."""
    known: dict[tile.Var, Interval] = (
        {} if expr.dtype.bits < 64 else {tile.Var(name): ends for name, ends in ranges.items()}
    )
    return fold_expr(_narrowed(expr, known))


def _narrowed(expr: tile.Expr, ranges: Mapping[tile.Var, Interval]) -> tile.Expr:
    if expr.dtype.bits < 64:
        return cast(expr, INT32)
    match expr:
        case tile.Const(value=value):
            return constant(min(max(int(value), _LOW), _HIGH), INT32)
        case tile.Cast(a=a) if a.dtype.kind != "float" and a.dtype.bits < 64:
            return cast(a, INT32)
        case tile.Binary(op="add" | "sub" | "mul" | "floordiv" | "floormod" | "min" | "max", a=a, b=b) if all(
            _fits(e, ranges) for e in (a, b, expr)
        ):
            return tile.Binary(expr.op, _narrowed(a, ranges), _narrowed(b, ranges), INT32)
        case _:
            held = tile.Binary("min", expr, constant(_HIGH, expr.dtype), expr.dtype)
            if expr.dtype.kind == "int":
                held = tile.Binary("max", held, constant(_LOW, expr.dtype), expr.dtype)
            return tile.Cast(held, INT32)


def _fits(expr: tile.Expr, ranges: Mapping[tile.Var, Interval]) -> bool:
    if (
        isinstance(expr, tile.Cast)
        and expr.a.dtype.kind != "float"
        and expr.a.dtype.bits < 64
        and expr.a.dtype != UINT32
    ):
        return True
    low, high = interval(expr, ranges)
    return low >= _LOW and high <= _HIGH
