"""What is asked of the pipeline: a build, a plan, a check. Each runs a part of the table in `driver.pipeline`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.driver import engine
from tilec.driver.explaining import trace_of
from tilec.driver.lints import judged
from tilec.driver.observer import Observer as Observer, Stopped as Stopped
from tilec.driver.work import File, Planned as Planned, Work
from tilec.support import progress
from tilec.support.diagnostics import CompileError, Diagnostic, Label, fail
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.support.resources import target_stem
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.driver.machine_code import LoopCode
    from tilec.ir.manifest import Manifest
    from tilec.ir.tile import Kernel
    from tilec.ir.warp import Program
    from tilec.passes.cost.report import Report
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.ptx.assemble import EntryReport
    from tilec.sched.decision import Decision
    from tilec.sched.schedule import Schedule
    from tilec.target.table import Target

READ, WITH_LAYOUTS, PLANNED = "fold-constants", "check-registers", "lint-schedule"
"""The passes behind which a kernel is read, has layouts, is planned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel with its layouts chosen and its loops scheduled, in program order. `decisions` are about its warps and
    blocks."""

    kernel: Kernel
    assignment: LayoutAssignment
    target: Target
    loops: tuple[Planned, ...]
    decisions: tuple[Decision, ...]
    work: Work

    @property
    def trace(self) -> str:
        """The schedule trace, which explains decisions and schedules."""
        return trace_of(self.work)

    def explained(self) -> Plan:
        """The same, with why no loop has a better schedule: that takes a while, and a trace looks for it otherwise."""
        from tilec.sched.explain import explained

        told = []
        for p in self.loops:
            with progress.doing(f"why the loop at line {p.loop.loop.span.line} has no better schedule"):
                told.append(replace(p, solution=explained(p.loop.problem, p.solution)))
        return _plan(replace(self.work, loops=tuple(told)))


@dataclass(frozen=True, slots=True)
class Build:
    """`kernel` is what the source says, before layouts; `schedules` has one schedule per pipelined loop."""

    kernel: Kernel
    schedules: tuple[Schedule, ...]
    program: Program
    ptx: str
    cubin: bytes
    manifest: Manifest
    entries: tuple[EntryReport, ...]
    warnings: tuple[Diagnostic, ...]
    work: Work

    @property
    def trace(self) -> str:
        """The schedule trace, as a plan's."""
        return trace_of(self.work)


@dataclass(frozen=True, slots=True)
class Library:
    """A cubin with one entry or several, the launch manifest of each, and the plan that it carries out."""

    ptx: str
    cubin: bytes
    manifests: tuple[Manifest, ...]
    entries: tuple[EntryReport, ...]
    plans: tuple[Plan, ...] = ()


def build(source: SourceFile, options: CompileOptions, observer: Observer) -> Build:
    """The whole way for one kernel."""
    with _told(source, options, observer):
        with _all_mistakes(source, options):
            file = engine.each(engine.read(source, options, observer, is_single=True), observer)
        made = _library(engine.linked(file, observer))
    (work,) = file.kernels
    return Build(
        kernel=work.source_kernel,
        schedules=tuple(p.solution.schedule for p in work.loops),
        program=work.program,
        ptx=made.ptx,
        cubin=made.cubin,
        manifest=made.manifests[0],
        entries=made.entries,
        warnings=tuple(observer.warnings),
        work=work,
    )


def build_all(source: SourceFile, options: CompileOptions, observer: Observer) -> Library:
    """The whole way for every kernel of the file, or for the one that `options` names: one cubin has them all."""
    with _told(source, options, observer):
        with _all_mistakes(source, options):
            file = engine.each(engine.read(source, options, observer), observer)
        return _library(engine.linked(file, observer))


def check(source: SourceFile, options: CompileOptions, observer: Observer) -> Kernel:
    """The only kernel of a file, or the one that `options` names, as tile IR."""
    file = engine.read(source, options, observer, is_single=True)
    return engine.each(file, observer, last=READ).kernels[0].kernel


def check_all(source: SourceFile, options: CompileOptions, observer: Observer) -> tuple[Kernel, ...]:
    """The kernels of a file, or the one that `options` names, as tile IR."""
    file = engine.each(engine.read(source, options, observer), observer, last=READ)
    return tuple(work.kernel for work in file.kernels)


def legal(source: SourceFile, options: CompileOptions, observer: Observer) -> None:
    """All that can be wrong with a file before anything is solved. Levels without code end with tile IR."""
    with _told(source, options, observer):
        engine.checked(source, options, observer)


