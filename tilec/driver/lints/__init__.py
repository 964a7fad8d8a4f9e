"""Lints: what makes a correct kernel slower than it looks, each with the line and the remedy.

Each is a file, in the folder of the stage whose value it looks at; the folder has no other list of them. The driver
calls `at` where that value is known, and ends with `judged`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tilec.driver.lints.registry import (
    ASSEMBLER as ASSEMBLER,
    LAYOUT as LAYOUT,
    SCHEDULE as SCHEDULE,
    TILE as TILE,
    WARP as WARP,
    AfterAssembly as AfterAssembly,
    AfterLayout as AfterLayout,
    AfterSchedule as AfterSchedule,
    AfterSynchronisation as AfterSynchronisation,
    Seen,
    Stage,
    is_lint,
)
from tilec.driver.observer import Observer, Stopped
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions


def at(stage: Stage[Seen], value: Seen, options: CompileOptions, observer: Observer) -> None:
    """Shows the value of a stage to the lints that look at it; the observer keeps their warnings."""
    for look in stage.looks():
        for found in look(value, options):
            observer.warn(found, options)


@contextmanager
def judged(options: CompileOptions, observer: Observer) -> Iterator[None]:
    """Around the whole way of a compilation: at its end, or where it was to stop, `options.lint` says what becomes of
    lints. Raises `CompileError` with all of them where they are errors."""
    try:
        yield
    except Stopped:
        judge(options, observer)
        raise
    judge(options, observer)


def judge(options: CompileOptions, observer: Observer) -> None:
    found = [warning for warning in observer.warnings if is_lint(warning.code)]
    if options.lint == "error" and found:
        raise CompileError(*(replace(lint, severity="error") for lint in found))
    if options.lint == "off":
        observer.warnings[:] = [warning for warning in observer.warnings if not is_lint(warning.code)]
