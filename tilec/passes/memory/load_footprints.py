"""Footprints: the parts of tensors that a block loads, and the blocks that load the same.

The rows of A that a product's tile needs are a footprint, which all blocks in a row of the grid load; so are the
columns of B for all blocks in a column. The block indices that a copy depends on are followed through the text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tilec.analysis.trip_count import UNKNOWN_TRIP_COUNT, estimate_trip_count, get_static_trip_count
from tilec.ir import tile
from tilec.ir.tile import Expr
from tilec.ops.copies.copy import Copy
from tilec.passes.memory.multicast import get_multicast_axes
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class LoadFootprint:
    """The part of a `tensor` that one block reads through one copy: `bytes`, in all iterations of the loops around it.
    Blocks read the same part if their indices along `axes` agree; along the axes in `shared`, blocks of a cluster load
    it together. `likely_axes` leave out those along which data select one element of a dimension, such as the matrix of
    an expert, once and for all: neighbours select the same one as a rule. Where data select anew in every iteration,
    the part `is_gathered`: what it shares with others is unknown. Copies of a tensor with equal `place` read the same
    part: beginning and extent of the region, with one variable for all loops of equal bounds that are not inside each
    other, and the tile where a T.alloc_var says where it begins."""

    tile: str
    axes: str
    bytes: int
    shared: str = ""
    likely_axes: str = ""
    is_gathered: bool = False
    tensor: str = ""
    place: tuple[Expr, ...] = ()


def _list_own_indices(source: tile.Region, known: _KnownVariables) -> Iterator[tile.Expr]:
    """Yield the indices of a region, without those by which data select one element of a dimension."""
    for start, extent in zip(source.start, source.extent, strict=True):
        if extent != 1 or not known.depends_on_data(start) or known.differs_in_loop(start):
            yield start


def find_load_footprints(kernel: tile.Kernel) -> tuple[LoadFootprint, ...]:
    """Return the footprint of each copy from a tensor: its tile, block axes and bytes, in program order."""
    axes: dict[tile.Var | tile.Buffer, frozenset[str]] = {
        var: frozenset(axis) for var, axis in zip(kernel.block_vars, "xyz", strict=False)
    }
    return tuple(_find_footprints(kernel.body, _KnownVariables(axes, set(), set(), {}, {}, []), 1))


@dataclass(frozen=True, slots=True)
class _KnownVariables:
    """The axes of the grid that each variable depends on, T.alloc_var's too, the variables that depend on elements of
    tensors, and those that differ between iterations of a loop; `first` has the variable of the first loop with the
    bounds of each, `of_bounds` that of each bounds, and `around` those of the loops around a statement."""

    axes: dict[tile.Var | tile.Buffer, frozenset[str]]
    data: set[tile.Var]
    looping: set[tile.Var]
    first: dict[tile.Var, tile.Expr]
    of_bounds: dict[tuple[tile.Expr, tile.Expr, int], tile.Var]
    around: list[tile.Var]

    def find_axes(self, *exprs: tile.Expr) -> frozenset[str]:
        """Return the axes of the grid whose block index the expressions depend on."""
        parts = (part.buffer if isinstance(part, tile.Load) else part for part in _walk_exprs(exprs))
        known = (self.axes.get(part, ()) for part in parts if isinstance(part, tile.Var | tile.Buffer))
        return frozenset(axis for axes in known for axis in axes)

    def store_value(self, store: tile.Store, conditions: Sequence[tile.Expr]) -> None:
        """Record the axes that the value of a T.alloc_var depends on, also by the conditions of its store."""
        if store.buffer.in_registers:
            before = self.axes.get(store.buffer, frozenset())
            self.axes[store.buffer] = before | self.find_axes(store.value, *conditions)

    def depends_on_data(self, *exprs: tile.Expr) -> bool:
        """Return True if an expression loads an element or uses a variable that depends on one."""
        return any(isinstance(part, tile.Load) or part in self.data for part in _walk_exprs(exprs))

    def define_variable(self, var: tile.Var, *exprs: tile.Expr) -> None:
        """Record on which block axes a variable depends, and whether on data, from its defining expressions."""
        self.axes[var] = self.find_axes(*exprs)
        if self.depends_on_data(*exprs):
            self.data.add(var)
        if self.differs_in_loop(*exprs):
            self.looping.add(var)

    def differs_in_loop(self, *exprs: tile.Expr) -> bool:
        """Return True if an expression uses a variable that differs between iterations of a loop."""
        return any(part in self.looping for part in _walk_exprs(exprs))


def _walk_exprs(exprs: tuple[tile.Expr, ...]) -> Iterator[tile.Expr]:
    return (part for expr in exprs for part in tile.walk_expr(expr))


def _find_footprints(
    stmts: tuple[tile.Stmt, ...], known: _KnownVariables, trip_count: int, conditions: tuple[tile.Expr, ...] = ()
) -> Iterator[LoadFootprint]:
    """Yield the footprints of the copies in statements that run `trip_count` times under `conditions`, recording
    variables in `known`."""
    for stmt in stmts:
        match stmt:
            case tile.Bind(var=var, value=value):
                known.define_variable(var, value)
            case tile.For(var=var, start=start, stop=stop, body=body):
                known.define_variable(var, start, stop)
                if stmt.step == 1:  # the ranges of neighbours overlap
                    known.axes[var] = frozenset()
                known.looping.add(var)
                of_bounds = known.of_bounds.setdefault((start, stop, stmt.step), var)
                known.first[var] = var if of_bounds in known.around else of_bounds
                count = get_static_trip_count(stmt)
                again = trip_count * (estimate_trip_count(stmt) if count is None else count)
                known.around.append(of_bounds)
                yield from _find_footprints(body, known, again, conditions)
                known.around.pop()
            case tile.While(body=body):
                yield from _find_footprints(body, known, trip_count * UNKNOWN_TRIP_COUNT, conditions)
            case tile.If(condition=condition, then=then, orelse=orelse):
                yield from _find_footprints((*then, *orelse), known, trip_count, (*conditions, condition))
            case tile.Parallel(body=body):
                yield from _find_footprints(body, known, trip_count, conditions)
            case tile.Store():
                known.store_value(stmt, conditions)
            case Copy(regions=(source, destination, *_)) if source.buffer.scope == "global":
                size = math.prod(source.extent) * source.buffer.dtype.bits // 8 * trip_count
                axes = "".join(sorted(known.find_axes(*source.start)))
                likely_axes = "".join(sorted(known.find_axes(*_list_own_indices(source, known))))
                gathers = any(known.depends_on_data(each) and known.differs_in_loop(each) for each in source.start)
                loaded = destination.buffer.name
                place = [tile.substitute_variables(each, known.first) for each in source.start]
                place += map(tile.int32_const, source.extent)
                if any(isinstance(part, tile.Load) for part in _walk_exprs(source.start)):
                    place.append(tile.Var(loaded))
                together = get_multicast_axes(stmt)
                yield LoadFootprint(
                    loaded, axes, size, together, likely_axes, gathers, source.buffer.name, tuple(place)
                )
