"""Verify that the steps of a nest mean what its body means; shares nothing with `codegen.steps` but their classes.

Both are executed once, in order. A value is a number, the same for the same operation on the same values; an element
that is read is another value after each store to its buffer. What each store sets, where and under which conditions,
and what each print writes, must agree.

A name that stands for two values, a value that is computed behind a store that changes it and a condition that is lost
all show as a difference here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from tilec.codegen.steps import Assignment, Definition, Output, Step
from tilec.ir import tile
from tilec.ir.rewrite import map_expressions
from tilec.ir.types import BOOL

Effect = tuple[object, ...]
"""A store or a print: what it is, and the numbers of its conditions, indices and values."""


def step_violations(nest: tile.Parallel, steps: list[Step]) -> Iterator[str]:
    """Say in which lines the steps do not do what the nest's body does."""
    values: dict[object, int] = {}
    written, done = _Execution(values), _Execution(values)
    written.run_body(nest.body, ())
    done.run_steps(steps)
    yield from done.said
    for (wanted, line), (found, _) in zip_longest(written.effects, done.effects, fillvalue=(None, 0)):
        if wanted != found:
            yield f"line {line}: the steps of the nest do not do what its body does"
            return


class _Execution:
    """A run of the body or of its steps: the variables' values, and how often each buffer has been stored to."""

    def __init__(self, values: dict[object, int]) -> None:
        self.values = values
        self.variables: dict[tile.Var, int] = {}
        self.stores: Counter[tile.Buffer] = Counter()
        self.effects: list[tuple[Effect | None, int]] = []
        self.said: list[str] = []

    def number(self, expr: tile.Expr) -> int:
        """Return the number of an expression's value."""
        if expr in self.variables:
            return self.variables[expr]  # type: ignore[index]  # a variable
        known: dict[int, tile.Var] = {}

        def operand(part: tile.Expr) -> tile.Var:
            if id(part) not in known:
                known[id(part)] = tile.Var(f"#{find(part)}", part.dtype)
            return known[id(part)]

        def find(part: tile.Expr) -> int:
            if isinstance(part, tile.Var) and part in self.variables:
                return self.variables[part]
            version = self.stores[part.buffer] if isinstance(part, tile.Load) else 0
            key = (type(part), map_expressions(part, operand), version)
            return self.values.setdefault(key, len(self.values))

        return find(expr)

    def define(self, var: tile.Var, number: int) -> None:
        if var in self.variables:
            self.said.append(f"{var.name} stands for two values")
        self.variables[var] = number

    def store(self, stmt: tile.Store, conditions: tuple[int, ...]) -> None:
        what = (*(self.number(e) for e in (*stmt.indices, stmt.value)), *conditions)
        self.effects.append(((stmt.buffer.name, stmt.atomic, *what), stmt.span.line))
        self.stores[stmt.buffer] += 1
        if stmt.previous is not None:
            self.define(stmt.previous, self.values.setdefault(("previous", len(self.effects)), len(self.values)))

    def print(self, text: str, values: tuple[tile.Expr, ...], conditions: tuple[int, ...], line: int) -> None:
        self.effects.append(((text, *(self.number(e) for e in values), *conditions), line))

    def run_body(self, body: tuple[tile.Stmt, ...], conditions: tuple[int, ...]) -> None:
        for stmt in body:
            match stmt:
                case tile.Bind(var=var, value=value):
                    self.define(var, self.number(value))
                case tile.Store():
                    self.store(stmt, conditions)
                case tile.Print(text=text, values=values):
                    self.print(text, values, conditions, stmt.span.line)
                case tile.If(condition=condition, then=then, orelse=orelse):
                    holds = tile.Var(f"#{self.number(condition)}", BOOL)
                    self.variables[holds] = self.number(condition)
                    self.run_body(then, (*conditions, self.number(holds)))
                    self.run_body(orelse, (*conditions, self.number(tile.Unary("not", holds, BOOL))))
                case _:
                    self.said.append(f"line {stmt.span.line}: {type(stmt).__name__} inside a nest")

    def run_steps(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Definition(var=var, value=value):
                    self.define(var, self.number(value))
                case Assignment(conditions=conditions, store=store):
                    self.store(store, tuple(map(self.number, conditions)))
                case Output(conditions=conditions, text=text, values=values):
                    self.print(text, values, tuple(map(self.number, conditions)), 0)
