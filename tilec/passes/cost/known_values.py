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
from tilec.analysis.usage import find_tensor_directions, find_writes
from tilec.ir import tile
from tilec.ir.rewrite import rewrite_expression
from tilec.rewriting.fold_constants import compute_expr, fold_expr
from tilec.support.records import dataclass

Contents = Mapping[str, int | tuple[int, ...]]
"""The elements of tensors by the tensors' names: one value that all of them have, or each in row-major order."""
Corner = Literal["first", "last"]
CORNERS: tuple[Corner, ...] = ("first", "last")
"""The blocks of a grid for which a loop's bounds are looked at."""
MOST = 1 << 24
"""No length that is assumed exceeds this: some more of it are still an int32."""


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
        if (value := compute_expr(expr, self.variables, self._find_value)) is not None:
            return _convert_whole(value)
        if self.contents:
            expr = rewrite_expression(expr, self._replace_load)
        constants: dict[tile.Var, tile.Expr] = {var: tile.int32_const(at) for var, at in self.variables.items()}
        found = fold_expr(tile.substitute_variables(expr, constants))
        return _convert_whole(found.value) if isinstance(found, tile.Const) else None

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
        """Forget the scalars that some of these statements write."""
        for stmt in body if self.scalars else ():
            for buffer in find_writes(stmt):
                self.scalars.pop(buffer.name, None)

    def _replace_load(self, expr: tile.Expr) -> tile.Expr:
        """Return the value of an element as a constant, if it is known; anything else as it is."""
        value = self._find_value(expr) if isinstance(expr, tile.Load) else None
        return expr if value is None else tile.Const(value, expr.dtype)

    def _find_value(self, load: tile.Load) -> int | None:
        """Return the value of an element that is loaded; None if it is unknown."""
        value = self.scalars.get(load.buffer.name)
        if value is None and (held := self.contents.get(load.buffer.name)) is not None:
            value = held if isinstance(held, int) else self._find_element(load, held)
        return value

    def _find_element(self, load: tile.Load, elements: tuple[int, ...]) -> int | None:
        """Return the element of a tensor that is loaded; None where its indices are unknown or outside."""
        place = 0
        for axis, (index, extent) in enumerate(zip(load.indices, load.buffer.extents, strict=True)):
            at, size = self.evaluate(index), extent if isinstance(extent, int) else self.evaluate(extent)
            # The place of an element does not depend on the first extent.
            if at is None or (size is None and axis) or not 0 <= at < (MOST if size is None else size):
                return None
            place = place * (size or 1) + at
        return elements[place] if place < len(elements) else None


def _convert_whole(value: float) -> int | None:
    """Return a value as a whole number; None if it is none."""
    return int(value) if isinstance(value, int) or value.is_integer() else None


def find_scalar_store(stmt: tile.Stmt) -> tile.Store | None:
    """Return the store of a nest that only assigns a whole number in a fragment of one element; else None."""
    match stmt:
        case tile.Parallel(body=(tile.Store(buffer=buffer) as store,)) if (
            buffer.scope == "fragment" and not buffer.dtype.is_float
        ):
            return store if math.prod(extent for extent in buffer.extents if isinstance(extent, int)) == 1 else None
        case _:
            return None


def assigns_scalars(loop: tile.For) -> bool:
    """Return whether a loop assigns fragments of one element, and runs all of its iterations."""
    inside = list(tile.walk_statements(loop.body))
    return any(find_scalar_store(stmt) is not None for stmt in inside) and not any(
        isinstance(stmt, tile.Break) for stmt in inside
    )


# ---- contents that nobody has given ----------------------------------------------------------------------------------


