"""The pipeline: kernel text in, cubin out. `build` reads top to bottom; an `Observer` is shown every stage's value.

Later stages are imported where they are called: a command that stops early does not pay for what it does not reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tilec import remarks
from tilec.diag import CompileError, Diagnostic, Label, Mistakes, fail, warning
from tilec.observer import SUFFIX as SUFFIX
from tilec.observer import Observer as Observer
from tilec.observer import Stopped as Stopped
from tilec.options import LAST_STAGE, STAGES, CompileOptions, Scheduler, Strategy
from tilec.records import dataclass
from tilec.source import SourceFile

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel, Subtile
    from tilec.ir.warp import Program
    from tilec.manifest import Manifest
    from tilec.passes.depend import LoopProblem
    from tilec.passes.layout import Laid
    from tilec.ptx.assemble import EntryReport
    from tilec.ptx.module import Module
    from tilec.sched.decision import Decision
    from tilec.sched.schedule import Schedule
    from tilec.sched.solution import Solution
    from tilec.syntax import ast as syntax
    from tilec.target import Target
    from tilec.tune.report import Report


@dataclass(frozen=True, slots=True)
class Planned:
    """A pipelined loop with the answer to its scheduling problem."""

    loop: LoopProblem
    solution: Solution


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel with its layouts chosen and its loops scheduled, in program order. `decisions` are about its warps and
    blocks; `trace` explains them and the schedules."""

    kernel: Kernel
    laid: Laid
    target: Target
    loops: tuple[Planned, ...]
    decisions: tuple[Decision, ...]
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
    with _all_mistakes(source, options):
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
    with _all_mistakes(source, options):
        kernels = check_all(source, options, observer)
        observers = _apart(observer, kernels)
        plans = [plan_kernel(kernel, options, seen) for kernel, seen in zip(kernels, observers, strict=True)]
    modules = [_code(p, source, options, seen)[1] for p, seen in zip(plans, observers, strict=True)]
    return replace(_assembled(_joined(modules), source, kernels[0], options, observer), plans=tuple(plans))


def _apart(observer: Observer, kernels: tuple[Kernel, ...]) -> list[Observer]:
    """An observer for each kernel. Several together have no text of what only one has."""
    if len(kernels) == 1:
        return [observer]
    if single := [s for s in STAGES[1:-2] if s in observer.keep or s == observer.stop_after]:
        fail(
            "which-entry",
            f"the file has {len(kernels)} kernels, each with its own {single[0]}",
            kernels[0].span,
            "one of them",
            secondary=tuple(Label(k.span, "another") for k in kernels[1:]),
            help="choose with --entry",
        )
    return [observer.of_kernel(kernel.name) for kernel in kernels]


def _code(planned: Plan, source: SourceFile, options: CompileOptions, observer: Observer) -> tuple[Program, Module]:
    """The plan of one kernel carried out, as far as PTX."""
    from tilec import lints
    from tilec.codegen.emit import emit
    from tilec.ir.warp_text import show_program
    from tilec.ir.warp_verify import program_violations
    from tilec.passes.buffers import place
    from tilec.passes.depend import Scheduled
    from tilec.passes.dependent import dependent
    from tilec.passes.expand import expand
    from tilec.passes.split_loops import split
    from tilec.passes.sync import synchronise
    from tilec.passes.usage import usage

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
    observer.saw("warp", program, show_program, program_violations)
    module = emit(
        program,
        target,
        Path(source.path).name,  # alone: where the file lies must not change the output
        usage(planned.kernel),
        imported=tuple(source.imported),
        outputs=planned.kernel.outputs,
        fast_math="fast-math" in planned.kernel.asks,
    )
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
    from tilec import lints
    from tilec.manifest import in_module
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

    from tilec.passes.depend import Scheduled
    from tilec.tune.report import report

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
    from tilec import target as targets
    from tilec.passes.subtiling import as_asked

    target = targets.load(options.target, options.calibration)
    kernel, _ = as_asked(check(source, options, Observer()), options)
    return _in_place(kernel, target, options)[0], target