def plan(source: SourceFile, options: CompileOptions, observer: Observer) -> Plan:
    """What is to be done for a kernel, and when."""
    with _told(source, options, observer):
        file = engine.read(source, options, observer, is_single=True)
        return _plan(engine.each(file, observer, last=PLANNED).kernels[0])


def plan_all(source: SourceFile, options: CompileOptions, observer: Observer) -> tuple[Plan, ...]:
    """The same for every kernel of the file."""
    with _told(source, options, observer):
        file = engine.read(source, options, observer)
        return tuple(_plan(work) for work in engine.each(file, observer, last=PLANNED).kernels)


def assignment(source: SourceFile, options: CompileOptions) -> tuple[LayoutAssignment, Target]:
    """A kernel with its layouts and the grid that is launched, for which nothing has been solved yet."""
    file = engine.read(source, options, Observer(), is_single=True)
    (work,) = engine.each(file, Observer(), last=WITH_LAYOUTS).kernels
    return work.assignment, work.target


def _plan(work: Work) -> Plan:
    return Plan(work.source_kernel, work.assignment, work.target, work.loops, work.decisions, work)


def _library(file: File) -> Library:
    from tilec.ir.manifest import in_module

    made = file.cubin
    return Library(file.ptx, made.cubin, in_module(file.module), made.entries, tuple(map(_plan, file.kernels)))


@contextmanager
def _told(source: SourceFile, options: CompileOptions, observer: Observer) -> Iterator[None]:
    """Around the whole way: who waits is told what is done, unless the caller says that, and lints are judged."""
    if observer.of:
        with judged(options, observer):
            yield
        return
    observer.of = f"{Path(source.path).name} for {target_stem(options.target)}"
    try:
        with judged(options, observer):
            yield
    finally:
        observer.of = ""
        progress.say("")


@contextmanager
def _all_mistakes(source: SourceFile, options: CompileOptions) -> Iterator[None]:
    """The way to code ends at the first mistake: then all are looked for."""
    try:
        yield
    except CompileError as first:
        try:
            legal(source, options, Observer())
        except CompileError as found:
            if set(_places(first)) <= set(_places(found)):
                raise found from None
        raise


def _places(error: CompileError) -> list[tuple[str, Label | None]]:
    return [(d.code, d.primary) for d in error.diagnostics]


def reports(library: Library, sizes: Mapping[str, int] | None = None) -> tuple[Report, ...]:
    """Predict each kernel of a cubin. `sizes` are those that kernels learn at launch: without them the prediction says
    what it assumes."""
    from math import prod

    from tilec.driver.launch_sizes import launch_sizes
    from tilec.passes.cost.report import report
    from tilec.passes.loop.build_problem import Scheduled

    registers = {entry.name: entry.registers for entry in library.entries}
    found = []
    for planned, manifest in zip(library.plans, library.manifests, strict=True):
        schedules = [Scheduled(p.loop, p.solution.schedule) for p in planned.loops]
        names = {scalar.name for scalar in manifest.scalars}
        own = {name: size for name, size in (sizes or {}).items() if name in names or len(library.manifests) == 1}
        known = launch_sizes(manifest, {}, own) if own else {}
        is_grid_known = bool(known) or all(isinstance(size, int) for size in manifest.grid)
        grid = manifest.blocks(known) if is_grid_known else None
        if grid is not None and 0 in grid:
            fail("wrong-launch", f"{manifest.entry} has no blocks for these sizes")
        found.append(
            report(
                planned.assignment,
                schedules,
                planned.target,
                grid,
                prod(manifest.block),
                manifest.dynamic_smem,
                registers[manifest.entry],
                known,
                assumes_sizes=not known and bool(manifest.made_of()),
            )
        )
    return tuple(found)


def report_of(build: Build, sizes: Mapping[str, int] | None = None) -> Report:
    """Predict the one kernel that was built."""
    return reports(Library(build.ptx, build.cubin, (build.manifest,), build.entries, (_plan(build.work),)), sizes)[0]


def loop_codes(library: Library) -> tuple[LoopCode, ...]:
    """What the assembler's own schedule makes of the scheduled loops of a cubin."""
    from tilec.driver.machine_code import loop_codes as read

    works = [planned.work for planned in library.plans]
    return read(works, library.ptx, library.cubin, works[0].source) if works else ()
