"""How much a file may evaluate at compile time, and how large what it makes may become.

Steps, not seconds: the same file is refused at the same place everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import NoReturn

from tilec.ir.tile import Expr, children
from tilec.ops.arithmetic import LONGEST
from tilec.ops.values import EXPR_TYPES, Dictionary, Value
from tilec.support.diagnostics import fail
from tilec.support.identity import Same
from tilec.support.records import dataclass
from tilec.support.source import Span

MAX_STEPS = 200_000
"""Statements and items of comprehensions that a file may evaluate at compile time: about a second."""

MAX_EXPRESSIONS = 1_000_000
"""Expressions in them, a part of another counted too."""

MAX_STATEMENTS = 10_000
"""Statements of a kernel, those of macros and of loops over values each time: about a second until they are read."""

_PER_COMPREHENSION = 10
"""Steps that beginning one takes."""

_PARTS_PER_STEP = 16
"""What Python's own functions look at in the time of a step: items of tuples, characters."""

MAX_OPERATIONS, MAX_DEPTH = 10_000, 200
"""Of an expression that the kernel computes, and of those inside each other, a value that stands there many times
counted each time: every pass walks it whole."""

MAX_NESTING = 100
"""Tuples inside each other: what the interpreter's own stack has room for."""

MAX_CALLS = 30
"""Calls inside each other: what the interpreter's own stack has room for."""


@dataclass(slots=True)
class Budget:
    """How much has been evaluated, and whether that was too much: what follows would be, too."""

    steps: int = 0
    expressions: int = 0
    statements: int = 0
    calls: int = 0
    is_spent: bool = False
    sizes: dict[Same[Expr], tuple[int, int]] = field(default_factory=dict)
    """By identity: an expression, how many operations there are in it, and how deep."""

    def step(self, span: Span, count: int = 1) -> None:
        self.steps += count
        if self.steps > MAX_STEPS:
            self._end("the evaluation does not end", span, f"{MAX_STEPS} steps had been made when it got here")

    def comprehension(self, span: Span) -> None:
        self.step(span, _PER_COMPREHENSION)

    def expression(self, span: Span) -> None:
        self.expressions += 1
        if self.expressions > MAX_EXPRESSIONS:
            said = f"{MAX_EXPRESSIONS} expressions had been evaluated when it got here"
            self._end("the evaluation does not end", span, said)

    def statement(self, span: Span) -> None:
        """One of the kernel's."""
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            said = f"{MAX_STATEMENTS} are the most, those of macros and of loops over values counted each time"
            self._end("the kernel has too many statements", span, said)

    def look(self, value: Value, span: Span) -> None:
        """Count all that is in a value, where something looks at all of it."""
        if isinstance(value, str | tuple | range | Dictionary):
            self.step(span, _parts(value, span) // _PARTS_PER_STEP)

    def grow(self, value: Value, span: Span) -> None:
        """What has just been made, where it is known at run time only."""
        if isinstance(value, EXPR_TYPES):
            count, depth = self._size(value)
            if count > MAX_OPERATIONS or depth > MAX_DEPTH:
                most = f"{MAX_OPERATIONS} operations, {MAX_DEPTH} of them inside each other, are the most"
                self._end("the expression becomes too large", span, most)

    def _size(self, expr: Expr) -> tuple[int, int]:
        if (known := self.sizes.get(Same(expr))) is not None:
            return known
        inner = [self._size(part) for part in children(expr)]
        found = 1 + sum(i[0] for i in inner), 1 + max((i[1] for i in inner), default=0)
        self.sizes[Same(expr)] = found
        return found

    def _end(self, title: str, span: Span, said: str) -> NoReturn:
        self.is_spent = True
        help_text = "what runs many times belongs into a loop of the kernel, T.serial or T.Parallel"
        fail("evaluation-too-long", title, span.first_line(), said, help=help_text)

    @contextmanager
    def call(self, span: Span) -> Iterator[None]:
        self.step(span)
        self.calls += 1
        try:
            if self.calls > MAX_CALLS:
                self.is_spent = True
                fail("evaluation-too-long", "too many calls inside each other", span, f"{MAX_CALLS} are the most")
            yield
        finally:
            self.calls -= 1


def _parts(value: Value, span: Span) -> int:
    """How many parts there are in a value, however deep; one that is there many times counts as often. No value has
    more than `LONGEST`: whoever made it asks here first."""
    count, found = 0, [(value, 0)]
    while found:
        one, depth = found.pop()
        if depth > MAX_NESTING:
            fail("evaluation-too-long", "tuples too deep inside each other", span, f"{MAX_NESTING} are the most")
        match one:
            case tuple():
                count += len(one)
                found += [(item, depth + 1) for item in one if isinstance(item, tuple | str | Dictionary)]
            case str():
                count += len(one)
            case Dictionary(entries=entries):
                count += len(entries)
                found += [(item, depth + 1) for e in entries for item in (e.key, e.value)]
            case range():
                count += len(one[: LONGEST + 1])
            case _:
                pass
        if count > LONGEST:
            fail("evaluation-too-long", "the result is too large", span, f"{LONGEST} items are the most")
    return count