def check(source: SourceFile, options: CompileOptions, observer: Observer) -> Kernel:
    """The front end: kernel text to tile IR, every mistake in the kernel found."""
    from tilec.ir.text import print_kernel
    from tilec.ir.verify import verify_tile

    if source.path.endswith(".tile"):
        return observer.saw("tile", _stored(source, options), print_kernel, verify_tile)

    from tilec.passes.elaborate import elaborate

    module, imported = _parsed(source, options, observer)
    warn, sms = partial(observer.warn, options=options), partial(_multiprocessors, options)
    cluster = options.cluster or (1, 1, 1)
    kernel = elaborate(module, source, dict(options.defines), options.entry, warn, imported, sms, cluster)
    return _folded(kernel, options, observer)


def check_all(source: SourceFile, options: CompileOptions, observer: Observer) -> tuple[Kernel, ...]:
    """The front end, of every kernel of the file or of the one that `options` names."""
    mistakes = Mistakes()
    kernels = _read(source, options, observer, mistakes)
    mistakes.end()
    return kernels


def _read(source: SourceFile, options: CompileOptions, observer: Observer, mistakes: Mistakes) -> tuple[Kernel, ...]:
    """The same; where something is wrong, what that leaves of the kernels."""
    if source.path.endswith(".tile"):
        return (check(source, options, observer),)

    from tilec.passes.elaborate import elaborate_all
    from tilec.passes.fold import fold

    module, imported = _parsed(source, options, observer)
    warn, sms = partial(observer.warn, options=options), partial(_multiprocessors, options)
    cluster, defines = options.cluster or (1, 1, 1), dict(options.defines)
    kernels = elaborate_all(module, source, defines, options.entry, warn, imported, sms, cluster, mistakes)
    if mistakes.met:
        return tuple(fold(kernel) for kernel in kernels)
    observers = _apart(observer, kernels)
    return tuple(_folded(kernel, options, seen) for kernel, seen in zip(kernels, observers, strict=True))


def _multiprocessors(options: CompileOptions) -> int:
    from tilec import target as targets

    return targets.load(options.target, options.calibration).limit("sms")


def _parsed(
    source: SourceFile, options: CompileOptions, observer: Observer
) -> tuple[syntax.Module, Mapping[str, syntax.Module]]:
    """The syntax of the file, and of those that it imports."""
    from tilec.imports import read_imports
    from tilec.syntax.parse import parse
    from tilec.syntax.unparse import unparse

    folder = Path(options.cache_dir) if options.cache_dir else None
    module = parse(source, folder)
    observer.saw("ast", module, unparse)
    imported = read_imports(module, source, folder)
    if options.tuned_for not in (None, source.digest()):
        fail(
            "tuned-for-another",
            f"{source.path} is not the kernel that was tuned, or has changed since",
            help="tune it again with tilec tune, or compile it without --tuned",
        )
    return module, imported


def _folded(kernel: Kernel, options: CompileOptions, observer: Observer) -> Kernel:
    from tilec.ir.text import print_kernel
    from tilec.ir.verify import verify_tile
    from tilec.passes.fold import fold

    if options.cluster == (1, 1, 1):
        from tilec.passes.clusters import without_cluster

        kernel = without_cluster(kernel)
    if options.consumers is not None:
        from tilec.passes.consumers import with_consumers

        kernel = with_consumers(kernel, options.consumers)
    return observer.saw("tile", fold(kernel), print_kernel, verify_tile if options.opt_level else _reads_back)


def legal(source: SourceFile, options: CompileOptions, observer: Observer) -> None:
    """All that can be wrong with a kernel before anything is solved: the front end, layouts, and what its pipelines ask
    for, of every kernel. Levels without code end with the front end."""
    mistakes = Mistakes()
    kernels = _read(source, options, observer, mistakes)
    if options.opt_level not in LAST_STAGE:
        from tilec import target as targets
        from tilec.legality import examine
        from tilec.passes.subtiling import as_asked
        from tilec.passes.tensor_sums import with_sums_as_fragments

        target = targets.load(options.target, options.calibration)
        for kernel in kernels:
            with mistakes.caught():
                kernel, _ = as_asked(with_sums_as_fragments(kernel), options)
            examine(kernel, target, _strategy(kernel, options), options.switches, mistakes)
    mistakes.end()
    from tilec.passes.unset import unset

    for found in (odd for kernel in kernels for odd in unset(kernel)):
        observer.warn(found, options)


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


