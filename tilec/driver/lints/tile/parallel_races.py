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

from tilec.driver.lints.registry import TILE, warns
from tilec.driver.work import Work
from tilec.ir import tile
from tilec.ir.affine import affine
from tilec.passes.analysis.fold_constants import compute_expr
from tilec.passes.analysis.usage import expressions
from tilec.support.diagnostics import Diagnostic, Label, warning
from tilec.support.records import dataclass
from tilec.support.source import Span

Conditions = tuple[tuple[tile.Expr, bool], ...]
"""Conditions, each with the value that it must have."""
Point = Mapping[tile.Var, int]
"""The values of the nest's variables."""

_MOST_PARTS = 32
"""The most expression nodes of a name's value that is substituted. Larger values are no index of a neighbour."""
_MOST_TRIED = 64
"""Iterations of a variable for which a condition is evaluated."""
_COMBINING = {"add": "sum", "max": "max", "min": "min"}
"""The names of atomic operations and reductions, by operator."""


@warns(TILE)
def parallel_races(work: Work) -> Iterator[Diagnostic]:
    """Yield a warning for each racing write and read, once for each place in the text."""
    warned: set[tuple[str, Span]] = set()
    for nest in tile.walk(work.source_kernel.body):
        if not isinstance(nest, tile.Parallel) or nest.is_per_thread or max(nest.extents) == 1:
            continue
        body, file = _Body(nest), work.source.of(nest.span)
        line = file.lines[nest.span.line - 1] if 0 < nest.span.line <= len(file.lines) else ""
        for found in (*_repeated_writes(body, line), *_neighbour_reads(body)):
            if found.primary is not None and (found.code, found.primary.span) not in warned:
                warned.add((found.code, found.primary.span))
                yield found


@dataclass(frozen=True, slots=True)
class _Write:
    """A store that is not atomic, and the conditions under which it runs."""

    stmt: tile.Store
    conditions: Conditions


@dataclass(frozen=True, slots=True)
class _Read:
    """A load, its statement, and the conditions under which it runs."""

    load: tile.Load
    span: Span
    conditions: Conditions


class _Body:
    """The writes and reads of a nest, with names replaced by their values."""

    def __init__(self, nest: tile.Parallel) -> None:
        self.extents = {v: e for v, e in zip(nest.vars, nest.extents, strict=True) if e > 1}
        self.writes: list[_Write] = []
        self.reads: list[_Read] = []
        self._bound: dict[tile.Var, tile.Expr] = {}
        self._depends: dict[tile.Var, frozenset[tile.Var | tile.Buffer]] = {v: frozenset((v,)) for v in self.extents}
        self._add(nest.body, ())

    def _add(self, body: tuple[tile.Stmt, ...], conditions: Conditions) -> None:
        for stmt in body:
            for expr in expressions(stmt):
                self.reads += (_Read(load, stmt.span, c) for load, c in self._loads(expr, conditions))
            match stmt:
                case tile.If(condition=condition, then=then, orelse=orelse):
                    condition = self.expanded(condition)
                    self._add(then, (*conditions, (condition, True)))
                    self._add(orelse, (*conditions, (condition, False)))
                case tile.Bind(var=var, value=value):
                    self._depends[var] = self.depends_on(value)
                    value = self.expanded(value)
                    if sum(1 for _ in tile.walk_expr(value)) <= _MOST_PARTS:
                        self._bound[var] = value
                case tile.Store(atomic=None, buffer=buffer) if buffer.scope in ("global", "shared", "fragment"):
                    self.writes.append(_Write(stmt, conditions))
                case tile.Store(previous=tile.Var() as previous):
                    self._depends[previous] = frozenset(self.extents)

    def _loads(self, expr: tile.Expr, conditions: Conditions) -> Iterator[tuple[tile.Load, Conditions]]:
        """Yield the loads of an expression. Either side of a select has its condition as well."""
        if isinstance(expr, tile.Load):
            yield expr, conditions
        for child in tile.children(expr):
            under = conditions
            if isinstance(expr, tile.Select) and child is not expr.condition:
                under = (*conditions, (self.expanded(expr.condition), child is expr.then))
            yield from self._loads(child, under)

    def expanded(self, expr: tile.Expr) -> tile.Expr:
        """Substitute the values of names."""
        return tile.substitute(expr, self._bound) if self._bound else expr

    def depends_on(self, *exprs: tile.Expr) -> frozenset[tile.Var | tile.Buffer]:
        """Return the nest's variables and the buffers on which the expressions depend."""
        found: set[tile.Var | tile.Buffer] = set()
        for part in (part for expr in exprs for part in tile.walk_expr(expr)):
            if isinstance(part, tile.Var):
                found |= self._depends.get(part, frozenset())
            elif isinstance(part, tile.Load):
                found.add(part.buffer)
        return frozenset(found)

    def holds(self, conditions: Conditions, point: Point) -> bool | None:
        """Return whether conditions hold in an iteration; None if unknown. Conditions that are equal in all iterations
        hold."""
        answers = []
        for condition, wanted in conditions:
            if self.depends_on(condition) & self.extents.keys():
                value = compute_expr(condition, point)
                answers.append(None if value is None else bool(value) == wanted)
        return False if False in answers else None if None in answers else True


# ---- writes ----------------------------------------------------------------------------------------------------------


