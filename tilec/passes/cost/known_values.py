"""Values that decide the control flow of a block: of variables, of tensors of whole numbers, of assigned scalars.

How often a loop runs may stand in a tensor: the length of a sequence, the number of blocks of a sparse row. Such
contents are given by whoever asks for a prediction, or assumed: half of the largest value with which the loop stays
inside what it indexes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Literal

from tilec.analysis.trip_count import find_strides
from tilec.ir import tile
from tilec.ir.rewrite import rewrite_expression
from tilec.rewriting.fold_constants import compute_expr, fold_expr
from tilec.support.records import dataclass

Contents = Mapping[str, int | tuple[int, ...]]
"""The elements of tensors by the tensors' names: one value that all of them have, or each in row-major order."""
Corner = Literal["first", "last"]
CORNERS: tuple[Corner, ...] = ("first", "last")
"""The blocks of a grid for which a loop's bounds are looked at."""
MOST = 1 << 30
"""No length that is assumed exceeds this."""


@dataclass(frozen=True, slots=True)
class KnownValues:
    """The values that are known at a statement: of `variables`, of `scalars` (fragments of one element, by name), and
    the `contents` of tensors."""

    contents: Contents
    variables: dict[tile.Var, int] = field(default_factory=dict)
    scalars: dict[str, int] = field(default_factory=dict)

    def copy(self) -> KnownValues:
        return KnownValues(self.contents, dict(self.variables), dict(self.scalars))

    def evaluate(self, expr: tile.Expr) -> int | None:
        """Return the value of an expression; None where it depends on something unknown."""
        if (value := compute_expr(expr, self.variables)) is not None:
            return int(value)
        if self.contents:
            expr = rewrite_expression(expr, self._replace_load)
        constants: dict[tile.Var, tile.Expr] = {var: tile.int32_const(at) for var, at in self.variables.items()}
        found = fold_expr(tile.substitute_variables(expr, constants))
        return int(found.value) if isinstance(found, tile.Const) else None

    def bind(self, stmt: tile.Bind) -> None:
        """Add the variable's value, if it is known."""
        if (value := self.evaluate(stmt.value)) is not None:
            self.variables[stmt.var] = value

    def assign(self, store: tile.Store) -> None:
        """Change the scalar's value; forget it if the new one is unknown."""
        value = self.evaluate(store.value) if store.atomic is None else None
        self.scalars.pop(store.buffer.name, None)
        if value is not None:
            self.scalars[store.buffer.name] = value

    def forget(self, body: tuple[tile.Stmt, ...]) -> None:
        """Forget the scalars that some of these statements assign."""
        for stmt in tile.walk_statements(body):
            if (store := find_scalar_store(stmt)) is not None:
                self.scalars.pop(store.buffer.name, None)

    def _replace_load(self, expr: tile.Expr) -> tile.Expr:
        """Return the value of an element as a constant, if it is known; anything else as it is."""
        if not isinstance(expr, tile.Load):
            return expr
        value = self.scalars.get(expr.buffer.name)
        if value is None and (held := self.contents.get(expr.buffer.name)) is not None:
            value = held if isinstance(held, int) else self._find_element(expr, held)
        return expr if value is None else tile.Const(value, expr.dtype)

    def _find_element(self, load: tile.Load, elements: tuple[int, ...]) -> int | None:
        """Return the element of a tensor that is loaded; None where its indices are unknown or outside."""
        place = 0
        for index, extent in zip(load.indices, load.buffer.extents, strict=True):
            at = self.evaluate(index)
            if at is None or not isinstance(extent, int) or not 0 <= at < extent:
                return None
            place = place * extent + at
        return elements[place] if place < len(elements) else None


def find_scalar_store(stmt: tile.Stmt) -> tile.Store | None:
    """Return the store of a nest that assigns a fragment of one element; None for any other statement."""
    match stmt:
        case tile.Parallel(body=(tile.Store(buffer=buffer) as store,)) if buffer.scope == "fragment":
            return store if math.prod(extent for extent in buffer.extents if isinstance(extent, int)) == 1 else None
        case _:
            return None


