"""Footprints: the parts of tensors that a block loads, and the blocks that load the same.

The rows of A that a product's tile needs are a footprint, which all blocks in a row of the grid load; so are the
columns of B for all blocks in a column. The block indices that a copy depends on are followed through the text."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.analysis.trip_count import get_static_trip_count
from tilec.ir.tile import Bind, Expr, For, If, Kernel, Load, Stmt, Var, While, walk_expr
from tilec.ops.copies.copy import Copy
from tilec.passes.memory.multicast import get_multicast_axes
from tilec.support.records import dataclass

UNKNOWN_TRIP_COUNT = 64
"""The trip count assumed for loops known at launch only: it is the same for all copies in them."""


@dataclass(frozen=True, slots=True)
class LoadFootprint:
    """The part of a tensor that one block reads through one copy: `bytes`, in all iterations of the loops around it.
    Blocks read the same part if their indices along `axes` agree; along the axes in `shared`, blocks of a cluster load
    it together. `by_data`: its place depends on elements of a tensor."""

    tile: str
    axes: str
    bytes: int
    shared: str = ""
    by_data: bool = False


def find_load_footprints(kernel: Kernel) -> tuple[LoadFootprint, ...]:
    """Return the footprint of each copy from a tensor: its tile, block axes and bytes, in program order."""
    axes = {var: frozenset(axis) for var, axis in zip(kernel.block_vars, "xyz", strict=False)}
    return tuple(_find_footprints(kernel.body, _VariableAxes(axes, set()), 1))


@dataclass(frozen=True, slots=True)
class _VariableAxes:
    """The axes of the grid that each variable depends on, and the variables that depend on elements of tensors."""

    axes: dict[Var, frozenset[str]]
    data: set[Var]

    def find_axes(self, *exprs: Expr) -> frozenset[str]:
        """Return the axes of the grid whose block index the expressions depend on."""
        variables = (part for part in _walk_exprs(exprs) if isinstance(part, Var))
        return frozenset(axis for var in variables for axis in self.axes.get(var, ()))

    def depends_on_data(self, *exprs: Expr) -> bool:
        """Return True if an expression loads an element or uses a variable that depends on one."""
        return any(isinstance(part, Load) or part in self.data for part in _walk_exprs(exprs))

    def define_variable(self, var: Var, *exprs: Expr) -> None:
        """Record on which block axes a variable depends, and whether on data, from its defining expressions."""
        self.axes[var] = self.find_axes(*exprs)
        if self.depends_on_data(*exprs):
            self.data.add(var)


def _walk_exprs(exprs: tuple[Expr, ...]) -> Iterator[Expr]:
    return (part for expr in exprs for part in walk_expr(expr))


def _find_footprints(stmts: tuple[Stmt, ...], known: _VariableAxes, trip_count: int) -> Iterator[LoadFootprint]:
    """Yield the footprints of the copies in statements that run `trip_count` times, recording variables in `known`."""
    for stmt in stmts:
        match stmt:
            case Bind(var=var, value=value):
                known.define_variable(var, value)
            case For(var=var, start=start, stop=stop, body=body):
                known.define_variable(var, start, stop)
                count = get_static_trip_count(stmt)
                yield from _find_footprints(body, known, trip_count * (UNKNOWN_TRIP_COUNT if count is None else count))
            case While(body=body):
                yield from _find_footprints(body, known, trip_count * UNKNOWN_TRIP_COUNT)
            case If(then=then, orelse=orelse):
                yield from _find_footprints((*then, *orelse), known, trip_count)
            case Copy(regions=(source, tile, *_)) if source.buffer.scope == "global":
                size = math.prod(source.extent) * source.buffer.dtype.bits // 8 * trip_count
                axes, by_data = "".join(sorted(known.find_axes(*source.start))), known.depends_on_data(*source.start)
                yield LoadFootprint(tile.buffer.name, axes, size, get_multicast_axes(stmt), by_data)
