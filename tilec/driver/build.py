"""The pipeline: kernel text in, cubin out. `build` reads top to bottom; an `Observer` is shown every stage's value.

Later stages are imported where they are called: a command that stops early does not pay for what it does not reach.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.driver import remarks
from tilec.driver.front import all_mistakes, apart, check as check, check_all as check_all, legal as legal
from tilec.driver.observer import SUFFIX as SUFFIX, Observer as Observer, Stopped as Stopped
from tilec.driver.planning import Plan as Plan, begin, plan as plan, plan_kernel as plan_kernel
from tilec.driver.scheduling import Planned as Planned
from tilec.support.diagnostics import Diagnostic
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.ir.manifest import Manifest
    from tilec.ir.tile import Kernel
    from tilec.ir.warp import Program
    from tilec.passes.cost.report import Report
    from tilec.passes.layout.assign_layouts import Laid
    from tilec.ptx.assemble import EntryReport
    from tilec.ptx.module import Module
    from tilec.sched.schedule import Schedule
    from tilec.target.table import Target


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


@dataclass(frozen=True, slots=True)
class Library:
    """A cubin with one entry or several, the launch manifest of each, and the plan that it carries out."""

    ptx: str
    cubin: bytes
    manifests: tuple[Manifest, ...]
    entries: tuple[EntryReport, ...]
    plans: tuple[Plan, ...] = ()


def build(source: SourceFile, options: CompileOptions, observer: Observer) -> Build:
    """The whole way for one kernel: `plan` decides, the rest carries it out."""
    with all_mistakes(source, options):
        planned = plan(source, options, observer)
        program, module = _code(planned, source, options, observer)
    made = _assembled(module, source, planned.kernel, options, observer)
    (manifest,) = made.manifests
    return Build(
        kernel=planned.kernel,
        schedules=tuple(p.solution.schedule for p in planned.loops),
        program=program,
        ptx=made.ptx,
        cubin=made.cubin,
        manifest=manifest,
        trace=planned.trace,
        entries=made.entries,
        warnings=tuple(observer.warnings),
    )


def build_all(source: SourceFile, options: CompileOptions, observer: Observer) -> Library:
    """The whole way for every kernel of the file, or for the one that `options` names: one cubin has them all."""
    with all_mistakes(source, options):
        kernels = check_all(source, options, observer)
        observers = apart(observer, kernels)
        plans = [plan_kernel(kernel, options, seen) for kernel, seen in zip(kernels, observers, strict=True)]
    modules = [_code(p, source, options, seen)[1] for p, seen in zip(plans, observers, strict=True)]
    return replace(_assembled(_joined(modules), source, kernels[0], options, observer), plans=tuple(plans))


def _code(planned: Plan, source: SourceFile, options: CompileOptions, observer: Observer) -> tuple[Program, Module]:
    """The plan of one kernel carried out, as far as PTX."""
    from tilec.codegen.emit import emit
    from tilec.driver import lints
    from tilec.ir.warp_text import show_program
    from tilec.passes.analysis.usage import usage
    from tilec.passes.layout.register_limits import check_work
    from tilec.passes.loop.build_problem import Scheduled
    from tilec.passes.lower.allocate_shared import place
    from tilec.passes.lower.expand import expand
    from tilec.passes.lower.insert_sync import synchronise
    from tilec.passes.lower.programmatic_launch import dependent
    from tilec.passes.lower.split_loops import split

    target = planned.target
    scheduled = [Scheduled(p.loop, p.solution.schedule) for p in planned.loops]
    program = expand(planned.laid, scheduled, target, options.arrivals)
    observer.saw("expand", program, show_program)
    program = place(program, target, unlimited=options.switches.unlimited_smem)
    program = synchronise(program)
    if options.split_loops and options.opt_level > 2:
        program = split(program)
    if options.dependent_launch and options.opt_level > 2 and target.has("cluster"):  # what came with clusters
        program = dependent(program)
    for found in lints.barriers(program, target, planned.kernel.span):
        observer.warn(found, options)
    observer.saw("warp", program, show_program)
    module = emit(
        program,
        target,
        Path(source.path).name,  # alone: where the file lies must not change the output
        usage(planned.kernel),
        imported=tuple(source.imported),
        outputs=planned.kernel.outputs,
        fast_math="fast-math" in planned.kernel.asks,
    )
    check_work(planned.laid, sum(len(entry.body) for entry in module.entries))
    return program, module


def _joined(modules: list[Module]) -> Module:
    """One module with the entries of several; what they have in common, it has once."""
    first = modules[0]
    variables = dict.fromkeys(v for module in modules for v in module.variables)
    entries = tuple(entry for module in modules for entry in module.entries)
    functions = dict.fromkeys(f for module in modules for f in module.functions)
    return replace(first, variables=tuple(variables), entries=entries, functions=tuple(functions))


def _assembled(
    module: Module, source: SourceFile, kernel: Kernel, options: CompileOptions, observer: Observer
) -> Library:
    from tilec.driver import lints
    from tilec.ir.manifest import in_module
    from tilec.ptx.assemble import assemble
    from tilec.ptx.text import print_module

    ptx = print_module(module)
    observer.saw("ptx", ptx, str)
    assembled = assemble(ptx, module.target, opt_level=options.opt_level)
    for remark in remarks.warnings(assembled.remarks, ptx, source, kernel.span):
        observer.warn(remark, options)
    observer.warnings[:] = lints.judge(observer.warnings, options.lint)
    observer.saw("cubin", assembled.cubin, bytes)
    return Library(ptx, assembled.cubin, in_module(module), assembled.entries)


def reports(library: Library) -> tuple[Report, ...]:
    """What the model says of each kernel of a cubin."""
    from math import prod

    from tilec.passes.cost.report import report
    from tilec.passes.loop.build_problem import Scheduled

    registers = {entry.name: entry.registers for entry in library.entries}
    found = []
    for planned, manifest in zip(library.plans, library.manifests, strict=True):
        schedules = [Scheduled(p.loop, p.solution.schedule) for p in planned.loops]
        grid = manifest.blocks({}) if all(isinstance(size, int) for size in manifest.grid) else None
        threads, used = prod(manifest.block), registers[manifest.entry]
        found.append(report(planned.laid, schedules, planned.target, grid, threads, manifest.dynamic_smem, used))
    return tuple(found)


def laid(source: SourceFile, options: CompileOptions) -> tuple[Laid, Target]:
    """A kernel with its layouts and the grid that is launched, for which nothing has been solved yet."""
    begun = begin(check(source, options, Observer()), options)
    return begun.laid, begun.target
