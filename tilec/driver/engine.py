"""Run the table of `driver.pipeline` or a part of it: the passes in order, and the observer after each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from tilec.driver.front import observer_of_each
from tilec.driver.observer import Observer
from tilec.driver.pipeline import PIPELINE, Choice, FilePass, Pass
from tilec.driver.stages import SUFFIX, text_of, value_of, violations
from tilec.driver.work import File, Withdrawn, Work
from tilec.support.diagnostics import CompileError, Mistakes, fail
from tilec.support.options import LAST_STAGE, CompileOptions, Stage, verification
from tilec.support.source import SourceFile

KernelPass = Pass | Choice

_PLACE = {row.name: number for number, row in enumerate(PIPELINE, 1)}
_LAYOUTS = _PLACE["assign-layouts"]
_PROBLEMS = _PLACE["ping-pong"]


def read(source: SourceFile, options: CompileOptions, observer: Observer, *, is_single: bool = False) -> File:
    """Run the file passes of the front end, for all kernels or for the only one that is wanted."""
    return _through_file(File(source, options, is_single), observer, is_front=True)


def checked(source: SourceFile, options: CompileOptions, observer: Observer) -> File:
    """Find all errors of the kernels before anything is solved, and raise them together."""
    mistakes = Mistakes()
    file = File(source, options, mistakes=mistakes, is_checked_only=True)
    file = _through_file(file, observer, is_front=True)
    for work, seen in zip(file.kernels, _observers(file, observer), strict=True):
        try:
            advance(work, seen)
        except CompileError as last:  # later passes could not run
            if not mistakes.met:  # else it may follow from an earlier error
                mistakes.add(last)
    mistakes.end()
    return file


def advance(work: Work, observer: Observer, *, behind: str | None = None, last: str | None = None) -> Work:
    """Run one kernel through the passes after `behind`, up to `last`; by default through all."""
    first = 0 if behind is None else _PLACE[behind]
    end = len(PIPELINE) if last is None else _PLACE[last]
    rows = [each for each in _kernel_passes() if first < each[0] <= end]
    states: dict[str, tuple[int, Work]] = {}
    index = 0
    while index < len(rows):
        number, row, form = rows[index]
        states[row.name] = index, work
        index += 1
        try:
            work = _stepped(work, observer, number, row, form)
        except Withdrawn as found:
            index, work = states[found.row]
            work = replace(work, withdrawn=(*work.withdrawn, (found.row, found.why)))
            continue
        if row.gives is not None and row.gives == LAST_STAGE.get(work.options.opt_level):
            if work.is_checked_only:
                return work
            if number < end:
                _no_code(work.options.opt_level)
    return work


def linked(file: File, observer: Observer) -> File:
    """Link the file, whose kernels are all in PTX, into one cubin."""
    return _through_file(file, observer, is_front=False)


def each(file: File, observer: Observer, *, behind: str | None = None, last: str | None = None) -> File:
    """Return the file with each of its kernels advanced."""
    seen = _observers(file, observer)
    kernels = (advance(k, s, behind=behind, last=last) for k, s in zip(file.kernels, seen, strict=True))
    return replace(file, kernels=tuple(kernels))


def explored(work: Work, last: str) -> Work:
    """Run a kernel to `last` unobserved: without layouts from layout assignment on, else from its problems on."""
    first = _LAYOUTS if work.layouts is None else _PROBLEMS
    return advance(work, Observer(), behind=PIPELINE[first - 2].name, last=last)


def names() -> tuple[str, ...]:
    """Return all stages and passes in order: the names that `--stop-after` takes."""
    return tuple(dict.fromkeys((*(row.gives for row in PIPELINE if row.gives), *_PLACE)))


def place_of(name: str) -> int:
    """Return the table position of a pass, or of the row that completes a stage."""
    return _PLACE.get(name) or next(number for number, row in enumerate(PIPELINE, 1) if row.gives == name)


def form_of(name: str) -> Stage:
    """Return the stage in whose form a kernel is shown after a stage or a pass."""
    forms = {row.name: form for _, row, form in _kernel_passes()}
    given: Stage = PIPELINE[place_of(name) - 1].gives or forms.get(name, "ast")
    return given


def _why_off(row: KernelPass, work: Work) -> str | None:
    if work.is_checked_only and not (isinstance(row, Pass) and row.checks):
        return "it finds no mistakes"
    return row.when(work.options, work.target) or (row.of(work.kernel) if isinstance(row, Pass) else None)


def _stepped(work: Work, observer: Observer, number: int, row: KernelPass, form: Stage) -> Work:
    is_unwanted = isinstance(row, Pass) and row.is_only_shown and not observer.wants(row.gives, row.name)
    is_on = not is_unwanted and _why_off(row, work) is None
    if is_on:
        observer.begins(row.name)
        work = _chosen(row, work, observer) if isinstance(row, Choice) else row.run(work, observer)
    is_given = row.gives is not None and not is_unwanted and not work.is_checked_only
    if is_on or is_given:
        stage = row.gives or form
        work, broken = _verified(work, stage, row.gives is not None)
        observer.saw(number, row.name, row.gives, SUFFIX[stage], partial(text_of, stage, work), broken)
    return work


def _chosen(row: Choice, work: Work, observer: Observer) -> Work:
    """Answer the choice's questions; return the kernel and record the decisions."""
    from tilec.passes.choices.question import answered

    def explore(considered: Work, last: str) -> Work:
        began = time.perf_counter()
        try:
            return explored(considered, last)
        finally:
            observer.explored(time.perf_counter() - began)

    work, decisions = answered(row.asks(work, explore))
    return replace(work, decisions=(*work.decisions, *decisions)) if decisions else work


def _verified(work: Work, stage: Stage, is_complete: bool) -> tuple[Work, Iterable[str]]:
    """Return the violations in this form, unless the same value was verified before. After a pass that completes no
    stage, kernels are verified only with `options.verification` or at a level without code."""
    level = "all" if work.options.verify else verification()
    everything = bool(level) or work.options.opt_level == 0
    if not is_complete and (not everything or (stage == "warp" and level != "all")):
        return work, ()
    known = stage, is_complete and stage == "tile", value_of(stage, work)
    if known == work.verified:
        return work, ()
    return replace(work, verified=known), violations(stage, work, is_complete=is_complete, everything=everything)


def _through_file(file: File, observer: Observer, *, is_front: bool) -> File:
    first = next(number for number, _, _ in _kernel_passes())
    for number, row in enumerate(PIPELINE, 1):
        if isinstance(row, FilePass) and (number < first) == is_front:
            observer.begins(row.name)
            file = row.run(file, observer)
            suffix = SUFFIX[row.gives] if row.gives else None
            observer.saw(number, row.name, row.gives, suffix, partial(text_of, row.gives or "ast", file))
    return file


def _kernel_passes() -> Iterator[tuple[int, KernelPass, Stage]]:
    """Yield each kernel pass with its number and the form of the kernel after it."""
    form: Stage = "tile"
    for number, row in enumerate(PIPELINE, 1):
        if isinstance(row, FilePass):
            continue
        shows = row.shows if isinstance(row, Pass) else None
        is_aside = isinstance(row, Pass) and row.is_only_shown
        form = form if is_aside else row.gives or shows or form
        yield number, row, form


def _observers(file: File, observer: Observer) -> list[Observer]:
    return observer_of_each(observer, [work.kernel for work in file.kernels])


def _no_code(level: int) -> None:
    fail(
        "level-without-code",
        f"-O{level} ends with stage {LAST_STAGE[level]} and makes no code",
        help="use -O2 or -O3",
    )
