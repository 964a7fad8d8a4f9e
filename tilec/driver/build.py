"""The entry points of the driver: build, plan or check a file. Each runs a part of the table in `driver.pipeline`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.driver import engine
from tilec.driver.lints import apply_lints_at_end
from tilec.driver.observer import Observer as Observer, PipelineStopped as PipelineStopped
from tilec.driver.stages import format_trace
from tilec.passes.loop.build_problem import PlannedLoop as PlannedLoop
from tilec.passes.state import FileState, KernelState
from tilec.support import progress
from tilec.support.diagnostics import CompileError, Diagnostic, raise_error
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.support.resources import target_stem
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.ir.manifest import Manifest
    from tilec.ir.tile import Kernel
    from tilec.ir.warp import Program
    from tilec.passes.assembled.machine_code import LoopCode
    from tilec.passes.cost.known_values import Contents
    from tilec.passes.cost.report import Report
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.ptx.assemble import EntryReport
    from tilec.sched.decision import Decision
    from tilec.sched.schedule import Schedule
    from tilec.target.table import Target

TILE_IR_PASS, LAYOUTS_PASS, PLAN_PASS = "fold-constants", "check-registers", "lint-schedule"
"""The last passes to run for tile IR, for layouts, and for a plan."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel with its layouts and scheduled loops, in program order. `decisions` are about its blocks and warps."""

    kernel: Kernel
    assignment: LayoutAssignment
    target: Target
    loops: tuple[PlannedLoop, ...]
    decisions: tuple[Decision, ...]
    work: KernelState

    @property
    def trace(self) -> str:
        """Return the schedule trace as text (JSON), which explains decisions and schedules."""
        return format_trace(self.work)

    def explain_schedules(self) -> Plan:
        """Return the plan with each loop's solution explained: what refutes smaller intervals, what heuristics reach.

        This is slow; `format_trace` does it otherwise.
        """
        from tilec.sched.explain import explain_solution

        loops = []
        for p in self.loops:
            with progress.report_during(f"why the loop at line {p.loop.loop.span.line} has no better schedule"):
                loops.append(replace(p, solution=explain_solution(p.loop.problem, p.solution)))
        return _make_plan(replace(self.work, loops=tuple(loops)))


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled kernel. `kernel` is the source's, before layouts; `schedules` has one entry per pipelined loop."""

    kernel: Kernel
    schedules: tuple[Schedule, ...]
    program: Program
    ptx: str
    cubin: bytes
    manifest: Manifest
    entries: tuple[EntryReport, ...]
    warnings: tuple[Diagnostic, ...]
    work: KernelState

    @property
    def trace(self) -> str:
        """Return the schedule trace as text (JSON), which explains decisions and schedules."""
        return format_trace(self.work)


@dataclass(frozen=True, slots=True)
class Library:
    """A cubin with one or several entries, the launch manifest of each, and their plans."""

    ptx: str
    cubin: bytes
    manifests: tuple[Manifest, ...]
    entries: tuple[EntryReport, ...]
    plans: tuple[Plan, ...] = ()


def build_kernel(source: SourceFile, options: CompileOptions, observer: Observer) -> Build:
    """Compile the file's only kernel, or the one that `options` names, to a cubin; raise all its mistakes."""
    with _observe_compilation(source, options, observer):
        with _collect_all_mistakes(source, options):
            file = engine.advance_kernels(engine.read_file(source, options, observer, is_single=True), observer)
        file = engine.link_kernels(file, observer)
        library = _make_library(file)
    (work,) = file.kernels
    schedules = tuple(planned.solution.schedule for planned in work.loops)
    made = library.ptx, library.cubin, library.manifests[0], library.entries
    return Build(work.source_kernel, schedules, work.program, *made, tuple(observer.warnings), work)


def build_library(source: SourceFile, options: CompileOptions, observer: Observer) -> Library:
    """Compile every kernel of the file, or the one that `options` names, into one cubin; raise all mistakes."""
    with _observe_compilation(source, options, observer):
        with _collect_all_mistakes(source, options):
            file = engine.advance_kernels(engine.read_file(source, options, observer), observer)
        return _make_library(engine.link_kernels(file, observer))