def _strategy(kernel: Kernel, options: CompileOptions) -> Strategy:
    """The command line's word counts before the file's."""
    if options.pipeline_strategy == "auto" and "unspecialised" in kernel.asks:
        return "unspecialize"
    return options.pipeline_strategy


def _stored(source: SourceFile, options: CompileOptions) -> Kernel:
    """A kernel that an earlier run has written as tile IR."""
    from tilec.ir.read import read_kernel
    from tilec.ir.verify import verify_tile

    if options.defines:
        fail("unknown-define", f"{options.defines[0][0]} cannot be defined: tile IR has no constants left to override")
    kernel = read_kernel(source.text)
    if broken := tuple(verify_tile(kernel)):
        fail("bad-tile-ir", "this tile IR does not verify", kernel.span, notes=broken)
    return kernel


def _reads_back(kernel: Kernel) -> Iterator[str]:
    """The promises of tile IR, and that its text is all of it."""
    from tilec.ir.read import read_kernel
    from tilec.ir.text import print_kernel
    from tilec.ir.verify import verify_tile

    yield from verify_tile(kernel)
    text = print_kernel(kernel)
    if print_kernel(read_kernel(text)) != text:
        yield "its text does not read back identically"


def plan(source: SourceFile, options: CompileOptions, observer: Observer) -> Plan:
    """The front end and the scheduler: what is to be done, and when."""
    return plan_kernel(check(source, options, observer), options, observer)


def plan_kernel(kernel: Kernel, options: CompileOptions, observer: Observer) -> Plan:
    """What is to be done for a kernel, and when."""
    if options.fast_math and "fast-math" not in kernel.asks:
        kernel = replace(kernel, asks=tuple(sorted((*kernel.asks, "fast-math"))))
    if observer.wants("alias"):
        from tilec.passes.alias import analyse, print_aliased

        observer.saw("alias", analyse(kernel), print_aliased)
    if end := LAST_STAGE.get(options.opt_level):
        fail(
            "level-without-code",
            f"-O{options.opt_level} ends with stage {end} and makes no code",
            help="use -O2 or -O3",
        )

    from tilec import lints
    from tilec import target as targets
    from tilec.passes.hand_listing import listing
    from tilec.passes.masks import unmasked
    from tilec.passes.staging import stagings
    from tilec.passes.unset import unset
    from tilec.sched.trace import dump
    from tilec.sched.trace import trace as write_trace

    target = targets.load(options.target, options.calibration)
    target = target if options.stmatrix else target.without("stmatrix")
    lighter, about_masks = unmasked(kernel, target, options)
    laid, decisions, planned = _scheduled(lighter, target, options, observer)
    for found in (
        *unset(kernel),
        *_unused(kernel, laid),
        *(w for p in planned if (w := _not_proven(p)) is not None),
        *lints.conversions(laid),
        *(
            w
            for one in laid.kernels
            for w in lints.bank_conflicts(one, ((p.loop, p.solution.schedule) for p in planned))
        ),
        *(lint for p in planned for lint in lints.addresses(p.loop, laid, target)),
        *(w for one in laid.kernels for w in lints.copies(one)),
        *lints.tensor_memory(laid, target),
    ):
        observer.warn(found, options)
    observer.warnings[:] = lints.judge(observer.warnings, options.lint)
    stores = [asdict(store) for one in laid.kernels for store in stagings(one)]
    solved = [(p.loop.problem, p.solution) for p in planned]
    by_hand = listing(kernel, laid)
    decisions = (*decisions, *about_masks)
    trace = dump(write_trace(solved, kernel.name, target.name, target.calibration, decisions, stores, by_hand))
    observer.saw("schedule", planned, lambda _: trace, _schedule_violations)
    return Plan(kernel, laid, target, planned, decisions, trace)