def assigns_scalars(loop: tile.For) -> bool:
    """Return whether a loop assigns fragments of one element."""
    return any(find_scalar_store(stmt) is not None for stmt in tile.walk_statements(loop.body))


# ---- contents that nobody has given ----------------------------------------------------------------------------------


def assume_contents(kernel: tile.Kernel, sizes: Mapping[tile.Var, int], given: Contents) -> dict[str, int]:
    """Return a value for each tensor of whole numbers that bounds loops and whose contents are not given: half of the
    largest one with which a loop stays inside what it indexes, in the first block and in the last. Tensors for which
    that says nothing are left out: the differences of their elements may matter, or a loop indexes nothing by its
    variable."""
    found: dict[str, int] = {}
    for loop, tensors in _find_loops_bounded_by_tensors(kernel):
        limits = [-(-extent // abs(by)) * loop.step for by, extent in find_strides(loop) if by]
        for name in tensors if limits else ():
            if name in given:
                continue
            largest = _find_largest(kernel, loop, name, min(limits), sizes, given)
            if largest is not None:
                found[name] = min(max(largest // 2, 1), found.get(name, MOST))
    return found


def _find_loops_bounded_by_tensors(kernel: tile.Kernel) -> Iterator[tuple[tile.For, set[str]]]:
    """Yield the loops whose bounds depend on elements of tensors, also through definitions, and the tensors' names."""
    values: dict[tile.Var, tile.Expr] = {
        stmt.var: stmt.value for stmt in tile.walk_statements(kernel.body) if isinstance(stmt, tile.Bind)
    }

    def find_tensors(expr: tile.Expr) -> set[str]:
        """Return the names of the tensors whose elements an expression depends on, also through definitions."""
        names = {load.buffer.name for load in tile.walk_expr(expr) if isinstance(load, tile.Load)}
        inside = (values[var] for var in tile.find_variables(expr) if var in values)
        return names.union(*map(find_tensors, inside))

    whole = {p.name for p in kernel.params if isinstance(p, tile.Buffer) and not p.dtype.is_float}
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, tile.For) and (names := (find_tensors(stmt.start) | find_tensors(stmt.stop)) & whole):
            yield stmt, names


def _find_largest(
    kernel: tile.Kernel, loop: tile.For, name: str, limit: int, sizes: Mapping[tile.Var, int], given: Contents
) -> int | None:
    """Return the largest value of the tensor's elements with which the loop stops at `limit` or before, by bisection;
    None where no value exceeds it, or the stop is unknown."""

    def stops_inside(value: int) -> bool | None:
        """Return whether the loop stops at the limit or before if all elements have this value; None if unknown."""
        known = KnownValues({**given, name: value}, dict(sizes))
        stops = [_find_stop(kernel, loop, known.copy(), corner) for corner in CORNERS]
        return None if None in stops else all(stop is not None and stop <= limit for stop in stops)

    if stops_inside(MOST) is not False:
        return None
    low, high = 0, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if stops_inside(middle) else (low, middle)
    return low


def _find_stop(kernel: tile.Kernel, wanted: tile.For, known: KnownValues, corner: Corner) -> int | None:
    """Return where a loop stops in the first block and the first iterations of the loops around it, or in the last."""
    last = corner == "last"
    for var, extent in zip(kernel.block_vars, kernel.grid, strict=False):
        if last and not isinstance(extent, int):
            return None
        known.variables[var] = int(extent) - 1 if last and isinstance(extent, int) else 0
    for stmt in tile.walk_statements(kernel.body):
        match stmt:
            case tile.Bind():
                known.bind(stmt)
            case tile.For() if stmt is wanted:
                return known.evaluate(stmt.stop)
            case tile.For(var=var, start=start, stop=stop):
                at = known.evaluate(stop) if last else known.evaluate(start)
                if at is not None:
                    known.variables[var] = max(at - 1, 0) if last else at
            case _:
                pass
    return None
