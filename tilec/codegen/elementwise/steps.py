"""The body of a nest as a list of steps for one element."""

from __future__ import annotations

from dataclasses import field, replace
from itertools import count

from tilec.ir import tile
from tilec.ir.affine import affine_form
from tilec.ir.types import BOOL
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Assignment:
    """One store of the nest's body, with the conditions under which it happens."""

    conditions: tuple[tile.Expr, ...]
    store: tile.Store

    @property
    def expressions(self) -> tuple[tile.Expr, ...]:
        """Return the stored value, the indices and the conditions."""
        return (self.store.value, *self.store.indices, *self.conditions)

    @property
    def span(self) -> Span:
        return self.store.span


@dataclass(frozen=True, slots=True)
class Definition:
    """A value that later stores may change, so that it is computed here. It is used under these conditions only."""

    var: tile.Var
    value: tile.Expr
    conditions: tuple[tile.Expr, ...] = ()
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def expressions(self) -> tuple[tile.Expr, ...]:
        """Return the defined value and the conditions."""
        return (self.value, *self.conditions)


@dataclass(frozen=True, slots=True)
class Output:
    """A print, executed where these conditions hold; or with `stops` the end of the grid."""

    conditions: tuple[tile.Expr, ...]
    text: str
    values: tuple[tile.Expr, ...]
    span: Span = field(default=NOWHERE, compare=False)
    stops: bool = False

    @property
    def expressions(self) -> tuple[tile.Expr, ...]:
        """Return the printed values and the conditions."""
        return (*self.values, *self.conditions)


Step = Assignment | Definition | Output


def list_steps(nest: tile.Parallel) -> list[Step]:
    """Return the steps of a nest's body in program order: stores, prints, and values that later stores change.

    Binds and conditions are substituted into their uses, except those that read what the nest writes.
    """
    written = {s.buffer for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store)}
    found: list[Step] = []
    numbers = count()  # one for each condition, kept or not: two conditions of one name would become one value

    def bind_value(
        var: tile.Var,
        value: tile.Expr,
        conditions: tuple[tile.Expr, ...],
        values: dict[tile.Var, tile.Expr],
        span: Span,
    ) -> None:
        """Record a definition if the nest writes what the value reads, or it is computed once; else add to `values`."""
        value = tile.substitute_variables(value, values)
        if any(isinstance(e, tile.Load) and e.buffer in written for e in tile.walk_expr(value)):
            found.append(Definition(var, value, conditions, span))
        elif var.name.startswith(tile.ONCE_PREFIX):
            found.append(Definition(var, value, span=span))
        else:
            values[var] = value

    def visit_body(
        body: tuple[tile.Stmt, ...], conditions: tuple[tile.Expr, ...], values: dict[tile.Var, tile.Expr]
    ) -> None:
        """Append the steps of statements that run under these conditions, with known values substituted."""
        for stmt in body:
            match stmt:
                case tile.Bind(var=var, value=value):
                    bind_value(var, value, conditions, values, stmt.span)
                case tile.Store():
                    found.append(Assignment(conditions, _substitute_values(stmt, values)))
                case tile.Print(text=text, values=printed):
                    shown = tuple(tile.substitute_variables(v, values) for v in printed)
                    found.append(Output(conditions, text, shown, stmt.span, stmt.stops))
                case tile.If(condition=condition, then=then, orelse=orelse):
                    holds = tile.Var(f"%condition{next(numbers)}", BOOL)
                    bind_value(holds, condition, conditions, values, stmt.span)
                    tested = values.get(holds, holds)
                    visit_body(then, (*conditions, tested), dict(values))
                    visit_body(orelse, (*conditions, tile.Unary("not", tested, BOOL)), dict(values))
                case _:
                    raise InternalError(f"{type(stmt).__name__} inside T.Parallel")

    visit_body(nest.body, (), {})
    return found


def _substitute_values(store: tile.Store, values: dict[tile.Var, tile.Expr]) -> tile.Store:
    """Return the store with variables in its indices and value replaced by their values."""
    indices = tuple(tile.substitute_variables(i, values) for i in store.indices)
    return replace(store, indices=indices, value=tile.substitute_variables(store.value, values))


def stores_next_element(before: Step, after: Step) -> bool:
    """Return whether both steps are plain memory stores under equal conditions, `after` to the next element."""
    if not isinstance(before, Assignment) or not isinstance(after, Assignment):
        return False
    one, other = before.store, after.store
    if one.buffer != other.buffer or one.buffer.in_registers or before.conditions != after.conditions:
        return False
    if one.atomic is not None or other.atomic is not None or one.indices[:-1] != other.indices[:-1]:
        return False
    first, second = affine_form(one.indices[-1]), affine_form(other.indices[-1])
    return first.terms == second.terms and second.constant == first.constant + 1
