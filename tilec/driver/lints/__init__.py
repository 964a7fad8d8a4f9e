"""Lints: warnings about correct kernels that are slower than they look, with the line and a remedy.

Each lint is a function in the folder of the stage whose value it inspects; no other list of lints exists. A pass for
each stage runs its lints, and `apply_lints_at_end` applies --lint once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tilec.driver.lints.registry import ASSEMBLER, LAYOUT, SCHEDULE, TILE, WARP, LintStage, Seen, is_lint
from tilec.driver.observer import Observer, PipelineStopped
from tilec.passes.state import FileState, KernelState
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions


def run_lints(stage: LintStage[Seen], value: Seen, options: CompileOptions, observer: Observer) -> None:
    """Run the lints of a stage on its value, and give their warnings to the observer."""
    for lint in stage.load_lints():
        for warning in lint(value):
            observer.warn(warning, options)


@contextmanager
def apply_lints_at_end(options: CompileOptions, observer: Observer) -> Iterator[None]:
    """Apply --lint after the block, unless it fails: raise all lint warnings as errors, remove them, or keep them."""
    try:
        yield
    except PipelineStopped:
        _apply_lint_option(options, observer)
        raise
    _apply_lint_option(options, observer)


def _apply_lint_option(options: CompileOptions, observer: Observer) -> None:
    """Raise the observer's lint warnings as errors, or remove them, as --lint asks for."""
    found = [warning for warning in observer.warnings if is_lint(warning.code)]
    if options.lint == "error" and found:
        raise CompileError(*(replace(lint, severity="error") for lint in found))
    if options.lint == "off":
        observer.warnings[:] = [warning for warning in observer.warnings if not is_lint(warning.code)]


def lint_tile(work: KernelState, observer: Observer) -> None:
    """Run the lints of the kernel as written, such as tiles read but never written; none after an error."""
    if not work.mistakes.met:  # an erroneous statement may have been the missing write
        run_lints(TILE, work, work.options, observer)


def lint_layout(work: KernelState, observer: Observer) -> None:
    """Run the lints of layouts and of mechanisms for copies and products."""
    run_lints(LAYOUT, work, work.options, observer)


def lint_schedule(work: KernelState, observer: Observer) -> None:
    """Run the lints of schedules, and of statements that they overlap."""
    run_lints(SCHEDULE, work, work.options, observer)


def lint_warp(work: KernelState, observer: Observer) -> None:
    """Run the lints of barriers in the warp program."""
    run_lints(WARP, work, work.options, observer)


def lint_assembler(file: FileState, observer: Observer) -> None:
    """Run the lints of the assembler's remarks."""
    run_lints(ASSEMBLER, file, file.options, observer)
