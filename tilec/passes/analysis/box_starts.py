"""Where in a tensor a box of TMA begins: at a multiple of 16 bytes of a row, or the instruction is illegal, and that of
a store at no negative coordinate.

What is known of a coordinate is the greatest number that divides all its values, and the least of them: by its terms'
coefficients, the steps and bounds of loops, and what T.assume promises, which stands in the coordinate itself as
x // 8 * 8 or max(x, 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tilec.ir import tile
from tilec.ir.affine import Interval, affine, interval
from tilec.support.memo import by_identity
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Coordinates:
    """What a kernel's variables are: `values` of those that are bound to what no memory is read for, in terms of
    others, `multiples`, what divides every value of the others that are bound, and of loops' variables, and `ranges`,
    the bounds of whatever has some."""

    values: Mapping[tile.Var, tile.Expr]
    multiples: Mapping[tile.Var, int]
    ranges: Mapping[tile.Var, Interval]

    def is_never_negative(self, coordinate: tile.Expr) -> bool:
        """Whether the coordinate is known to be 0 or more."""
        return self.bounds(coordinate)[0] >= 0

    def bounds(self, coordinate: tile.Expr) -> Interval:
        """Return the least and the largest value that the coordinate may have."""
        return interval(tile.substitute(coordinate, self.values), self.ranges)

    def divisor(self, coordinate: tile.Expr) -> int:
        """Return the largest integer known to divide every value of the coordinate (0 for the constant 0)."""
        return _divisor(tile.substitute(coordinate, self.values), self.multiples)


@by_identity(64)
def coordinates_of(kernel: tile.Kernel) -> Coordinates:
    """Collect what is known of the variables; each has a name of its own and one definition."""
    values: dict[tile.Var, tile.Expr] = {}
    multiples: dict[tile.Var, int] = {}
    ranges = dict.fromkeys(_counts(kernel), (0.0, math.inf))
    ranges |= {var: (0, e - 1) for var, e in zip(kernel.block_vars, kernel.grid, strict=False) if isinstance(e, int)}
    for stmt in tile.walk(kernel.body):
        match stmt:
            case tile.Bind(var=var, value=value):
                value = tile.substitute(value, values)
                if not any(isinstance(e, tile.Load) for e in tile.walk_expr(value)):
                    values[var] = value
                elif not var.dtype.is_float:
                    multiples[var], ranges[var] = _divisor(value, multiples), interval(value, ranges)
            case tile.For(var=var, start=start, stop=stop, step=step):
                start, stop = tile.substitute(start, values), tile.substitute(stop, values)
                ranges[var] = interval(start, ranges)[0], interval(stop, ranges)[1] - 1
                if stmt.dynamically_scheduled:
                    ranges[var] = 0, ranges[var][1]
                else:
                    multiples[var] = math.gcd(_divisor(start, multiples), step)
            case _:
                pass
    return Coordinates(values, multiples, ranges)


def _counts(kernel: tile.Kernel) -> Iterator[tile.Var]:
    """The variables that are never negative: those that count blocks and threads, and sizes of tensors and grids."""
    yield from (*kernel.block_vars, tile.RANK, tile.THREAD, tile.WARPGROUP)
    tensors = [p for p in kernel.params if isinstance(p, tile.Buffer)]
    for extent in (*(e for tensor in tensors for e in tensor.extents), *kernel.grid):
        if isinstance(extent, tile.Var):
            yield extent


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
