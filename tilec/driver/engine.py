"""Run the table of `driver.pipeline` or a part of it: the passes in order, and the observer after each."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tilec.driver.observer import Observer
from tilec.driver.pipeline import PIPELINE, Choice, FilePass, Lints, Pass
from tilec.driver.stages import SUFFIX, find_violations, format_stage, get_stage_value
from tilec.passes.state import ChoiceWithdrawn, Explorer, FileState, KernelState
from tilec.support.diagnostics import CompileError, ErrorCollector, Label, raise_error
from tilec.support.options import LAST_STAGE, STAGES, CompileOptions, Stage, requested_verification
from tilec.support.source import SourceFile

KernelPass = Pass | Choice

_POSITIONS = {row.name: number for number, row in enumerate(PIPELINE, 1)}
_LAYOUTS_ROW, _PROBLEMS_ROW = "assign-role-layouts", "choose-ping-pong"
"""The rows at which an exploration begins, for a kernel without layouts and with layouts."""


def read_file(source: SourceFile, options: CompileOptions, observer: Observer, *, is_single: bool = False) -> FileState:
    """Run the front end's file passes, from text to tile IR, for all kernels or for the only one wanted."""
    return _run_file_passes(FileState(source, options, is_single), observer, is_front=True)


def check_kernels(source: SourceFile, options: CompileOptions, observer: Observer) -> FileState:
    """Run the checks of all kernels without solving anything, and raise the errors found together."""
    mistakes = ErrorCollector()
    file = FileState(source, options, mistakes=mistakes, is_checked_only=True)
    file = _run_file_passes(file, observer, is_front=True)
    for state, seen in zip(file.kernels, _make_observers(file, observer), strict=True):
        try:
            advance_kernel(state, seen)
        except CompileError as last:  # later passes could not run
            if not mistakes.met:  # else it may follow from an earlier error
                mistakes.add(last)
    mistakes.end()
    return file


def advance_kernel(
    state: KernelState, observer: Observer, *, behind: str | None = None, last: str | None = None
) -> KernelState:
    """Run a kernel through the passes after `behind`, up to `last`; raise an error if -O ends before that.

    By default through all. A withdrawn choice starts again at its row.
    """
    first = 0 if behind is None else _POSITIONS[behind]
    end = len(PIPELINE) if last is None else _POSITIONS[last]
    rows = [each for each in _list_kernel_passes() if first < each[0] <= end]
    states: dict[str, tuple[int, KernelState, int]] = {}
    index = 0
    while index < len(rows):
        number, row, form = rows[index]
        states[row.name] = index, state, len(observer.warnings)
        index += 1
        try:
            state = _run_row(state, observer, number, row, form)
        except ChoiceWithdrawn as found:
            index, state, count = states[found.since]
            del observer.warnings[count:]  # that code is not made
            withdrawn = (*state.search.withdrawn_choices, (found.row, found.why))
            state = replace(state, search=replace(state.search, withdrawn_choices=withdrawn))
            continue
        if row.gives is not None and row.gives == LAST_STAGE.get(state.options.opt_level):
            if state.is_checked_only:
                return state
            if number < end:
                without = f"-O{state.options.opt_level} ends with stage {row.gives} and makes no code"
                raise_error("level-without-code", without, help="use -O2 or -O3")
    return state


def link_kernels(file: FileState, observer: Observer) -> FileState:
    """Run the file passes after the kernel passes: join all kernels' PTX and assemble one cubin."""
    return _run_file_passes(file, observer, is_front=False)


def advance_kernels(file: FileState, observer: Observer, *, last: str | None = None) -> FileState:
    """Return the file with each kernel run through the passes up to `last`, or all."""
    seen = _make_observers(file, observer)
    kernels = (advance_kernel(k, s, last=last) for k, s in zip(file.kernels, seen, strict=True))
    return replace(file, kernels=tuple(kernels))


