"""repeated-write, neighbour-read: iterations of T.Parallel that interfere, since all run at the same time.

A write whose index omits a loop variable is repeated by all iterations of that variable, and one value remains. A read
of an element that another iteration writes gives the value before or after that write.

In doubt nothing is reported: a condition that cannot be evaluated may select a single iteration, and an index that is
not affine may differ in each iteration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product

from tilec.analysis.usage import list_expressions
from tilec.driver.lints.registry import TILE, register_warning
from tilec.ir import tile
from tilec.ir.affine import affine_form
from tilec.passes.state import KernelState
from tilec.rewriting.fold_constants import compute_expr
from tilec.support.diagnostics import Diagnostic, Label, make_warning
from tilec.support.records import dataclass
from tilec.support.source import Span

Conditions = tuple[tuple[tile.Expr, bool], ...]
"""Conditions, each with the value that it must have."""
Iteration = Mapping[tile.Var, int]
"""The values of the nest's variables."""

_MAX_PARTS = 32
"""The most expression nodes of a name's value that is substituted. Larger values are no index of a neighbour."""
_MAX_ITERATIONS_TRIED = 64
"""Iterations of a variable for which a condition is evaluated."""
_REDUCTION_NAMES = {"add": "sum", "max": "max", "min": "min"}
"""The names of atomic operations and reductions, by operator."""


