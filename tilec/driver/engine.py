"""Run the table of `driver.pipeline` or a part of it: the passes in order, and the observer after each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from tilec.driver.front import make_kernel_observers
from tilec.driver.observer import Observer
from tilec.driver.pipeline import PIPELINE, Choice, FilePass, Pass
from tilec.driver.stages import SUFFIX, find_violations, format_stage, get_stage_value
from tilec.driver.work import ChoiceWithdrawn, File, Work
from tilec.support.diagnostics import CompileError, ErrorCollector, raise_error
from tilec.support.options import LAST_STAGE, CompileOptions, Stage, requested_verification
from tilec.support.source import SourceFile

KernelPass = Pass | Choice

_POSITIONS = {row.name: number for number, row in enumerate(PIPELINE, 1)}
_LAYOUTS_POSITION = _POSITIONS["assign-layouts"]
_PROBLEMS_POSITION = _POSITIONS["ping-pong"]


def read_file(source: SourceFile, options: CompileOptions, observer: Observer, *, is_single: bool = False) -> File:
    """Run the file passes of the front end, for all kernels or for the only one that is wanted."""
    return _run_file_passes(File(source, options, is_single), observer, is_front=True)


def check_kernels(source: SourceFile, options: CompileOptions, observer: Observer) -> File:
    """Find all errors of the kernels before anything is solved, and raise them together."""
    mistakes = ErrorCollector()
    file = File(source, options, mistakes=mistakes, is_checked_only=True)
    file = _run_file_passes(file, observer, is_front=True)
    for work, seen in zip(file.kernels, _make_observers(file, observer), strict=True):
        try:
            advance_kernel(work, seen)
        except CompileError as last:  # later passes could not run
            if not mistakes.met:  # else it may follow from an earlier error
                mistakes.add(last)
    mistakes.end()
    return file


def advance_kernel(work: Work, observer: Observer, *, behind: str | None = None, last: str | None = None) -> Work:
    """Run one kernel through the passes after `behind`, up to `last`; by default through all."""
    first = 0 if behind is None else _POSITIONS[behind]
    end = len(PIPELINE) if last is None else _POSITIONS[last]
    rows = [each for each in _list_kernel_passes() if first < each[0] <= end]
    states: dict[str, tuple[int, Work]] = {}
    index = 0
    while index < len(rows):
        number, row, form = rows[index]
        states[row.name] = index, work
        index += 1
        try:
            work = _run_row(work, observer, number, row, form)
        except ChoiceWithdrawn as found:
            index, work = states[found.row]
            work = replace(work, withdrawn_choices=(*work.withdrawn_choices, (found.row, found.why)))
            continue
        if row.gives is not None and row.gives == LAST_STAGE.get(work.options.opt_level):
            if work.is_checked_only:
                return work
            if number < end:
                _fail_without_code(work.options.opt_level)
    return work


def link_kernels(file: File, observer: Observer) -> File:
    """Link the file, whose kernels are all in PTX, into one cubin."""
    return _run_file_passes(file, observer, is_front=False)


def advance_kernels(file: File, observer: Observer, *, behind: str | None = None, last: str | None = None) -> File:
    """Return the file with each of its kernels advanced."""
    seen = _make_observers(file, observer)
    kernels = (advance_kernel(k, s, behind=behind, last=last) for k, s in zip(file.kernels, seen, strict=True))
    return replace(file, kernels=tuple(kernels))


def explore_kernel(work: Work, last: str) -> Work:
    """Run a kernel to `last` unobserved: without layouts from layout assignment on, else from its problems on."""
    first = _LAYOUTS_POSITION if work.layouts is None else _PROBLEMS_POSITION
    return advance_kernel(work, Observer(), behind=PIPELINE[first - 2].name, last=last)


def list_stopping_points() -> tuple[str, ...]:
    """Return all stages and passes in order: the names that `--stop-after` takes."""
    return tuple(dict.fromkeys((*(row.gives for row in PIPELINE if row.gives), *_POSITIONS)))


def find_position(name: str) -> int:
    """Return the table position of a pass, or of the row that completes a stage."""
    return _POSITIONS.get(name) or next(number for number, row in enumerate(PIPELINE, 1) if row.gives == name)


def find_stage_form(name: str) -> Stage:
    """Return the stage in whose form a kernel is shown after a stage or a pass."""
    forms = {row.name: form for _, row, form in _list_kernel_passes()}
    given: Stage = PIPELINE[find_position(name) - 1].gives or forms.get(name, "ast")
    return given


def _find_reason_off(row: KernelPass, work: Work) -> str | None:
    if work.is_checked_only and not (isinstance(row, Pass) and row.checks):
        return "it reports no errors, so `tilec check` skips it"
    return row.when(work.options, work.target) or (row.of(work.kernel) if isinstance(row, Pass) else None)


def _run_row(work: Work, observer: Observer, number: int, row: KernelPass, form: Stage) -> Work:
    is_unwanted = isinstance(row, Pass) and row.is_only_shown and not observer.is_wanted(row.gives, row.name)
    is_on = not is_unwanted and _find_reason_off(row, work) is None
    if is_on:
        observer.begins(row.name)
        work = _run_choice(row, work, observer) if isinstance(row, Choice) else row.run(work, observer)
    is_given = row.gives is not None and not is_unwanted and not work.is_checked_only
    if is_on or is_given:
        stage = row.gives or form
        work, broken = _verify_kernel(work, stage, row.gives is not None)
        observer.observe_pass(number, row.name, row.gives, SUFFIX[stage], partial(format_stage, stage, work), broken)
    return work


def _run_choice(row: Choice, work: Work, observer: Observer) -> Work:
    """Answer the choice's questions; return the kernel and record the decisions."""
    from tilec.passes.choices.question import answer_questions

    def explore_timed(considered: Work, last: str) -> Work:
        began = time.perf_counter()
        try:
            return explore_kernel(considered, last)
        finally:
            observer.explored(time.perf_counter() - began)

    work, decisions = answer_questions(row.asks(work, explore_timed))
    return replace(work, decisions=(*work.decisions, *decisions)) if decisions else work


