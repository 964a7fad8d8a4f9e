"""Where along a row of a tensor a box of TMA begins: at a multiple of 16 bytes, or the instruction is illegal.

What is known of a coordinate is the greatest number that divides all its values: its terms' coefficients, the steps of
loops, and what T.assume promises, which stands in the coordinate itself as x // 8 * 8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilec.ir import tile
from tilec.ir.affine import affine
from tilec.support.memo import by_identity
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Coordinates:
    """What a kernel's variables are: `values` of those that are bound to what no memory is read for, in terms of
    others, and `multiples`, what divides every value of the others that are bound, and of loops' variables."""

    values: Mapping[tile.Var, tile.Expr]
    multiples: Mapping[tile.Var, int]

    def divisor(self, coordinate: tile.Expr) -> int:
        """Return the largest integer known to divide every value of the coordinate (0 for the constant 0)."""
        return _divisor(tile.substitute(coordinate, self.values), self.multiples)


@by_identity(64)
def coordinates_of(kernel: tile.Kernel) -> Coordinates:
    """Collect what is known of the variables; each has a name of its own and one definition."""
    values: dict[tile.Var, tile.Expr] = {}
    multiples: dict[tile.Var, int] = {}
    for stmt in tile.walk(kernel.body):
        match stmt:
            case tile.Bind(var=var, value=value):
                value = tile.substitute(value, values)
                if not any(isinstance(e, tile.Load) for e in tile.walk_expr(value)):
                    values[var] = value
                elif not var.dtype.is_float:
                    multiples[var] = _divisor(value, multiples)
            case tile.For(var=var, start=start, step=step) if not stmt.dynamically_scheduled:
                multiples[var] = math.gcd(_divisor(tile.substitute(start, values), multiples), step)
            case _:
                pass
    return Coordinates(values, multiples)


def _divisor(expr: tile.Expr, multiples: Mapping[tile.Var, int]) -> int:
    form = affine(expr)
    return math.gcd(form.constant, *(coefficient * _of_atom(atom, multiples) for atom, coefficient in form.terms))


def _of_atom(atom: tile.Expr, multiples: Mapping[tile.Var, int]) -> int:
    """The same of what is no sum."""
    match atom:
        case tile.Var():
            return multiples.get(atom, 1)
        case tile.Binary(op="min" | "max", a=a, b=b) | tile.Select(then=a, orelse=b):
            return math.gcd(_divisor(a, multiples), _divisor(b, multiples))
        case tile.Binary(op="mul", a=a, b=b):
            return _divisor(a, multiples) * _divisor(b, multiples)
        case tile.Binary(op="shl", a=a, b=tile.Const(value=value)) if 0 <= value < 32:
            return _divisor(a, multiples) << int(value)
        case tile.Binary(op="bitand", a=tile.Const(value=value)) | tile.Binary(op="bitand", b=tile.Const(value=value)):
            return int(value) & -int(value)  # the lowest bit that may be left
        case tile.Cast(a=a, dtype=dtype) if not dtype.is_float and not a.dtype.is_float and dtype.bits >= 32:
            return _power_of_two(_divisor(a, multiples))
        case _:
            return 1


def _power_of_two(number: int) -> int:
    """The part of a divisor that is left when values wrap around."""
    return number & -number
