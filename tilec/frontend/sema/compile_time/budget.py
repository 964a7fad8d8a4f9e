"""Limits on the evaluation at compile time, and on the size of its values.

They count steps, not seconds: the same file is refused at the same place everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import NoReturn

from tilec.ir.tile import Expr, direct_operands
from tilec.ops.language.arithmetic import MAX_LENGTH
from tilec.ops.language.values import EXPR_TYPES, Dictionary, Value
from tilec.support.diagnostics import raise_error
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.support.source import Span

MAX_STEPS = 200_000
"""The most statements and items of comprehensions evaluated at compile time: about a second."""
MAX_EXPRESSIONS = 1_000_000
"""The most expressions evaluated in them, each part of one counted too."""
MAX_STATEMENTS = 10_000
"""The most statements of a kernel. Those of macros and of loops over values count each time: about a second."""
_STEPS_PER_COMPREHENSION = 10
"""The steps that each comprehension takes by itself."""
_PARTS_PER_STEP = 16
"""The parts of values, items or characters, that a function of Python looks at in one step."""
MAX_OPERATIONS, MAX_DEPTH = 10_000, 200
"""The most operations of an expression of the kernel, and of those inside each other. A part that occurs many times
counts each time: every pass walks it whole."""

MAX_NESTING = 100
"""The most tuples inside each other that fit the stack of the interpreter."""
MAX_CALLS = 30
"""The most calls inside each other that fit the stack of the interpreter."""


@dataclass(slots=True)
class Budget:
    """The evaluation so far. `is_spent`: a limit was exceeded, so that the rest is not elaborated."""

    steps: int = 0
    expressions: int = 0
    statements: int = 0
    calls: int = 0
    is_spent: bool = False
    sizes: dict[IdentityKey[Expr], tuple[int, int]] = field(default_factory=dict)
    """By identity of an expression: the number and the depth of its operations."""

    def step(self, span: Span, count: int = 1) -> None:
        """Add to the count of compile-time steps, and raise `evaluation-too-long` above `MAX_STEPS`."""
        self.steps += count
        if self.steps > MAX_STEPS:
            note = f"the limit of {MAX_STEPS} steps was reached here"
            self._end("the evaluation at compile time takes too long", span, note)

    def count_comprehension(self, span: Span) -> None:
        self.step(span, _STEPS_PER_COMPREHENSION)

    def expression(self, span: Span) -> None:
        """Count one evaluated expression, and raise `evaluation-too-long` above `MAX_EXPRESSIONS`."""
        self.expressions += 1
        if self.expressions > MAX_EXPRESSIONS:
            note = f"the limit of {MAX_EXPRESSIONS} expressions was reached here"
            self._end("the evaluation at compile time takes too long", span, note)

    def statement(self, span: Span) -> None:
        """Count one statement of the kernel, and raise `evaluation-too-long` above `MAX_STATEMENTS`."""
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            note = f"{MAX_STATEMENTS} are the limit; macros and loops over values count each time they run"
            self._end("the kernel has too many statements", span, note)

    def look(self, value: Value, span: Span) -> Value:
        """Charge a step per 16 items and characters of a string, tuple, range or dictionary, and return the value
        unchanged. Items count at any depth, other values cost nothing. Errors: `evaluation-too-long`.
        """
        if isinstance(value, str | tuple | range | Dictionary):
            self.step(span, _count_parts(value, span) // _PARTS_PER_STEP)
        return value

    def check_expression_size(self, value: Value, span: Span) -> Value:
        """Return a value unchanged, but raise an error if it is a run-time expression too large or too deeply
        nested.
        """
        if isinstance(value, EXPR_TYPES):
            count, depth = self._measure_expression(value)
            if count > MAX_OPERATIONS or depth > MAX_DEPTH:
                limits = f"the limits are {MAX_OPERATIONS} operations and {MAX_DEPTH} levels of nesting"
                self._end("the expression becomes too large", span, limits)
        return value

    def _measure_expression(self, expr: Expr) -> tuple[int, int]:
        """Return the number of nodes of an expression, shared ones each time, and their nesting depth; cache both by
        identity.
        """
        if (cached := self.sizes.get(IdentityKey(expr))) is not None:
            return cached
        inner = [self._measure_expression(part) for part in direct_operands(expr)]
        size = 1 + sum(i[0] for i in inner), 1 + max((i[1] for i in inner), default=0)
        self.sizes[IdentityKey(expr)] = size
        return size

    def _end(self, title: str, span: Span, note: str) -> NoReturn:
        """Mark the budget as spent and raise `evaluation-too-long` with this title and note."""
        self.is_spent = True
        help_text = "write repeated work as a loop of the kernel, T.serial or T.Parallel"
        raise_error("evaluation-too-long", title, span.first_line(), note, help=help_text)

    @contextmanager
    def call(self, span: Span) -> Iterator[None]:
        """Count one step and one level of nested calls in the `with`, and raise an error above `MAX_CALLS` levels."""
        self.step(span)
        self.calls += 1
        try:
            if self.calls > MAX_CALLS:
                self.is_spent = True
                note = f"the limit is {MAX_CALLS} levels"
                raise_error("evaluation-too-long", "calls are nested too deeply", span, note)
            yield
        finally:
            self.calls -= 1


def _count_parts(value: Value, span: Span) -> int:
    """Count items and characters of a value at any depth; raise an error if too many or nested too deeply."""
    count, pending = 0, [(value, 0)]
    while pending:
        part, depth = pending.pop()
        if depth > MAX_NESTING:
            title = "tuples are nested too deeply"
            raise_error("evaluation-too-long", title, span, f"the limit is {MAX_NESTING} levels")
        match part:
            case tuple():
                count += len(part)
                pending += [(item, depth + 1) for item in part if isinstance(item, tuple | str | Dictionary)]
            case str():
                count += len(part)
            case Dictionary(entries=entries):
                count += len(entries)
                pending += [(item, depth + 1) for e in entries for item in (e.key, e.value)]
            case range():
                count += len(part[: MAX_LENGTH + 1])
            case _:
                pass
        if count > MAX_LENGTH:
            raise_error("evaluation-too-long", "the result is too large", span, f"the limit is {MAX_LENGTH} items")
    return count