def load_kernel(source: SourceFile, options: CompileOptions, observer: Observer) -> Kernel:
    """Return the file's only kernel, or the one that `options` names, as tile IR."""
    file = engine.read_file(source, options, observer, is_single=True)
    return engine.advance_kernels(file, observer, last=TILE_IR_PASS).kernels[0].kernel


def load_kernels(source: SourceFile, options: CompileOptions, observer: Observer) -> tuple[Kernel, ...]:
    """Return the kernels of a file, or the one that `options` names, as tile IR."""
    file = engine.advance_kernels(engine.read_file(source, options, observer), observer, last=TILE_IR_PASS)
    return tuple(work.kernel for work in file.kernels)


def check_file(source: SourceFile, options: CompileOptions, observer: Observer) -> None:
    """Raise all errors that the file has before anything is solved; do nothing if there are none.

    Levels without code stop at tile IR.
    """
    with _observe_compilation(source, options, observer):
        engine.check_kernels(source, options, observer)


def plan_kernel(source: SourceFile, options: CompileOptions, observer: Observer) -> Plan:
    """Return the file's only kernel, or the one that `options` names, with layouts and schedules but no code."""
    with _observe_compilation(source, options, observer):
        file = engine.read_file(source, options, observer, is_single=True)
        return _make_plan(engine.advance_kernels(file, observer, last=PLAN_PASS).kernels[0])


def plan_kernels(source: SourceFile, options: CompileOptions, observer: Observer) -> tuple[Plan, ...]:
    """Return every kernel of the file, or the one that `options` names, with layouts and schedules but no code."""
    with _observe_compilation(source, options, observer):
        file = engine.read_file(source, options, observer)
        return tuple(_make_plan(work) for work in engine.advance_kernels(file, observer, last=PLAN_PASS).kernels)


def assign_kernel_layouts(source: SourceFile, options: CompileOptions) -> tuple[LayoutAssignment, Target]:
    """Return the file's only kernel, or the one that `options` names, with layouts but no schedules, and its target."""
    file = engine.read_file(source, options, Observer(), is_single=True)
    (work,) = engine.advance_kernels(file, Observer(), last=LAYOUTS_PASS).kernels
    return work.assignment, work.target


def _make_plan(work: KernelState) -> Plan:
    """Return a kernel's state, with its loops scheduled, as a `Plan`."""
    return Plan(work.source_kernel, work.assignment, work.target, work.loops, work.decisions, work)


def _make_library(file: FileState) -> Library:
    """Return the linked file as a `Library`, with the manifests read from its PTX module."""
    from tilec.ir.manifest import manifests_in_module

    manifests, plans = manifests_in_module(file.module), tuple(map(_make_plan, file.kernels))
    return Library(file.ptx, file.cubin.cubin, manifests, file.cubin.entries, plans)


@contextmanager
def _observe_compilation(source: SourceFile, options: CompileOptions, observer: Observer) -> Iterator[None]:
    """Set `observer.of` for the block unless the caller did, and apply the lint option to the warnings at its end."""
    is_ours = not observer.of
    if is_ours:
        observer.of = f"{Path(source.path).name} for {target_stem(options.target)}"
    try:
        with apply_lints_at_end(options, observer):
            yield
    finally:
        if is_ours:
            observer.of = ""
            progress.report_activity("")


@contextmanager
def _collect_all_mistakes(source: SourceFile, options: CompileOptions) -> Iterator[None]:
    """Replace the first errors of a compilation by all that a check of the file finds, if these include the first."""
    try:
        yield
    except CompileError as first:
        try:
            check_file(source, options, Observer())
        except CompileError as found:
            known, all_found = ({(d.code, d.primary) for d in error.diagnostics} for error in (first, found))
            if known <= all_found:
                raise found from None
        raise