def _scheduled(
    kernel: Kernel, target: Target, options: CompileOptions, observer: Observer
) -> tuple[Laid, tuple[Decision, ...], tuple[Planned, ...]]:
    """The kernel with the grid that is launched and its layouts, what was decided about both and about its tiles, and a
    schedule for each loop."""
    from tilec.passes.subtiling import as_asked, candidates
    from tilec.passes.tensor_sums import with_sums_as_fragments

    kernel, asked = as_asked(with_sums_as_fragments(kernel), options)
    laid, decisions = _in_place(kernel, target, options)
    if not asked and (ways := candidates(kernel, laid, options)):
        return _cut_as_pays(kernel, (laid, decisions), ways, target, options, observer)
    if laid.form == "unspecialised" and options.fewer_stages and options.opt_level > 2 and options.schedule is None:
        laid, planned, about_stages = _with_residence(laid, target, options)
        observer.saw("layout", laid, _laid_text)
        observer.saw("problem", tuple(p.loop for p in planned), _problem_text, _problem_violations)
        return laid, (*decisions, *asked, *about_stages), planned
    observer.saw("layout", laid, _laid_text)
    planned = _schedule(laid, target, options, observer)
    return _in_order(laid, planned), (*decisions, *asked), planned


def _with_residence(
    laid: Laid, target: Target, options: CompileOptions
) -> tuple[Laid, tuple[Planned, ...], tuple[Decision, ...]]:
    """With fewer versions of what loops load, where that lets more blocks share a multiprocessor, and pays."""
    from tilec.passes.depend import Scheduled
    from tilec.tune.residence import fewer_stages

    planned = _schedule(laid, target, options, Observer())
    found = fewer_stages(laid, [Scheduled(p.loop, p.solution.schedule) for p in planned], target)
    if found is None:
        return laid, planned, ()
    fewer, decision = found
    return fewer, _schedule(fewer, target, options, Observer()), (decision,)


def _cut_as_pays(
    kernel: Kernel,
    whole: tuple[Laid, tuple[Decision, ...]],
    ways: tuple[Subtile, ...],
    target: Target,
    options: CompileOptions,
    observer: Observer,
) -> tuple[Laid, tuple[Decision, ...], tuple[Planned, ...]]:
    """The same, with the tiles of the only loop whole or cut in one of these ways: the observer sees what is taken."""
    from tilec.passes.roles import products
    from tilec.passes.subtiling import as_pays

    plans = {id(kernel): (*whole, _schedule(whole[0], target, options, Observer()))}

    def price(cut: Kernel, scheduler: Scheduler) -> Solution | None:
        try:
            laid, decisions = _in_place(cut, target, options)
            if len(products(laid.kernel.body)) < len(products(whole[0].kernel.body)):
                return None
            loops = _schedule(laid, target, replace(options, scheduler=scheduler), Observer())
        except CompileError:
            return None
        plans[id(cut)] = laid, decisions, loops
        return loops[0].solution if len(loops) == 1 else None

    (loop,) = plans[id(kernel)][2]
    best, decision = as_pays(kernel, loop.solution, options, ways, price)
    laid, decisions, loops = plans[id(best)]
    observer.saw("layout", laid, _laid_text)
    observer.saw("problem", tuple(p.loop for p in loops), _problem_text, _problem_violations)
    return laid, (*decisions, decision), loops


def _in_place(kernel: Kernel, target: Target, options: CompileOptions) -> tuple[Laid, tuple[Decision, ...]]:
    """The kernel with the grid that is launched and its layouts, and what was decided about both."""
    from tilec.passes.blocks import arranged
    from tilec.passes.decisions import (
        about_dependent_launch,
        about_detection,
        about_loads,
        about_multicast,
        about_products,
        about_roles,
        why_not_detected,
    )
    from tilec.passes.hand_layout import laid_out
    from tilec.passes.load_use import detected, loads_ahead, with_detected
    from tilec.passes.multicast import with_multicast
    from tilec.passes.narrow import widened
    from tilec.passes.paired import with_pairs

    def in_place(kernel: Kernel) -> Laid:
        strategy, switches = _strategy(kernel, options), options.switches
        return laid_out(widened(kernel), target, strategy, switches, tma_loads=options.tma_loads)

    as_written, found = kernel, with_detected(kernel, target)
    written = in_place(kernel)
    if found is not kernel and why_not_detected(_strategy(kernel, options), options) is None:
        ahead = in_place(found)
        if loads_ahead(ahead, detected(as_written, found)):
            kernel, written = found, ahead
    launched, about_blocks = arranged(kernel, written, target, options)
    laid = written if launched is kernel else in_place(launched)
    if laid.form != written.form:
        launched, about_blocks = arranged(kernel, written, target, options, walks=False)
        laid = in_place(launched)
    paired, about_pairs = with_pairs(laid, target, options)
    laid = paired or with_multicast(laid, enabled=options.multicast)
    return laid, (
        *about_roles(laid, options),
        *about_loads(laid, options),
        *about_products(laid, target),
        *about_detection(as_written, found, kernel, _strategy(as_written, options), options),
        *about_blocks,
        *(() if paired else about_multicast(laid, options)),
        *about_pairs,
        about_dependent_launch(laid, target, options),
    )