def _verify_kernel(work: Work, stage: Stage, is_complete: bool) -> tuple[Work, Iterable[str]]:
    """Return the violations in this form, unless the same value was verified before. After a pass that completes no
    stage, kernels are verified only with `options.verification` or at a level without code."""
    level = "all" if work.options.verify else requested_verification()
    everything = bool(level) or work.options.opt_level == 0
    if not is_complete and (not everything or (stage == "warp" and level != "all")):
        return work, ()
    known = stage, is_complete and stage == "tile", get_stage_value(stage, work)
    if known == work.verified:
        return work, ()
    return replace(work, verified=known), find_violations(stage, work, is_complete=is_complete, everything=everything)


def _run_file_passes(file: File, observer: Observer, *, is_front: bool) -> File:
    first = next(number for number, _, _ in _list_kernel_passes())
    for number, row in enumerate(PIPELINE, 1):
        if isinstance(row, FilePass) and (number < first) == is_front:
            observer.begins(row.name)
            file = row.run(file, observer)
            suffix = SUFFIX[row.gives] if row.gives else None
            observer.observe_pass(number, row.name, row.gives, suffix, partial(format_stage, row.gives or "ast", file))
    return file


def _list_kernel_passes() -> Iterator[tuple[int, KernelPass, Stage]]:
    """Yield each kernel pass with its number and the form of the kernel after it."""
    form: Stage = "tile"
    for number, row in enumerate(PIPELINE, 1):
        if isinstance(row, FilePass):
            continue
        shows = row.shows if isinstance(row, Pass) else None
        is_aside = isinstance(row, Pass) and row.is_only_shown
        form = form if is_aside else row.gives or shows or form
        yield number, row, form


def _make_observers(file: File, observer: Observer) -> list[Observer]:
    return make_kernel_observers(observer, [work.kernel for work in file.kernels])


def _fail_without_code(level: int) -> None:
    raise_error(
        "level-without-code",
        f"-O{level} ends with stage {LAST_STAGE[level]} and makes no code",
        help="use -O2 or -O3",
    )
