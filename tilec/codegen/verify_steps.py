"""Verifies that the steps of a nest mean the same as its body; shares with `codegen.steps` only the classes of steps.

Both are executed once, in order, by value numbering: the same operation on the same values has the same number, and an
element has another number after each store to its buffer. The values, indices and conditions of all stores must agree,
and so must the values and conditions of all prints.

This finds a name with two values, a value computed after a store that changes it, and a lost condition. A value
computed under conditions must be used under all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from tilec.codegen.steps import Assignment, Definition, Output, Step
from tilec.ir import tile
from tilec.ir.rewrite import map_expressions
from tilec.ir.types import BOOL
from tilec.support.identity import Same

Effect = tuple[object, ...]
"""A store or a print: its target or text, the numbers of its indices and values, and those of its conditions."""


def step_violations(nest: tile.Parallel, steps: list[Step]) -> Iterator[str]:
    """Yield the lines in which the steps differ from the nest's body."""
    values = _Values()
    written, done = _Execution(values), _Execution(values)
    written.run_body(nest.body, frozenset())
    done.run_steps(steps)
    yield from done.said
    for (wanted, line), (found, _) in zip_longest(written.effects, done.effects, fillvalue=(None, 0)):
        if wanted != found:
            yield f"line {line}: the steps of the nest do not do what its body does"
            return


class _Values:
    """The numbers of all values. `a and b` is numbered by the set of its conjuncts, in any order."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        self.parts: dict[int, frozenset[int]] = {}

    def number(self, key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def conjuncts(self, number: int) -> frozenset[int]:
        return self.parts.get(number, frozenset({number}))

    def both(self, a: int, b: int) -> int:
        parts = self.conjuncts(a) | self.conjuncts(b)
        if len(parts) == 1:
            return a
        number = self.number(("and", parts))
        self.parts[number] = parts
        return number


class _Execution:
    """A run of the body or of its steps: the variables' values, and how often each buffer has been stored to."""

    def __init__(self, values: _Values) -> None:
        self.values = values
        self.variables: dict[tile.Var, int] = {}
        self.stores: Counter[tile.Buffer] = Counter()
        self.effects: list[tuple[Effect | None, int]] = []
        self.said: list[str] = []
        self.guards: dict[tile.Var, frozenset[int]] = {}

    def number(self, expr: tile.Expr) -> int:
        """Return the number of an expression's value."""
        known: dict[Same[tile.Expr], int] = {}  # by identity: repeated subexpressions are one object

        def find(part: tile.Expr) -> int:
            same = Same(part)
            if same not in known:
                known[same] = compute(part)
            return known[same]

        def compute(part: tile.Expr) -> int:
            if isinstance(part, tile.Var) and part in self.variables:
                return self.variables[part]
            if isinstance(part, tile.Binary) and part.op == "and":
                return self.values.both(find(part.a), find(part.b))
            version = self.stores[part.buffer] if isinstance(part, tile.Load) else 0
            numbered = map_expressions(part, lambda operand: tile.Var(f"#{find(operand)}", operand.dtype))
            return self.values.number((type(part), numbered, version))

        return find(expr)

    def hold(self, conditions: tuple[tile.Expr, ...]) -> frozenset[int]:
        """Return the numbers of all conjuncts of the conditions."""
        return frozenset().union(*(self.values.conjuncts(self.number(c)) for c in conditions))

    def define(self, var: tile.Var, number: int) -> None:
        if var in self.variables:
            self.said.append(f"{var.name} stands for two values")
        self.variables[var] = number

    def store(self, stmt: tile.Store, conditions: frozenset[int]) -> None:
        numbers = tuple(self.number(e) for e in (*stmt.indices, stmt.value))
        self.effects.append(((stmt.buffer.name, stmt.atomic, numbers, conditions), stmt.span.line))
        self.stores[stmt.buffer] += 1
        if stmt.previous is not None:
            self.define(stmt.previous, self.values.number(("previous", len(self.effects))))

    def print(self, text: str, values: tuple[tile.Expr, ...], conditions: frozenset[int], line: int) -> None:
        self.effects.append(((text, tuple(map(self.number, values)), conditions), line))

    def run_body(self, body: tuple[tile.Stmt, ...], conditions: frozenset[int]) -> None:
        for stmt in body:
            match stmt:
                case tile.Bind(var=var, value=value):
                    self.define(var, self.number(value))
                case tile.Store():
                    self.store(stmt, conditions)
                case tile.Print(text=text, values=values):
                    self.print(text, values, conditions, stmt.span.line)
                case tile.If(condition=condition, then=then, orelse=orelse):
                    whole = tile.Var(f"#{self.number(condition)}", BOOL)
                    self.variables[whole] = self.number(condition)
                    fails = self.hold((tile.Unary("not", whole, BOOL),))
                    self.run_body(then, conditions | self.hold((whole,)))
                    self.run_body(orelse, conditions | fails)
                case _:
                    self.said.append(f"line {stmt.span.line}: {type(stmt).__name__} inside a nest")

    def run_steps(self, steps: list[Step]) -> None:
        for step in steps:
            self.check_guards(step)
            match step:
                case Definition(var=var, value=value, conditions=conditions):
                    self.define(var, self.number(value))
                    self.guards[var] = self.hold(conditions)
                case Assignment(conditions=conditions, store=store):
                    self.store(store, self.hold(conditions))
                case Output(conditions=conditions, text=text, values=values):
                    self.print(text, values, self.hold(conditions), 0)

    def check_guards(self, step: Step) -> None:
        """Check that a step uses variables only under the conditions under which they were computed."""
        held: frozenset[int] = frozenset()
        for expr in (*step.conditions, *step.expressions):
            self.check_guarded(expr, held)
            if expr in step.conditions:
                held |= self.hold((expr,))

    def check_guarded(self, expr: tile.Expr, held: frozenset[int]) -> None:
        if isinstance(expr, tile.Var) and not held.issuperset(self.guards.get(expr, ())):
            self.said.append(f"{expr.name} is used where it has no value")
        for part in tile.children(expr):
            self.check_guarded(part, held)
            if (
                isinstance(expr, tile.Binary) and expr.op == "and"
            ):  # the second decides nothing where the first is false
                held |= self.hold((part,))
