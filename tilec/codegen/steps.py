"""What the body of a nest does for one element, as a list of steps."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.affine import affine
from tilec.ir.tile import (
    ONCE,
    Bind,
    Expr,
    If,
    Load,
    Parallel,
    Print,
    Stmt,
    Store,
    Unary,
    Var,
    substitute,
    walk,
    walk_expr,
)
from tilec.ir.types import BOOL
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """One store of the nest's body, with the conditions under which it happens."""

    conditions: tuple[Expr, ...]
    store: Store

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.store.value, *self.store.indices, *self.conditions)


@dataclass(frozen=True, slots=True)
class Definition:
    """A value that stores after it may change, and so is computed here once and for all."""

    var: Var
    value: Expr

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True, slots=True)
class Output:
    """What is printed where these conditions hold."""

    conditions: tuple[Expr, ...]
    text: str
    values: tuple[Expr, ...]

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (*self.values, *self.conditions)


Step = Assignment | Definition | Output


def steps(nest: Parallel) -> list[Step]:
    """The stores of a nest in program order. Binds and conditions are put in where they are used, except those that
    read what the nest writes."""
    written = {s.buffer for s in walk(nest.body) if isinstance(s, Store)}
    found: list[Step] = []

    def fixed(var: Var, value: Expr, values: dict[Var, Expr]) -> None:
        value = substitute(value, values)
        if var.name.startswith(ONCE) or any(isinstance(e, Load) and e.buffer in written for e in walk_expr(value)):
            found.append(Definition(var, value))
        else:
            values[var] = value

    def visit(body: tuple[Stmt, ...], conditions: tuple[Expr, ...], values: dict[Var, Expr]) -> None:
        for stmt in body:
            match stmt:
                case Bind(var=var, value=value):
                    fixed(var, value, values)
                case Store():
                    found.append(Assignment(conditions, _substituted(stmt, values)))
                case Print(text=text, values=printed):
                    found.append(Output(conditions, text, tuple(substitute(v, values) for v in printed)))
                case If(condition=condition, then=then, orelse=orelse):
                    holds = Var(f"%condition{len(found)}", BOOL)
                    fixed(holds, condition, values)
                    tested = values.get(holds, holds)
                    visit(then, (*conditions, tested), dict(values))
                    visit(orelse, (*conditions, Unary("not", tested, BOOL)), dict(values))
                case _:
                    raise InternalError(f"{type(stmt).__name__} inside T.Parallel")

    visit(nest.body, (), {})
    return found


def _substituted(store: Store, values: dict[Var, Expr]) -> Store:
    indices = tuple(substitute(i, values) for i in store.indices)
    return replace(store, indices=indices, value=substitute(store.value, values))


def follows(before: Step, after: Step) -> bool:
    """Whether one store sets the neighbour of the other's element, under the same conditions."""
    if not isinstance(before, Assignment) or not isinstance(after, Assignment):
        return False
    one, other = before.store, after.store
    if one.buffer != other.buffer or one.buffer.in_registers or before.conditions != after.conditions:
        return False
    if one.atomic is not None or other.atomic is not None or one.indices[:-1] != other.indices[:-1]:
        return False
    first, second = affine(one.indices[-1]), affine(other.indices[-1])
    return first.terms == second.terms and second.constant == first.constant + 1
