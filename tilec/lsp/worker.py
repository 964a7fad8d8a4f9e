"""A process that checks and schedules an editor's files, so that no failure ends the editor's server. It reads pickled
questions from standard input and writes pickled answers to standard output."""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, Literal

from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.support.source import SourceFile, Span

if TYPE_CHECKING:
    from tilec.driver.build import Plan

Notes = tuple[tuple[Span, str], ...]
"""Notes about places of the text, as Markdown."""

LENGTH = struct.Struct(">Q")
"""The prefix of each message: its length in bytes."""


@dataclass(frozen=True, slots=True)
class Question:
    """`check` finds errors and the values of names; `schedule` plans the kernels of a text without errors."""

    step: Literal["check", "schedule"]
    source: SourceFile
    options: CompileOptions


@dataclass(frozen=True, slots=True)
class Answer:
    """The results for a text: `source` with the files that it imports; `values` of names, by their definitions;
    `schedules` of statements and loops, and `layouts` of tiles, by their places. `bug` is an internal error."""

    source: SourceFile
    diagnostics: tuple[Diagnostic, ...] = ()
    values: Notes = ()
    schedules: Notes = ()
    layouts: Notes = ()
    bug: str | None = None

    @property
    def is_clean(self) -> bool:
        """Return whether the answer has neither an error among its diagnostics nor an internal error."""
        return self.bug is None and not any(d.severity == "error" for d in self.diagnostics)


def answer_question(question: Question) -> Answer:
    """Check or schedule a text, as the question says, and return the answer; errors and bugs become part of it."""
    try:
        return _check_file(question) if question.step == "check" else _schedule_file(question)
    except CompileError as error:
        return Answer(question.source, error.diagnostics)
    except (Exception, RecursionError) as error:
        return Answer(question.source, bug=f"{type(error).__name__}: {error}")


# ---- check -----------------------------------------------------------------------------------------------------------

_MAX_VALUES = 4
"""The most values shown for a name with several, as a macro's parameter, which differs between calls."""


def _check_file(question: Question) -> Answer:
    """Check a text, and return its errors and warnings, and notes on the values that its names get."""
    from tilec.driver.build import check_file
    from tilec.driver.observer import Observer
    from tilec.ops.language.values import PoisonedValue, Value, describe_value

    given: dict[Span, list[Value]] = {}

    def record_value(span: Span, value: Value) -> None:
        """Record a value of the name at a span, at most `_MAX_VALUES` of them and no poisoned one."""
        values = given.setdefault(span, [])
        if len(values) < _MAX_VALUES and not isinstance(value, PoisonedValue):
            values.append(value)

    observer = Observer(bound=record_value)
    found: tuple[Diagnostic, ...] = ()
    try:
        check_file(question.source, question.options, observer)
    except CompileError as error:
        found = error.diagnostics
    texts = {
        span: dict.fromkeys(_format_constant(v) or describe_value(v) for v in found) for span, found in given.items()
    }
    notes = tuple((span, ", or ".join(several)) for span, several in texts.items() if several)
    return Answer(question.source, (*found, *observer.warnings), notes)


def _format_constant(value: Any) -> str | None:
    """Return a constant, or a tuple of constants, as Markdown code; None for any other value."""
    if value is None or isinstance(value, bool | int | float | str):
        return f"`{value!r}`"
    if isinstance(value, tuple):
        parts = [_format_constant(part) for part in value]
        return None if None in parts else f"`({', '.join(p.strip('`') for p in parts if p is not None)})`"
    return None


# ---- schedule --------------------------------------------------------------------------------------------------------


def _schedule_file(question: Question) -> Answer:
    """Plan the kernels of a text, and return warnings and notes on their schedules and tile layouts."""
    from tilec.driver.build import plan_kernels
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Buffer
    from tilec.ops.language.values import Value

    tiles: dict[Span, Span] = {}

    def record_tile(span: Span, value: Value) -> None:
        """Record the span of the name that is bound to a buffer, by the span of its allocation."""
        if isinstance(value, Buffer):
            tiles[value.span] = span

    observer = Observer(bound=record_tile)
    plans = plan_kernels(question.source, question.options, observer)
    schedules = tuple(told for plan in plans for told in _schedule_notes(plan))
    layouts = tuple((tiles.get(span, span), told) for plan in plans for span, told in _list_layout_notes(plan))
    return Answer(question.source, tuple(observer.warnings), schedules=schedules, layouts=layouts)


def _schedule_notes(plan: Plan) -> Iterator[tuple[Span, str]]:
    """Yield the span of each planned loop and statement with its schedule in words."""
    from tilec.sched.trace import record_loop

    of = f" on {plan.target.name}"
    for planned in plan.loops:
        loop = record_loop(planned.loop.problem, planned.solution)
        span = planned.loop.loop.span
        rings = "".join(f"\n- {ring['name']}: {ring['depth']} versions" for ring in loop["rings"])
        pace = f"an iteration every {loop['ii']} cycles{of}"
        yield span.first_line(), f"{pace}, {loop['stages']} stages, {loop['status']}: {loop['proof']}{rings}"
        for op in planned.loop.own:
            record = loop["ops"][op]
            role = f", role {record['role']}" if record["role"] else ""
            place = f"stage {record['stage']}, order {record['order']}{role}"
            begin = f"begins {record['start']} cycles after its iteration"
            end = f"issues for {record['issue']} cycles, done after {record['latency']}"
            yield planned.loop.statements[op].span, f"{place}: {begin}, {end}; {pace}"


def _list_layout_notes(plan: Plan) -> Iterator[tuple[Span, str]]:
    """Yield the span of each tile's allocation with the layout of its shared memory or registers in words."""
    from tilec.ir.warp_text import show_fragment, show_shared

    for assignment in plan.assignment.kernels:
        for buffer in assignment.kernel.buffers:
            if buffer.name in assignment.shared:
                yield buffer.span, f"shared memory: {show_shared(assignment.shared[buffer.name])}"
            elif buffer.name in assignment.fragments:
                yield buffer.span, f"registers: {show_fragment(assignment.fragments[buffer.name])}"


# ---- the process -----------------------------------------------------------------------------------------------------


def _serve_questions(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Read pickled questions, each after its length, and write answers likewise, until the stream ends."""
    while len(head := questions.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        body = questions.read(length)
        if len(body) < length:
            return
        written = pickle.dumps(answer_question(pickle.loads(body)))
        answers.write(LENGTH.pack(len(written)) + written)
        answers.flush()


def main() -> None:
    """Answer questions from standard input on standard output; other output is sent to standard error."""
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve_questions(sys.stdin.buffer, answers)