def assume_contents(kernel: tile.Kernel, sizes: Mapping[tile.Var, int], given: Contents) -> dict[str, int]:
    """Return a value for each tensor of whole numbers that bounds loops and whose contents are not given: half of the
    largest one with which a loop stays inside what it indexes, in the first block and in the last. Tensors for which
    that says nothing are left out: a loop has no iterations if all elements are alike, as between two offsets, or
    indexes nothing by its variable."""
    found: dict[str, int] = {}
    for loop, tensors in _find_loops_bounded_by_tensors(kernel):
        limits = [-(-extent // abs(by)) * loop.step for by, extent in find_strides(loop) if by]
        for name in sorted(tensors - given.keys()) if limits else ():
            bounds = _TensorBounds(kernel, loop, name, sizes, given)
            largest = bounds.find_largest(min(limits))
            if largest is not None and bounds.has_iterations(max(largest // 2, 1)):
                found[name] = min(max(largest // 2, 1), found.get(name, MOST))
    return found


def _find_loops_bounded_by_tensors(kernel: tile.Kernel) -> Iterator[tuple[tile.For, set[str]]]:
    """Yield the loops whose bounds depend on elements of tensors that are only read, and the tensors' names."""
    values: dict[tile.Var, tile.Expr] = {
        stmt.var: stmt.value for stmt in tile.walk_statements(kernel.body) if isinstance(stmt, tile.Bind)
    }
    known: dict[tile.Var, set[str]] = {}

    def find_tensors(expr: tile.Expr) -> set[str]:
        """Return the names of the tensors whose elements an expression depends on, also through definitions."""
        names = {load.buffer.name for load in tile.walk_expr(expr) if isinstance(load, tile.Load)}
        for var in tile.find_variables(expr) & values.keys():
            if var not in known:
                known[var] = set()
                known[var] = find_tensors(values[var])
            names |= known[var]
        return names

    directions = find_tensor_directions(kernel)
    tensors = (p for p in kernel.params if isinstance(p, tile.Buffer) and not p.dtype.is_float)
    whole = {tensor.name for tensor in tensors if directions[tensor.name] == "in"}
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, tile.For) and (names := (find_tensors(stmt.start) | find_tensors(stmt.stop)) & whole):
            yield stmt, names


class _TensorBounds:
    """The bounds of a loop if all elements of a tensor have one value, in the first block of the grid and in the
    last."""

    def __init__(
        self, kernel: tile.Kernel, loop: tile.For, name: str, sizes: Mapping[tile.Var, int], given: Contents
    ) -> None:
        self.kernel, self.loop, self.name, self.sizes, self.given = kernel, loop, name, sizes, given

    def find_largest(self, limit: int) -> int | None:
        """Return the largest value with which the loop stops at `limit` or before; None where no value exceeds it, or
        the stop is unknown, or does not grow with the value."""
        low, high, before = 0, 1, -MOST
        while (stop := self._find_last_stop(high)) is not None and before <= stop <= limit:
            if high >= MOST:
                return None
            low, high, before = high, 2 * high, stop
        if stop is None or stop < before:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            stop = self._find_last_stop(middle)
            low, high = (middle, high) if stop is not None and stop <= limit else (low, middle)
        return low

    def has_iterations(self, value: int) -> bool:
        """Return whether the loop runs in the first block or in the last."""
        return any(start < stop for start, stop in self._find_bounds(value))

    def _find_last_stop(self, value: int) -> int | None:
        """Return the larger of the stops in both blocks; None where one is unknown."""
        bounds = self._find_bounds(value)
        return max(stop for _, stop in bounds) if len(bounds) == len(CORNERS) else None

    def _find_bounds(self, value: int) -> list[tuple[int, int]]:
        """Return start and stop of the loop in each of the blocks in which both are known."""
        contents = {**self.given, self.name: value}
        found = (self._find_bounds_at(KnownValues(contents, dict(self.sizes)), corner) for corner in CORNERS)
        return [bounds for bounds in found if bounds is not None]

    def _find_bounds_at(self, known: KnownValues, corner: Corner) -> tuple[int, int] | None:
        """Return start and stop in the first block and the first iterations of the loops around it, or the last."""
        last = corner == "last"
        for var, extent in zip(self.kernel.block_vars, self.kernel.grid, strict=False):
            if last and not isinstance(extent, int):
                return None
            known.variables[var] = int(extent) - 1 if last and isinstance(extent, int) else 0
        for stmt in tile.walk_statements(self.kernel.body):
            match stmt:
                case tile.Bind():
                    known.bind(stmt)
                case tile.For(start=start, stop=stop) if stmt is self.loop:
                    bounds = known.evaluate(start), known.evaluate(stop)
                    return None if bounds[0] is None or bounds[1] is None else (bounds[0], bounds[1])
                case tile.For(var=var, start=start, stop=stop):
                    at = known.evaluate(stop) if last else known.evaluate(start)
                    if at is not None:
                        known.variables[var] = max(at - 1, 0) if last else at
                case _:
                    pass
        return None