def _schedule(laid: Laid, target: Target, options: CompileOptions, observer: Observer) -> tuple[Planned, ...]:
    """A schedule for each loop, in program order: read from a trace, given by its stage= and order= lists, or solved. A
    loop's problem is known when those in it are scheduled, so that inner ones go first.
    """
    from tilec.legality import check_ceilings
    from tilec.passes.depend import Scheduled, loops_to_schedule, problems

    if laid.parts:
        return _schedule_roles(laid, target, options, observer)
    place = {id(loop): k for k, loop in enumerate(loops_to_schedule(laid))}
    read = None if options.schedule is None else _read_schedules(options.schedule, len(place))
    planned: list[Planned] = []
    while True:
        decided = [Scheduled(p.loop, p.solution.schedule) for p in planned]
        ready = problems(
            laid,
            target,
            decided,
            unlimited_smem=options.switches.unlimited_smem,
            ping_pong=options.ping_pong,
            overlap=options.overlap,
            store_role=options.store_role,
            most=options.rrt_size_threshold,
        )
        if len(planned) + len(ready) == len(place):
            loops = sorted((*(p.loop for p in planned), *ready), key=lambda loop: place[id(loop.loop)])
            observer.saw("problem", tuple(loops), _problem_text, _problem_violations)
        for loop in ready if target.ceilings else ():
            check_ceilings(loop, target)
        for loop in ready:
            planned.append(_decide(loop, options) if read is None else _carried_out(loop, read[place[id(loop.loop)]]))
        if len(planned) == len(place):
            if read is None and len(planned) == 1 and laid.form == "warp_specialised":
                planned = [_deepened(planned[0])]
            return tuple(sorted(planned, key=lambda p: place[id(p.loop.loop)]))


def _schedule_roles(laid: Laid, target: Target, options: CompileOptions, observer: Observer) -> tuple[Planned, ...]:
    """A schedule for each loop in which a role of the kernel's own acquires stages of pipelines."""
    if _strategy(laid.kernel, options) == "none":
        return ()
    from tilec.passes.role_loops import problems

    loops = problems(laid, target)
    observer.saw("problem", loops, _problem_text, _problem_violations)
    if options.schedule is None:
        return tuple(_decide(loop, options) for loop in loops)
    read = _read_schedules(options.schedule, len(loops))
    return tuple(_carried_out(loop, schedule) for loop, schedule in zip(loops, read, strict=True))


def _in_order(laid: Laid, planned: tuple[Planned, ...]) -> Laid:
    """The roles that a kernel makes itself, with their statements in the order of the schedules."""
    if not laid.parts or not planned:
        return laid
    from tilec.passes.role_loops import in_order

    return in_order(laid, {id(p.loop.loop): p.solution.schedule for p in planned})


def _deepened(planned: Planned) -> Planned:
    """The only loop of a kernel has as many versions of what TMA loads as it asks for, if there is room: a block that
    gives registers to some of its warps has the multiprocessor to itself."""
    from tilec.sched.slack import deepened

    loop, solution = planned.loop, planned.solution
    if loop.loop.num_stages is None or loop.loop.stage is not None:
        return planned
    loaded = (r for r, plan in enumerate(loop.rings) if all(loop.roles[op] == "producer" for op in plan.producers))
    schedule = deepened(loop.problem, solution.schedule, tuple(loaded))
    return replace(planned, solution=replace(solution, schedule=schedule))


def _decide(loop: LoopProblem, options: CompileOptions) -> Planned:
    from tilec.passes.annotate import given_schedule
    from tilec.sched.solve import given

    by_hand = given_schedule(loop)
    return Planned(loop, _solve(loop, options) if by_hand is None else given(loop.problem, by_hand))