def explore_kernel(state: KernelState, last: str) -> KernelState:
    """Return a kernel run to pass `last` without an observer, to compare variants of a choice.

    It begins at layout assignment for a kernel without layouts, else where scheduling problems are built.
    """
    first = _POSITIONS[_LAYOUTS_ROW if state.layouts is None else _PROBLEMS_ROW]
    return advance_kernel(state, Observer(), behind=PIPELINE[first - 2].name, last=last)


def list_stopping_points() -> tuple[str, ...]:
    """Return the names of all stages and passes, which `--stop-after` takes."""
    return tuple(dict.fromkeys((*(row.gives for row in PIPELINE if row.gives), *_POSITIONS)))


def find_position(name: str) -> int:
    """Return the table position of a pass, or of the row that completes a stage."""
    return _POSITIONS.get(name) or next(number for number, row in enumerate(PIPELINE, 1) if row.gives == name)


def find_stage_form(name: str) -> Stage:
    """Return the stage in whose form a kernel is shown after a stage or a pass."""
    forms = {row.name: form for _, row, form in _list_kernel_passes()}
    given: Stage = PIPELINE[find_position(name) - 1].gives or forms.get(name, "ast")
    return given


def _find_reason_off(row: KernelPass, state: KernelState) -> str | None:
    """Return the reason why a pass does not run on this kernel, or None if it does."""
    if state.is_checked_only and not (isinstance(row, Pass) and row.checks):
        return "it reports no errors, so `tilec check` skips it"
    why = row.when(state.options, state.target) if row.when else None
    return why or (row.of(state.kernel) if isinstance(row, Pass) and row.of else None)


def _run_row(state: KernelState, observer: Observer, number: int, row: KernelPass, form: Stage) -> KernelState:
    """Run one row of the table on a kernel if it applies, verify the result, and report it to the observer."""
    is_unwanted = isinstance(row, Pass) and row.is_only_shown and not observer.is_wanted(row.gives, row.name)
    is_on = not is_unwanted and _find_reason_off(row, state) is None
    if row.name == _LAYOUTS_ROW:
        state = replace(state, search=replace(state.search, before_layouts=state))
    if is_on:
        observer.begins(row.name)
        state = _run_functions(row, state, observer)
    is_given = row.gives is not None and not is_unwanted and not state.is_checked_only
    if is_on or is_given:
        stage = row.gives or form
        state, broken = _verify_kernel(state, stage, row.gives is not None)
        observer.observe_pass(number, row.name, row.gives, SUFFIX[stage], partial(format_stage, stage, state), broken)
    return state


def _run_functions(row: KernelPass, state: KernelState, observer: Observer) -> KernelState:
    """Return the state after a row's functions: a choice answered, lints run, or passes' results written.

    The error of a function is collected, if the row continues after errors.
    """
    functions = row.load_functions()
    if isinstance(row, Choice):
        (ask,) = functions
        return _answer_choice(row, ask(**_select_arguments(ask, state, _time_exploring(observer))), state)
    if isinstance(row, Lints):
        for lint in functions:
            lint(state, observer)
        return state
    results = []
    for function in functions:
        try:
            results.append(function(**_select_arguments(function, state, explore_kernel)))
        except CompileError as error:
            if not row.continues:
                raise
            state.mistakes.add(error)
    if not row.writes or not results:
        return state
    parts = dict(zip(row.writes, results[0] if len(row.writes) > 1 else results, strict=True))
    if row.keeps_source:
        parts["source_kernel"] = parts["kernel"]
    return _write_parts(state, parts)


def _write_parts(state: KernelState, parts: dict[str, Any]) -> KernelState:
    """Return the state, or that in `parts`, with the other fields replaced and decisions appended; change `parts`."""
    written: KernelState = parts.pop("state", state)
    if decisions := tuple(parts.pop("decisions", ())):
        parts["decisions"] = (*written.decisions, *decisions)
    return replace(written, **parts) if parts else written


def _time_exploring(observer: Observer) -> Explorer:
    """Return `explore_kernel` wrapped so that the observer counts its time as exploring."""

    def explore_timed(considered: KernelState, last: str) -> KernelState:
        """Run `explore_kernel`, and report its time to the observer."""
        began = time.perf_counter()
        try:
            return explore_kernel(considered, last)
        finally:
            observer.explored(time.perf_counter() - began)

    return explore_timed