def build_reports(
    library: Library,
    sizes: Mapping[str, int] | None = None,
    contents: Contents | None = None,
    codes: Sequence[LoopCode] | None = None,
) -> tuple[Report, ...]:
    """Predict each kernel's performance at `sizes`, else assumed ones; raise `wrong-launch` if one has no blocks.

    `contents` are those of tensors that decide how often loops run. Without sizes and contents the prediction says what
    it assumes. `codes` is the machine code of its loops, read from the cubin if it is not given.
    """
    from tilec.driver.launch_sizes import launch_sizes
    from tilec.passes.assembled.predict_assembled_kernel import AssembledKernel, report_assembled_kernel

    check_contents(library.manifests, contents or {})
    registers = {entry.name: entry.registers for entry in library.entries}
    codes = find_library_loop_codes(library) if codes is None else codes
    found = []
    for planned, manifest in zip(library.plans, library.manifests, strict=True):
        names = {scalar.name for scalar in manifest.scalars}
        own = {name: size for name, size in (sizes or {}).items() if name in names or len(library.manifests) == 1}
        known = launch_sizes(manifest, {}, own) if own else {}
        is_grid_known = bool(known) or all(isinstance(size, int) for size in manifest.grid)
        grid = manifest.blocks(known) if is_grid_known else None
        if grid is not None and 0 in grid:
            raise_error("wrong-launch", f"{manifest.entry} has no blocks for these sizes")
        of_thread = registers[manifest.entry]
        kernel = AssembledKernel(planned.work, manifest, library.ptx, library.cubin, of_thread, codes)
        found.append(report_assembled_kernel(kernel, grid, known, contents))
    return tuple(found)


def build_report(build: Build, sizes: Mapping[str, int] | None = None, contents: Contents | None = None) -> Report:
    """Predict the performance of the one kernel that was built; `sizes` are its launch-time sizes, else assumed."""
    library = Library(build.ptx, build.cubin, (build.manifest,), build.entries, (_make_plan(build.work),))
    return build_reports(library, sizes, contents)[0]


def check_contents(manifests: Sequence[Manifest], contents: Contents) -> None:
    """Raise an error for contents of what no kernel only reads as integers, of a wrong number, or beyond their type."""
    from math import prod

    from tilec.ir.types import TYPES_BY_NAME

    whole = [
        (manifest.entry, tensor)
        for manifest in manifests
        for tensor in manifest.tensors
        if tensor.role == "in" and tensor.dtype.startswith(("int", "uint"))
    ]
    names = dict.fromkeys(tensor.name for _, tensor in whole)
    for name in contents:
        if name not in names:
            known = f"it reads {', '.join(names)}" if names else "it reads none"
            raise_error("bad-inputs", f"{name} is no tensor of integers that the kernel only reads", help=known)
    for entry, tensor in (one for one in whole if one[1].name in contents):
        held, dtype = contents[tensor.name], TYPES_BY_NAME[tensor.dtype]
        elements = held if isinstance(held, tuple) else (held,)
        shape = [size for size in tensor.shape if isinstance(size, int)]
        if isinstance(held, tuple) and len(shape) == len(tensor.shape) and len(held) != prod(shape):
            title = f"{tensor.name} of {entry} has {prod(shape):,} elements, and {len(held):,} are given"
            raise_error("bad-inputs", title)
        low, high = (-(1 << dtype.bits - 1), 1 << dtype.bits - 1) if dtype.kind == "int" else (0, 1 << dtype.bits)
        if beyond := [number for number in elements if not low <= number < high]:
            raise_error("bad-inputs", f"{tensor.name} of {entry} is of {tensor.dtype}, which does not hold {beyond[0]}")


def find_library_loop_codes(library: Library) -> tuple[LoopCode, ...]:
    """Return the machine code of a cubin's scheduled loops, each with the time of one iteration.

    Returns nothing for a library without kernels.
    """
    from tilec.passes.assembled.machine_code import find_loop_codes as read

    works = [planned.work for planned in library.plans]
    return read(works, library.ptx, library.cubin, works[0].source) if works else ()