def _solve(loop: LoopProblem, options: CompileOptions) -> Solution:
    from tilec.refusals import binding
    from tilec.sched.bounds import Unschedulable, bounds
    from tilec.sched.cache import solve_cached
    from tilec.sched.roles import weigh
    from tilec.sched.solve import solve

    folder = Path(options.cache_dir) if options.cache_dir is not None else None
    problem, most = loop.problem, options.rrt_size_threshold
    try:
        is_light = most is not None and len({*loop.roles}) > 1 and bounds(problem).mii > most
        if is_light:
            problem = replace(problem, force_serial=True)
        cached = partial(
            solve_cached,
            folder=folder,
            afresh=options.solve_afresh,
            solver=partial(solve, scheduler=options.scheduler),
            scheduler=options.scheduler,
        )
        return weigh(problem, cached, only_by_rule=is_light)
    except Unschedulable as refusal:
        involved = tuple(Label(loop.statements[op].span) for op in refusal.ops)
        fail(
            "unschedulable",
            f"no schedule exists: {refusal.reason}",
            loop.loop.span,
            secondary=involved,
            notes=binding(loop.problem, refusal),
        )


def _read_schedules(trace: str, loops: int) -> tuple[Schedule, ...]:
    """The schedules of a trace, one for each of so many loops."""
    from tilec.sched.trace import TraceError, read_schedule

    try:
        schedules = read_schedule(trace)
    except TraceError as error:
        fail("bad-schedule", f"the schedule file cannot be used: {error}")
    if len(schedules) != loops:
        fail("bad-schedule", f"the schedule file has {len(schedules)} loops, the kernel {loops}")
    return tuple(schedules)


def _carried_out(loop: LoopProblem, schedule: Schedule) -> Planned:
    """The loop with the schedule of a trace, if it holds: a person may have edited it."""
    from tilec.refusals import describe, refusals
    from tilec.sched.roles import by_rule, fits, resolve
    from tilec.sched.solve import given
    from tilec.sched.verify import violations

    if broken := tuple(violations(loop.problem, schedule)):
        is_divided = len(schedule.role) == len(loop.problem.ops) and fits(loop.problem, schedule.role)
        plain = resolve(loop.problem, schedule.role if is_divided else by_rule(loop.problem))
        refused = list(refusals(plain, schedule))
        ops = dict.fromkeys(op for refusal in refused for op in refusal.ops)
        placed = tuple(describe(plain, schedule, op) for op in ops)
        # One label a statement: what first refuses it.
        blamed = {refusal.ops[0]: refusal.text for refusal in reversed(refused)}
        labels = tuple(Label(loop.statements[op].span, text) for op, text in sorted(blamed.items()))
        title = "the given schedule does not hold for this loop"
        fail("bad-schedule", title, loop.loop.span, secondary=labels, notes=(*broken, *placed))
    return Planned(loop, given(loop.problem, schedule))


def _schedule_violations(planned: tuple[Planned, ...]) -> Iterator[str]:
    """The verifier's word on every schedule, wherever it came from."""
    from tilec.sched.verify import violations

    for p in planned:
        yield from violations(p.loop.problem, p.solution.schedule)


def _unused(kernel: Kernel, laid: Laid) -> Iterator[Diagnostic]:
    """Schedules that a person gave to loops that are to run serially."""
    from tilec.ir.tile import For, walk

    for loop in walk(kernel.body) if laid.form == "serial" else ():
        if isinstance(loop, For) and loop.stage is not None:
            yield warning(
                "schedule-not-used",
                "stage= and order= change nothing here",
                loop.span,
                "loops run serially at this optimisation level or with this strategy",
                help="compile with -O2 or -O3, and without --pipeline-strategy none",
            )


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
    from tilec.ir.warp_text import show_fragment, show_shared

    lines = [print_kernel(laid.kernel)]
    for name, fragment in laid.fragments.items():
        lines.append(f"fragment {name}: {show_fragment(fragment)}")
    for name, shared in laid.shared.items():
        where = f"{shared.panels} panels of {shared.panel}, swizzle {shared.swizzle}"
        lines.append(f"shared {name}: {where if shared.placement is None else show_shared(shared)}")
    return "\n".join(lines) + "\n"