def _repeated_writes(body: _Body, line: str) -> Iterator[Diagnostic]:
    for write in body.writes:
        store = write.stmt
        named = body.depends_on(*store.indices)
        made_of = body.depends_on(store.value)
        adds = store.buffer in made_of
        for var in body.extents:
            if var not in named and (adds or var in made_of) and _is_repeated(body, write, var, adds):
                yield _repeated_write(store, _written_name(var, line), body.extents[var])
                break


def _is_repeated(body: _Body, write: _Write, var: tile.Var, adds: bool) -> bool:
    """Return whether several iterations of a variable write, for some sampled values of the others."""
    others = {other: sorted({0, 1, extent - 1}) for other, extent in body.extents.items() if other != var}
    for values in product(*others.values()):
        point = dict(zip(others, values, strict=True))
        tried = range(min(body.extents[var], _MOST_TRIED))
        answers = [body.holds(write.conditions, {**point, var: value}) for value in tried]
        if answers.count(True) > 1:
            return True
        if None in answers:  # a condition on data selects a single iteration only by chance
            made_of = body.depends_on(*(condition for condition, _ in write.conditions))
            return adds and any(isinstance(part, tile.Buffer) for part in made_of)
    return False


def _repeated_write(store: tile.Store, var: str, extent: int) -> Diagnostic:
    name = store.buffer.name
    kind = _COMBINING.get(store.value.op) if isinstance(store.value, tile.Binary) else None
    if kind is None or not any(_is_same_place(part, store) for part in tile.children(store.value)):
        way_out = f"name `{var}` in the index, or write {name} outside of the loop"
    elif store.buffer.scope == "fragment":
        way_out = f"put the values in a tile and write T.reduce_{kind}(tile, {name})"
    else:
        way_out = f"write T.atomic_{kind.replace('sum', 'add')}({name}[…], value)"
    return warning(
        "repeated-write",
        f"{extent} iterations write the same element of {name} at the same time, and one of them is left",
        store.span,
        f"the index leaves out `{var}`",
        help=way_out,
    )


def _written_name(var: tile.Var, line: str) -> str:
    """Return the name of a variable as the line of its loop has it: where two loops have one, the second is renamed."""
    return var.name if re.search(rf"\b{var.name}\b", line) else var.name.rpartition("_")[0] or var.name


def _is_same_place(part: tile.Expr, store: tile.Store) -> bool:
    return isinstance(part, tile.Load) and (part.buffer, part.indices) == (store.buffer, store.indices)


# ---- reads -----------------------------------------------------------------------------------------------------------


def _neighbour_reads(body: _Body) -> Iterator[Diagnostic]:
    for read in body.reads:
        if read.load.buffer.scope == "fragment":
            continue  # elements of other threads are read through shared memory, as they were before the loop
        for write in body.writes:
            if read.load.buffer == write.stmt.buffer and _collide(body, read, write):
                name = read.load.buffer.name
                also = () if write.stmt.span == read.span else (Label(write.stmt.span, "written here"),)
                yield warning(
                    "neighbour-read",
                    f"this reads an element of {name} that another iteration writes at the same time",
                    read.span,
                    "before or after that: nothing says which",
                    secondary=also,
                    help=f"read a copy of {name} made before the loop, or write a T.serial loop",
                )
                break


def _collide(body: _Body, read: _Read, write: _Write) -> bool:
    """Return whether some iteration reads what another one writes."""
    reads = [_parts(body, index) for index in read.load.indices]
    writes = [_parts(body, index) for index in write.stmt.indices]
    pairs = []
    for a, b in zip(reads, writes, strict=True):
        if a is None or b is None or a.outer != b.outer:
            return False
        pairs.append((a, b))
    if all(a == b for a, b in pairs):
        return False
    for values in product(*(sorted({0, 1, extent // 2, extent - 1}) for extent in body.extents.values())):
        reader = dict(zip(body.extents, values, strict=True))
        writer = _writer(body, [(a.at(reader), b) for a, b in pairs])
        if writer is None or writer == reader or body.holds(read.conditions, reader) is not True:
            continue
        if body.holds(write.conditions, writer) is True:
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Index:
    """An affine index: the nest's variables with factors, largest first, a constant, and terms invariant in the
    nest."""

    inner: tuple[tuple[tile.Var, int], ...]
    constant: int
    outer: frozenset[tuple[tile.Expr, int]]

    def at(self, point: Point) -> int:
        """Return its value in an iteration, without the invariant terms."""
        return self.constant + sum(factor * point[var] for var, factor in self.inner)


def _parts(body: _Body, index: tile.Expr) -> _Index | None:
    """Return an index as an affine sum; None if another of its terms depends on the nest's variables."""
    form = affine(body.expanded(index))
    inner = [(atom, factor) for atom, factor in form.terms if isinstance(atom, tile.Var) and atom in body.extents]
    outer = [(atom, factor) for atom, factor in form.terms if not (isinstance(atom, tile.Var) and atom in body.extents)]
    if body.depends_on(*(atom for atom, _ in outer)):
        return None
    inner.sort(key=lambda term: -term[1])
    return _Index(tuple(inner), form.constant, frozenset(outer))


def _writer(body: _Body, places: list[tuple[int, _Index]]) -> Point | None:
    """Return the iteration that writes an element, by solving each index for its variables; None if none is found."""
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
