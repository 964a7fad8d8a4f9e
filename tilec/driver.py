"""The pipeline: kernel text in, cubin out. `build` reads top to bottom; an `Observer` is shown every stage's value.

Later stages are imported where they are called: a command that stops early does not pay for what it does not reach.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tilec import files, remarks
from tilec.diag import Diagnostic, InternalError, Label, fail
from tilec.options import STAGES, CompileOptions, Stage
from tilec.records import dataclass
from tilec.source import SourceFile

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.ir.warp import Program
    from tilec.manifest import Manifest
    from tilec.passes.depend import LoopProblem
    from tilec.passes.layout import Laid
    from tilec.ptx.assemble import EntryReport
    from tilec.sched.schedule import Schedule
    from tilec.sched.solution import Solution
    from tilec.target import Target

T = TypeVar("T")

SUFFIX: dict[Stage, str] = {
    "ast": ".ast",
    "tile": ".tile",
    "layout": ".layout",
    "problem": ".problem.json",
    "schedule": ".trace.json",
    "warp": ".warp",
    "ptx": ".ptx",
    "cubin": ".cubin",
}
"""How each stage's text is named."""


class Stopped(Exception):
    """The stage that was asked for has been reached. Not an error."""


@dataclasses.dataclass
class Observer:
    """Is shown each stage's value before anything trusts it.

    Writes the dump first, so that a value that does not verify leaves its evidence; then verifies, keeps the text where
    it is wanted, and stops the pipeline where it is told to.
    """

    keep: Collection[Stage] = ()
    dump_dir: str | None = None
    stop_after: Stage | None = None
    texts: dict[Stage, bytes] = dataclasses.field(default_factory=dict)
    seconds: list[tuple[Stage, float]] = dataclasses.field(default_factory=list)
    warnings: list[Diagnostic] = dataclasses.field(default_factory=list)
    _since: float = dataclasses.field(default_factory=time.perf_counter)

    def saw(
        self,
        stage: Stage,
        value: T,
        write: Callable[[T], str | bytes],
        violations: Callable[[T], Iterable[str]] | None = None,
    ) -> T:
        if self.dump_dir is not None or stage in self.keep:
            text = write(value)
            data = text.encode() if isinstance(text, str) else text
            if self.dump_dir is not None:
                name = f"{STAGES.index(stage) + 1:02}-{stage}{SUFFIX[stage]}"
                files.write_all({str(Path(self.dump_dir) / name): data})
            if stage in self.keep:
                self.texts[stage] = data
        if violations is not None and (broken := list(violations(value))):
            raise InternalError("\n  ".join([f"the {stage} does not verify:", *broken]))
        now = time.perf_counter()
        self.seconds.append((stage, now - self._since))
        self._since = now
        if stage == self.stop_after:
            raise Stopped
        return value


