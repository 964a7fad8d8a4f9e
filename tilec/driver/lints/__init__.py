"""Lints: what makes a correct kernel slower than it looks, each with the line and the remedy.

Each is a file, in the folder of the stage whose value it looks at; the folder has no other list of them. For each stage
a pass shows them that value, and `judged` applies --lint once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tilec.driver.lints.registry import ASSEMBLER, LAYOUT, SCHEDULE, TILE, WARP, Seen, Stage, is_lint
from tilec.driver.observer import Observer, Stopped
from tilec.driver.work import File, Work
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions


def at(stage: Stage[Seen], value: Seen, options: CompileOptions, observer: Observer) -> None:
    """Shows the value of a stage to the lints that look at it; the observer keeps their warnings."""
    for look in stage.looks():
        for found in look(value):
            observer.warn(found, options)


@contextmanager
def judged(options: CompileOptions, observer: Observer) -> Iterator[None]:
    """Around the whole way of a compilation: at its end, or where it was to stop, `options.lint` says what becomes of
    lints. Raises `CompileError` with all of them where they are errors."""
    try:
        yield
    except Stopped:
        _judge(options, observer)
        raise
    _judge(options, observer)


def _judge(options: CompileOptions, observer: Observer) -> None:
    found = [warning for warning in observer.warnings if is_lint(warning.code)]
    if options.lint == "error" and found:
        raise CompileError(*(replace(lint, severity="error") for lint in found))
    if options.lint == "off":
        observer.warnings[:] = [warning for warning in observer.warnings if not is_lint(warning.code)]


# ---- the passes ------------------------------------------------------------------------------------------------------


def lint_tile(work: Work, observer: Observer) -> Work:
    """Lints of what the text says, as tiles that are read and never given a value."""
    if not work.mistakes.met:  # what is wrong may be what was to write them
        at(TILE, work, work.options, observer)
    return work


def lint_layout(work: Work, observer: Observer) -> Work:
    """Lints of layouts and of what copies and products go by."""
    at(LAYOUT, work, work.options, observer)
    return work


def lint_schedule(work: Work, observer: Observer) -> Work:
    """Lints of schedules, and of what they let meet."""
    at(SCHEDULE, work, work.options, observer)
    return work


def lint_warp(work: Work, observer: Observer) -> Work:
    """Lints of barriers."""
    at(WARP, work, work.options, observer)
    return work


def lint_assembler(file: File, observer: Observer) -> None:
    """Lints of what the assembler said."""
    at(ASSEMBLER, file, file.options, observer)