def _answer_choice(row: Choice, asked: Any, state: KernelState) -> KernelState:
    """Return the state with the answers to a choice's questions and their decisions; unchanged if it asks nothing."""
    from tilec.passes.choices.question import Question, answer_question, answer_questions

    if asked is None:
        return state
    if isinstance(asked, Question):
        answer = answer_question(asked)
        return _write_parts(state, {row.writes[0]: answer.value, "decisions": (answer.decision,)})
    made, decisions = answer_questions(asked)
    return _write_parts(made, {"decisions": decisions})


def _select_arguments(function: Callable[..., Any], state: KernelState, explore: Explorer) -> dict[str, Any]:
    """Return a pass function's arguments: the parts of the kernel's state that its parameters name."""
    return {name: _select_part(name, state, explore) for name in list_parameters(function)}


def list_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, without *args and **kwargs."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))


def _select_part(name: str, state: KernelState, explore: Explorer) -> Any:
    """Return what a pass's parameter name stands for: the state, `explore`, or a field of state, search or options."""
    if name == "state":
        return state
    if name == "explore":
        return explore
    holder = next((each for each in (state, state.search, state.options) if hasattr(each, name)), state)
    return getattr(holder, name)


def _verify_kernel(state: KernelState, stage: Stage, is_complete: bool) -> tuple[KernelState, Iterable[str]]:
    """Return the state marked as verified, and the violations in its form; none if verification is not due.

    After a pass that completes no stage, kernels are verified only with `options.verification` or at a level without
    code. The same value is not verified twice.
    """
    level = "all" if state.options.verify else requested_verification()
    everything = bool(level) or state.options.opt_level == 0
    if not is_complete and (not everything or (stage == "warp" and level != "all")):
        return state, ()
    known = stage, is_complete and stage == "tile", get_stage_value(stage, state)
    if known == state.verified:
        return state, ()
    return replace(state, verified=known), find_violations(stage, state, is_complete=is_complete, everything=everything)


def _run_file_passes(file: FileState, observer: Observer, *, is_front: bool) -> FileState:
    """Run the passes over the whole file: those before the kernel passes if `is_front`, else those after."""
    first = next(number for number, _, _ in _list_kernel_passes())
    for number, row in enumerate(PIPELINE, 1):
        if isinstance(row, FilePass) and (number < first) == is_front:
            observer.begins(row.name)
            (function,) = row.load_functions()
            file = function(file, observer)
            suffix = SUFFIX[row.gives] if row.gives else None
            observer.observe_pass(number, row.name, row.gives, suffix, partial(format_stage, row.gives or "ast", file))
    return file


def _list_kernel_passes() -> Iterator[tuple[int, KernelPass, Stage]]:
    """Yield each kernel pass with its number in the table and the form of the kernel after it."""
    form: Stage = "tile"
    for number, row in enumerate(PIPELINE, 1):
        if isinstance(row, FilePass):
            continue
        shows = row.shows if isinstance(row, Pass) else None
        is_aside = isinstance(row, Pass) and row.is_only_shown
        form = form if is_aside else row.gives or shows or form
        yield number, row, form


def _make_observers(file: FileState, observer: Observer) -> list[Observer]:
    """Return an observer for each kernel, `observer` for one; raise `ambiguous-entry` if several have a wanted text."""
    kernels = [state.kernel for state in file.kernels]
    if len(kernels) == 1:
        return [observer]
    if single := [s for s in STAGES[1:-2] if s in observer.keep or s == observer.stop_after]:
        title = f"the file has {len(kernels)} kernels, each with its own {single[0]}"
        others = tuple(Label(k.span, "another") for k in kernels[1:])
        first = kernels[0].span
        raise_error("ambiguous-entry", title, first, "one of them", secondary=others, help="choose with --entry")
    return [observer.of_kernel(kernel.name) for kernel in kernels]
