"""Facts about TMA box starts: a load begins at a multiple of 16 bytes of a row, or the instruction is illegal; a store
begins at no negative coordinate.

A coordinate has a known divisor and a least value, from its terms' coefficients, the steps and bounds of loops, and the
promises of T.assume, which are in the coordinate itself as x // 8 * 8 or max(x, 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tilec.ir import tile
from tilec.ir.affine import Interval, affine_form, reads_elements, value_interval
from tilec.support.identity import cache_by_identity
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Facts about a kernel's variables. `values` replaces those bound without reading memory, `multiples` has a divisor
    of other bound variables and of loop variables, `ranges` the bounds of all that have some."""

    values: Mapping[tile.Var, tile.Expr]
    multiples: Mapping[tile.Var, int]
    ranges: Mapping[tile.Var, Interval]

    def is_never_negative(self, coordinate: tile.Expr) -> bool:
        """Return True if the least value known for the coordinate is 0 or more."""
        return self.find_bounds(coordinate)[0] >= 0

    def find_bounds(self, coordinate: tile.Expr) -> Interval:
        """Return the least and the largest value that the coordinate may have, infinite where unknown."""
        return value_interval(tile.substitute_variables(coordinate, self.values), self.ranges)

    def find_divisor(self, coordinate: tile.Expr) -> int:
        """Return the largest integer known to divide every value of the coordinate (0 for the constant 0)."""
        return _find_divisor(tile.substitute_variables(coordinate, self.values), self.multiples)


@cache_by_identity(64)
def collect_coordinates(kernel: tile.Kernel) -> Coordinates:
    """Collect definitions, divisors and ranges of a kernel's variables from its binds, loops and grid."""
    values: dict[tile.Var, tile.Expr] = {}
    multiples: dict[tile.Var, int] = {}
    ranges = dict.fromkeys(_find_nonnegative_variables(kernel), (0.0, math.inf))
    ranges |= {var: (0, e - 1) for var, e in zip(kernel.block_vars, kernel.grid, strict=False) if isinstance(e, int)}
    for stmt in tile.walk_statements(kernel.body):
        match stmt:
            case tile.Bind(var=var, value=value):
                value = tile.substitute_variables(value, values)
                if not reads_elements(value):
                    values[var] = value
                elif not var.dtype.is_float:
                    multiples[var], ranges[var] = _find_divisor(value, multiples), value_interval(value, ranges)
            case tile.For(var=var, start=start, stop=stop, step=step):
                start, stop = tile.substitute_variables(start, values), tile.substitute_variables(stop, values)
                ranges[var] = value_interval(start, ranges)[0], value_interval(stop, ranges)[1] - 1
                if stmt.dynamically_scheduled:
                    ranges[var] = 0, ranges[var][1]
                else:
                    multiples[var] = math.gcd(_find_divisor(start, multiples), step)
            case _:
                pass
    return Coordinates(values, multiples, ranges)


def _find_nonnegative_variables(kernel: tile.Kernel) -> Iterator[tile.Var]:
    """Yield variables that are never negative: block, rank and thread numbers, sizes of tensors and grids."""
    yield from (*kernel.block_vars, tile.CLUSTER_RANK, tile.THREAD, tile.WARPGROUP)
    tensors = [p for p in kernel.params if isinstance(p, tile.Buffer)]
    for extent in (*(e for tensor in tensors for e in tensor.extents), *kernel.grid):
        if isinstance(extent, tile.Var):
            yield extent


def _find_divisor(expr: tile.Expr, multiples: Mapping[tile.Var, int]) -> int:
    """Return the largest known divisor of an expression, given divisors of its variables (0 for the constant 0)."""
    form = affine_form(expr)
    return math.gcd(
        form.constant, *(coefficient * _find_atom_divisor(atom, multiples) for atom, coefficient in form.terms)
    )


def _find_atom_divisor(atom: tile.Expr, multiples: Mapping[tile.Var, int]) -> int:
    """Return a known divisor of one non-constant operand of a sum, by its operation; 1 where none is known."""
    match atom:
        case tile.Var():
            return multiples.get(atom, 1)
        case tile.Binary(op="min" | "max", a=a, b=b) | tile.Select(then=a, orelse=b):
            return math.gcd(_find_divisor(a, multiples), _find_divisor(b, multiples))
        case tile.Binary(op="mul", a=a, b=b):
            return _find_divisor(a, multiples) * _find_divisor(b, multiples)
        case tile.Binary(op="shl", a=a, b=tile.Const(value=value)) if 0 <= value < 32:
            return _find_divisor(a, multiples) << int(value)
        case tile.Binary(op="bitand", a=tile.Const(value=value)) | tile.Binary(op="bitand", b=tile.Const(value=value)):
            return int(value) & -int(value)  # the lowest bit that may be left
        case tile.Cast(a=a, dtype=dtype) if not dtype.is_float and not a.dtype.is_float and dtype.bits >= 32:
            divisor = _find_divisor(a, multiples)
            return divisor & -divisor  # the part that remains when values wrap around
        case _:
            return 1