@dataclass(frozen=True, slots=True)
class Planned:
    """A pipelined loop with the answer to its scheduling problem."""

    loop: LoopProblem
    solution: Solution


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel with its layouts chosen and its loops scheduled, in program order. `trace` explains the schedules."""

    kernel: Kernel
    laid: Laid
    target: Target
    loops: tuple[Planned, ...]
    trace: str


@dataclass(frozen=True, slots=True)
class Build:
    """`kernel` is what the source says, before layouts; `schedules` has one schedule per pipelined loop."""

    kernel: Kernel
    schedules: tuple[Schedule, ...]
    program: Program
    ptx: str
    cubin: bytes
    manifest: Manifest
    trace: str
    entries: tuple[EntryReport, ...]
    warnings: tuple[Diagnostic, ...]


def build(source: SourceFile, options: CompileOptions, observer: Observer) -> Build:
    """The whole way: `plan` decides, the rest carries it out."""
    planned = plan(source, options, observer)
    target = planned.target

    from tilec.codegen.emit import emit
    from tilec.ir.warp_text import show_program
    from tilec.ir.warp_verify import program_violations
    from tilec.manifest import in_module
    from tilec.passes.buffers import place
    from tilec.passes.expand import Scheduled, expand
    from tilec.passes.sync import synchronise
    from tilec.passes.usage import usage
    from tilec.ptx.assemble import assemble
    from tilec.ptx.text import print_module

    scheduled = [Scheduled(p.loop, p.solution.schedule) for p in planned.loops]
    program = expand(planned.laid, scheduled, target)
    program = synchronise(program)
    program = place(program, target, unlimited=options.unlimited_smem)
    observer.saw("warp", program, show_program, program_violations)

    # The file's name alone: where it lies must not change the output.
    module = emit(program, target, Path(source.path).name, usage(planned.kernel))
    ptx = print_module(module)
    observer.saw("ptx", ptx, str)

    assembled = assemble(ptx, target.ptx_target, opt_level=options.assembler_level)
    if options.assembler_level > 0:
        # Not at level 0: there the assembler serialises everything, as it was asked to.
        observer.warnings += remarks.warnings(assembled.remarks, ptx, source, planned.kernel.span)
    observer.saw("cubin", assembled.cubin, bytes)

    (manifest,) = in_module(module)
    return Build(
        kernel=planned.kernel,
        schedules=tuple(s.schedule for s in scheduled),
        program=program,
        ptx=ptx,
        cubin=assembled.cubin,
        manifest=manifest,
        trace=planned.trace,
        entries=assembled.entries,
        warnings=tuple(observer.warnings),
    )


def check(source: SourceFile, options: CompileOptions, observer: Observer) -> Kernel:
    """The front end: kernel text to tile IR, every mistake in the kernel found."""
    from tilec.ir.text import print_kernel
    from tilec.ir.verify import verify_tile
    from tilec.passes.elaborate import elaborate
    from tilec.passes.fold import fold
    from tilec.syntax.parse import parse
    from tilec.syntax.unparse import unparse

    module = parse(source, Path(options.cache_dir) if options.cache_dir else None)
    observer.saw("ast", module, unparse)
    kernel = elaborate(module, source, dict(options.defines), options.entry)
    kernel = fold(kernel)
    return observer.saw("tile", kernel, print_kernel, verify_tile)


def plan(source: SourceFile, options: CompileOptions, observer: Observer) -> Plan:
    """The front end and the scheduler: what is to be done, and when."""
    kernel = check(source, options, observer)

    from tilec import target as targets
    from tilec.passes.depend import problems
    from tilec.passes.layout import assign
    from tilec.passes.select import select
    from tilec.sched.trace import dump
    from tilec.sched.trace import trace as write_trace

    target = targets.load(options.target)
    laid = assign(select(kernel, target, options.strategy, options.opt_level))
    observer.saw("layout", laid, _laid_text)
    loops = problems(laid, target, unlimited_smem=options.unlimited_smem)
    observer.saw("problem", loops, _problem_text, _problem_violations)
    planned = _schedule(loops, options)
    observer.warnings += [w for p in planned if (w := _not_proven(p)) is not None]
    trace = dump(write_trace([(p.loop.problem, p.solution) for p in planned], kernel.name, target.name))
    observer.saw("schedule", planned, lambda _: trace, _schedule_violations)
    return Plan(kernel, laid, target, planned, trace)


def _schedule(loops: tuple[LoopProblem, ...], options: CompileOptions) -> tuple[Planned, ...]:
    """A schedule for each loop: read from a trace, given by its stage= and order= lists, or solved."""
    from tilec.passes.annotate import given_schedule
    from tilec.sched.solve import given

    if options.schedule is not None:
        return _read_schedules(loops, options.schedule)
    planned = []
    for loop in loops:
        by_hand = given_schedule(loop)
        solution = _solve(loop, options) if by_hand is None else given(loop.problem, by_hand)
        planned.append(Planned(loop, solution))
    return tuple(planned)


def _solve(loop: LoopProblem, options: CompileOptions) -> Solution:
    from tilec.sched.bounds import Unschedulable, bounds
    from tilec.sched.cache import solve_cached
    from tilec.sched.solve import solve

    folder = Path(options.cache_dir) if options.cache_dir is not None else None
    problem, most = loop.problem, options.rrt_size_threshold
    try:
        if most is not None and len({*loop.roles}) > 1 and bounds(problem).mii > most:
            problem = replace(problem, force_serial=True)
        solver = partial(solve, scheduler=options.scheduler)
        return solve_cached(problem, folder, afresh=options.solve_afresh, solver=solver, scheduler=options.scheduler)
    except Unschedulable as refusal:
        involved = [Label(loop.statements[op].span) for op in refusal.ops]
        fail("unschedulable", f"no schedule exists: {refusal.reason}", loop.loop.span, secondary=tuple(involved))


def _read_schedules(loops: tuple[LoopProblem, ...], trace: str) -> tuple[Planned, ...]:
    """The schedules of a trace, if they hold for these loops: a person may have edited them."""
    from tilec.sched.solve import given
    from tilec.sched.trace import TraceError, read_schedule
    from tilec.sched.verify import violations

    try:
        schedules = read_schedule(trace)
    except TraceError as error:
        fail("bad-schedule", f"the schedule file cannot be used: {error}")
    if len(schedules) != len(loops):
        fail("bad-schedule", f"the schedule file has {len(schedules)} loops, the kernel {len(loops)}")
    for loop, schedule in zip(loops, schedules, strict=True):
        if broken := tuple(violations(loop.problem, schedule)):
            fail("bad-schedule", "the given schedule does not hold for this loop", loop.loop.span, notes=broken)
    return tuple(Planned(loop, given(loop.problem, s)) for loop, s in zip(loops, schedules, strict=True))


def _schedule_violations(planned: tuple[Planned, ...]) -> Iterator[str]:
    """The verifier's word on every schedule, wherever it came from."""
    from tilec.sched.verify import violations

    for p in planned:
        yield from violations(p.loop.problem, p.solution.schedule)


def _not_proven(planned: Planned) -> Diagnostic | None:
    if planned.solution.warning is None:
        return None
    label = Label(planned.loop.loop.span)
    return Diagnostic("schedule-not-proven", planned.solution.warning, label, severity="warning")


def _problem_violations(loops: tuple[LoopProblem, ...]) -> Iterator[str]:
    from tilec.sched.check import faults

    for loop in loops:
        yield from faults(loop.problem)


def _problem_text(loops: tuple[LoopProblem, ...]) -> str:
    import json

    from tilec.sched.text import to_json

    return json.dumps([to_json(loop.problem) for loop in loops], indent=1, ensure_ascii=False) + "\n"


def _laid_text(laid: Laid) -> str:
    """The kernel, and under it where the elements of each of its tiles live."""
    from tilec.ir.text import print_kernel
    from tilec.ir.warp_text import show_fragment

    lines = [print_kernel(laid.kernel)]
    for name, fragment in laid.fragments.items():
        lines.append(f"fragment {name}: {show_fragment(fragment)}")
    for name, shared in laid.shared.items():
        lines.append(f"shared {name}: {shared.panels} panels of {shared.panel}, swizzle {shared.swizzle}")
    return "\n".join(lines) + "\n"
