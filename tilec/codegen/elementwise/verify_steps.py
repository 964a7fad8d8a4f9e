"""Verifies that the steps of a nest mean the same as its body; shares with `codegen.elementwise.steps` only the classes
of steps.

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

from tilec.codegen.elementwise.steps import Assignment, Definition, Output, Step
from tilec.ir import tile
from tilec.ir.rewrite import map_expressions
from tilec.ir.types import BOOL
from tilec.support.identity import IdentityKey

Effect = tuple[object, ...]
"""A store or a print: its target or text, the numbers of its indices and values, and those of its conditions."""


def find_step_violations(nest: tile.Parallel, steps: list[Step]) -> Iterator[str]:
    """Yield what is wrong with the steps: misused variables, and the first effect that differs from the nest's body."""
    values = _ValueNumbering()
    written, done = _Execution(values), _Execution(values)
    written.run_body(nest.body, frozenset())
    done.run_steps(steps)
    yield from done.said
    for (wanted, line), (found, _) in zip_longest(written.effects, done.effects, fillvalue=(None, 0)):
        if wanted != found:
            yield f"line {line}: the steps of the nest do not do what its body does"
            return


class _ValueNumbering:
    """The numbers of all values. `a and b` is numbered by the set of its conjuncts, in any order."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        self.parts: dict[int, frozenset[int]] = {}

    def number_key(self, key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def get_conjuncts(self, number: int) -> frozenset[int]:
        """Return the numbers of the conjuncts of a numbered condition; itself if it is no conjunction."""
        return self.parts.get(number, frozenset({number}))

    def number_conjunction(self, a: int, b: int) -> int:
        """Return the number of `a and b`, which is the same for the same conjuncts in any order."""
        parts = self.get_conjuncts(a) | self.get_conjuncts(b)
        if len(parts) == 1:
            return a
        number = self.number_key(("and", parts))
        self.parts[number] = parts
        return number


class _Execution:
    """A run of the body or of its steps: the variables' values, and how often each buffer has been stored to."""

    def __init__(self, values: _ValueNumbering) -> None:
        self.values = values
        self.variables: dict[tile.Var, int] = {}
        self.stores: Counter[tile.Buffer] = Counter()
        self.effects: list[tuple[Effect | None, int]] = []
        self.said: list[str] = []
        self.guards: dict[tile.Var, frozenset[int]] = {}

    def number_value(self, expr: tile.Expr) -> int:
        """Return the number of an expression's value at this point: equal for the same operation on the same values."""
        known: dict[IdentityKey[tile.Expr], int] = {}  # by identity: repeated subexpressions are one object

        def find_number(part: tile.Expr) -> int:
            """Return the number of a subexpression, computed once per object."""
            same = IdentityKey(part)
            if same not in known:
                known[same] = compute_number(part)
            return known[same]

        def compute_number(part: tile.Expr) -> int:
            """Return the number of a subexpression from its operands' numbers and, for a load, the buffer's version."""
            if isinstance(part, tile.Var) and part in self.variables:
                return self.variables[part]
            if isinstance(part, tile.Binary) and part.op == "and":
                return self.values.number_conjunction(find_number(part.a), find_number(part.b))
            version = self.stores[part.buffer] if isinstance(part, tile.Load) else 0
            numbered = map_expressions(part, lambda operand: tile.Var(f"#{find_number(operand)}", operand.dtype))
            return self.values.number_key((type(part), numbered, version))

        return find_number(expr)

    def number_conditions(self, conditions: tuple[tile.Expr, ...]) -> frozenset[int]:
        """Return the numbers of all conjuncts of the conditions, as a set."""
        return frozenset().union(*(self.values.get_conjuncts(self.number_value(c)) for c in conditions))

    def define_variable(self, var: tile.Var, number: int) -> None:
        """Set a variable's value number, and report it if it has one already."""
        if var in self.variables:
            self.said.append(f"{var.name} stands for two values")
        self.variables[var] = number

    def record_store(self, stmt: tile.Store, conditions: frozenset[int]) -> None:
        """Record a store's effect under these conditions, and count it, so that later loads of the buffer differ."""
        numbers = tuple(self.number_value(e) for e in (*stmt.indices, stmt.value))
        self.effects.append(((stmt.buffer.name, stmt.atomic, numbers, conditions), stmt.span.line))
        self.stores[stmt.buffer] += 1
        if stmt.previous is not None:
            self.define_variable(stmt.previous, self.values.number_key(("previous", len(self.effects))))

    def record_print(self, text: str, values: tuple[tile.Expr, ...], conditions: frozenset[int], line: int) -> None:
        """Record a print's effect: its text, value numbers and conditions."""
        self.effects.append(((text, tuple(map(self.number_value, values)), conditions), line))

    def run_body(self, body: tuple[tile.Stmt, ...], conditions: frozenset[int]) -> None:
        """Execute statements of the nest under these conditions, and record their effects."""
        for stmt in body:
            match stmt:
                case tile.Bind(var=var, value=value):
                    self.define_variable(var, self.number_value(value))
                case tile.Store():
                    self.record_store(stmt, conditions)
                case tile.Print(text=text, values=values):
                    self.record_print(text, values, conditions, stmt.span.line)
                case tile.If(condition=condition, then=then, orelse=orelse):
                    whole = tile.Var(f"#{self.number_value(condition)}", BOOL)
                    self.variables[whole] = self.number_value(condition)
                    fails = self.number_conditions((tile.Unary("not", whole, BOOL),))
                    self.run_body(then, conditions | self.number_conditions((whole,)))
                    self.run_body(orelse, conditions | fails)
                case _:
                    self.said.append(f"line {stmt.span.line}: {type(stmt).__name__} inside a nest")

    def run_steps(self, steps: list[Step]) -> None:
        """Execute the steps, check that their variables have values, and record their effects."""
        for step in steps:
            self.check_guards(step)
            match step:
                case Definition(var=var, value=value, conditions=conditions):
                    self.define_variable(var, self.number_value(value))
                    self.guards[var] = self.number_conditions(conditions)
                case Assignment(conditions=conditions, store=store):
                    self.record_store(store, self.number_conditions(conditions))
                case Output(conditions=conditions, text=text, values=values):
                    self.record_print(text, values, self.number_conditions(conditions), 0)

    def check_guards(self, step: Step) -> None:
        """Report variables that a step uses outside the conditions under which they were computed."""
        held: frozenset[int] = frozenset()
        for expr in (*step.conditions, *step.expressions):
            self.check_guarded_uses(expr, held)
            if expr in step.conditions:
                held |= self.number_conditions((expr,))

    def check_guarded_uses(self, expr: tile.Expr, held: frozenset[int]) -> None:
        """Report variables in an expression that have no value where only the conditions `held` are known to hold."""
        if isinstance(expr, tile.Var) and not held.issuperset(self.guards.get(expr, ())):
            self.said.append(f"{expr.name} is used where it has no value")
        for part in tile.direct_operands(expr):
            self.check_guarded_uses(part, held)
            # The second decides nothing where the first is false.
            if isinstance(expr, tile.Binary) and expr.op == "and":
                held |= self.number_conditions((part,))