@register_warning(TILE)
def find_parallel_races(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning, once per place, for each T.Parallel store or load that races with another iteration."""
    warned: set[tuple[str, Span]] = set()
    for nest in tile.walk_statements(work.source_kernel.body):
        if not isinstance(nest, tile.Parallel) or nest.is_per_thread or max(nest.extents) == 1:
            continue
        body, file = _NestBody(nest), work.source.of(nest.span)
        line = file.lines[nest.span.line - 1] if 0 < nest.span.line <= len(file.lines) else ""
        for found in (*_find_repeated_writes(body, line), *_find_neighbour_reads(body)):
            if found.primary is not None and (found.code, found.primary.span) not in warned:
                warned.add((found.code, found.primary.span))
                yield found


@dataclass(frozen=True, slots=True)
class _NestWrite:
    """A store that is not atomic, and the conditions under which it runs."""

    stmt: tile.Store
    conditions: Conditions


@dataclass(frozen=True, slots=True)
class _NestRead:
    """A load, its statement, and the conditions under which it runs."""

    load: tile.Load
    span: Span
    conditions: Conditions


class _NestBody:
    """The writes and reads of a nest, with names replaced by their values."""

    def __init__(self, nest: tile.Parallel) -> None:
        self.extents = {v: e for v, e in zip(nest.vars, nest.extents, strict=True) if e > 1}
        self.writes: list[_NestWrite] = []
        self.reads: list[_NestRead] = []
        self._bound: dict[tile.Var, tile.Expr] = {}
        self._depends: dict[tile.Var, frozenset[tile.Var | tile.Buffer]] = {v: frozenset((v,)) for v in self.extents}
        self._add_statements(nest.body, ())

    def _add_statements(self, body: tuple[tile.Stmt, ...], conditions: Conditions) -> None:
        """Collect the reads and writes of statements that run under these conditions, and the names they bind."""
        for stmt in body:
            for expr in list_expressions(stmt):
                self.reads += (_NestRead(load, stmt.span, c) for load, c in self._list_loads(expr, conditions))
            match stmt:
                case tile.If(condition=condition, then=then, orelse=orelse):
                    condition = self.expand_names(condition)
                    self._add_statements(then, (*conditions, (condition, True)))
                    self._add_statements(orelse, (*conditions, (condition, False)))
                case tile.Bind(var=var, value=value):
                    self._depends[var] = self.depends_on(value)
                    value = self.expand_names(value)
                    if sum(1 for _ in tile.walk_expr(value)) <= _MAX_PARTS:
                        self._bound[var] = value
                case tile.Store(atomic=None, buffer=buffer) if buffer.scope in ("global", "shared", "fragment"):
                    self.writes.append(_NestWrite(stmt, conditions))
                case tile.Store(previous=tile.Var() as previous):
                    self._depends[previous] = frozenset(self.extents)

    def _list_loads(self, expr: tile.Expr, conditions: Conditions) -> Iterator[tuple[tile.Load, Conditions]]:
        """Yield an expression's loads, each with its conditions; those in an arm of a select have its condition too."""
        if isinstance(expr, tile.Load):
            yield expr, conditions
        for child in tile.direct_operands(expr):
            under = conditions
            if isinstance(expr, tile.Select) and child is not expr.condition:
                under = (*conditions, (self.expand_names(expr.condition), child is expr.then))
            yield from self._list_loads(child, under)

    def expand_names(self, expr: tile.Expr) -> tile.Expr:
        """Return the expression with names replaced by the values bound to them."""
        return tile.substitute_variables(expr, self._bound) if self._bound else expr

    def depends_on(self, *exprs: tile.Expr) -> frozenset[tile.Var | tile.Buffer]:
        """Return the nest's variables and the buffers on which the expressions depend, through names too."""
        found: set[tile.Var | tile.Buffer] = set()
        for part in (part for expr in exprs for part in tile.walk_expr(expr)):
            if isinstance(part, tile.Var):
                found |= self._depends.get(part, frozenset())
            elif isinstance(part, tile.Load):
                found.add(part.buffer)
        return frozenset(found)

    def holds(self, conditions: Conditions, point: Iteration) -> bool | None:
        """Return whether conditions hold in an iteration, None if unknown; those equal in all count as true."""
        answers = []
        for condition, wanted in conditions:
            if self.depends_on(condition) & self.extents.keys():
                value = compute_expr(condition, point)
                answers.append(None if value is None else bool(value) == wanted)
        return False if False in answers else None if None in answers else True


# ---- writes ----------------------------------------------------------------------------------------------------------


def _find_repeated_writes(body: _NestBody, line: str) -> Iterator[Diagnostic]:
    """Yield a warning for each store that several iterations make, with different values, to the same element."""
    for write in body.writes:
        store = write.stmt
        named = body.depends_on(*store.indices)
        made_of = body.depends_on(store.value)
        adds = store.buffer in made_of
        for var in body.extents:
            if var not in named and (adds or var in made_of) and _is_repeated(body, write, var, adds):
                yield _build_write_warning(store, _get_written_name(var, line), body.extents[var])
                break


def _is_repeated(body: _NestBody, write: _NestWrite, var: tile.Var, adds: bool) -> bool:
    """Return whether sampled iterations of a variable repeat the write; if unknown, True for sums that test data."""
    others = {other: sorted({0, 1, extent - 1}) for other, extent in body.extents.items() if other != var}
    for values in product(*others.values()):
        point = dict(zip(others, values, strict=True))
        tried = range(min(body.extents[var], _MAX_ITERATIONS_TRIED))
        answers = [body.holds(write.conditions, {**point, var: value}) for value in tried]
        if answers.count(True) > 1:
            return True
        if None in answers:  # a condition on data selects a single iteration only by chance
            made_of = body.depends_on(*(condition for condition, _ in write.conditions))
            return adds and any(isinstance(part, tile.Buffer) for part in made_of)
    return False


def _build_write_warning(store: tile.Store, var: str, extent: int) -> Diagnostic:
    """Return the warning about a repeated write, with a reduction or atomic operation to use instead."""
    name = store.buffer.name
    kind = _REDUCTION_NAMES.get(store.value.op) if isinstance(store.value, tile.Binary) else None
    if kind is None or not any(_is_same_place(part, store) for part in tile.direct_operands(store.value)):
        way_out = f"name `{var}` in the index, or write {name} outside of the loop"
    elif store.buffer.scope == "fragment":
        way_out = f"put the values in a tile and write T.reduce_{kind}(tile, {name})"
    else:
        way_out = f"write T.atomic_{kind.replace('sum', 'add')}({name}[…], value)"
    title = f"{extent} iterations write the same element of {name} at the same time, and only one value remains"
    return make_warning("repeated-write", title, store.span, f"the index does not contain `{var}`", help=way_out)


def _get_written_name(var: tile.Var, line: str) -> str:
    """Return the name of a variable as its loop's line has it, without the suffix of a renamed one."""
    return var.name if re.search(rf"\b{var.name}\b", line) else var.name.rpartition("_")[0] or var.name


def _is_same_place(part: tile.Expr, store: tile.Store) -> bool:
    """Return whether an expression loads exactly the element that the store writes."""
    return isinstance(part, tile.Load) and (part.buffer, part.indices) == (store.buffer, store.indices)


# ---- reads -----------------------------------------------------------------------------------------------------------


def _find_neighbour_reads(body: _NestBody) -> Iterator[Diagnostic]:
    """Yield a warning for each load of an element that another iteration writes, except in fragments."""
    for read in body.reads:
        if read.load.buffer.scope == "fragment":
            continue  # elements of other threads are read through shared memory, as they were before the loop
        for write in body.writes:
            if read.load.buffer == write.stmt.buffer and _has_collision(body, read, write):
                name = read.load.buffer.name
                also = () if write.stmt.span == read.span else (Label(write.stmt.span, "written here"),)
                title = f"this reads an element of {name} that another iteration writes at the same time"
                label = "the order of the read and the write is undefined"
                advice = f"read a copy of {name} made before the loop, or write a T.serial loop"
                yield make_warning("neighbour-read", title, read.span, label, secondary=also, help=advice)
                break


def _has_collision(body: _NestBody, read: _NestRead, write: _NestWrite) -> bool:
    """Return whether, in sampled iterations, one reads the element that another writes; False if unsure."""
    reads = [_split_index(body, index) for index in read.load.indices]
    writes = [_split_index(body, index) for index in write.stmt.indices]
    pairs = []
    for a, b in zip(reads, writes, strict=True):
        if a is None or b is None or a.outer != b.outer:
            return False
        pairs.append((a, b))
    if all(a == b for a, b in pairs):
        return False
    for values in product(*(sorted({0, 1, extent // 2, extent - 1}) for extent in body.extents.values())):
        reader = dict(zip(body.extents, values, strict=True))
        writer = _find_writer(body, [(a.at(reader), b) for a, b in pairs])
        if writer is None or writer == reader or body.holds(read.conditions, reader) is not True:
            continue
        if body.holds(write.conditions, writer) is True:
            return True
    return False


@dataclass(frozen=True, slots=True)
class _AffineIndex:
    """An affine index: the nest's variables with factors, largest first, a constant, and terms invariant in the
    nest."""

    inner: tuple[tuple[tile.Var, int], ...]
    constant: int
    outer: frozenset[tuple[tile.Expr, int]]

    def at(self, point: Iteration) -> int:
        """Return the index's value in an iteration, without the terms invariant in the nest."""
        return self.constant + sum(factor * point[var] for var, factor in self.inner)


def _split_index(body: _NestBody, index: tile.Expr) -> _AffineIndex | None:
    """Return an index as an affine sum of the nest's variables; None if another term depends on them."""
    form = affine_form(body.expand_names(index))
    inner = [(atom, factor) for atom, factor in form.terms if isinstance(atom, tile.Var) and atom in body.extents]
    outer = [(atom, factor) for atom, factor in form.terms if not (isinstance(atom, tile.Var) and atom in body.extents)]
    if body.depends_on(*(atom for atom, _ in outer)):
        return None
    inner.sort(key=lambda term: -term[1])
    return _AffineIndex(tuple(inner), form.constant, frozenset(outer))


def _find_writer(body: _NestBody, places: list[tuple[int, _AffineIndex]]) -> Iteration | None:
    """Return the iteration that writes these index values, solved for the variables; None if none is found."""
    found: dict[tile.Var, int] = {}
    for value, index in places:
        left = value - index.constant
        for var, factor in index.inner:
            if factor <= 0 or var in found:
                return None
            found[var], left = divmod(left, factor)
            if not 0 <= found[var] < body.extents[var]:
                return None
        if left:
            return None
    return found if found.keys() == body.extents.keys() else None
