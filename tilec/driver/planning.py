"""What is to be done for a kernel, and when: its form, blocks, layouts and tiles decided, its loops scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tilec.driver.front import check, strategy_of
from tilec.driver.observer import Observer
from tilec.driver.scheduling import (
    Planned,
    about_budget,
    in_order,
    not_proven,
    problem_text,
    schedule_loops,
    search_budget,
)
from tilec.support.diagnostics import CompileError, Diagnostic, fail, warning
from tilec.support.options import LAST_STAGE, CompileOptions, Scheduler, changed
from tilec.support.records import dataclass
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel, Subtile
    from tilec.passes.layout.assign_layouts import Laid
    from tilec.sched.budget import Budget
    from tilec.sched.decision import Decision
    from tilec.sched.solution import Solution
    from tilec.target.table import Target


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


def plan(source: SourceFile, options: CompileOptions, observer: Observer) -> Plan:
    """The front end and the scheduler: what is to be done, and when."""
    return plan_kernel(check(source, options, observer), options, observer)


def plan_kernel(kernel: Kernel, options: CompileOptions, observer: Observer) -> Plan:
    """What is to be done for a kernel, and when."""
    kernel = _with_asked(kernel, options)
    if observer.wants("alias"):
        from tilec.passes.analysis.alias import analyse, print_aliased

        observer.saw("alias", analyse(kernel), print_aliased)
    if end := LAST_STAGE.get(options.opt_level):
        fail(
            "level-without-code",
            f"-O{options.opt_level} ends with stage {end} and makes no code",
            help="use -O2 or -O3",
        )

    from tilec.driver import lints
    from tilec.passes.analysis.uninitialised import unset
    from tilec.passes.explicit_roles.role_listing import listing
    from tilec.passes.loop.decisions import about_turned
    from tilec.passes.memory.staged_stores import stagings
    from tilec.sched.trace import dump, trace as write_trace

    begun = begin(kernel, options)
    target = begun.target
    budget = search_budget(options)
    laid, decisions, planned = _scheduled(begun, options, observer, budget)
    for found in (
        *unset(kernel),
        *_unused(kernel, laid),
        *(w for p in planned if (w := not_proven(p)) is not None),
        *lints.conversions(laid),
        *(
            w
            for one in laid.kernels
            for w in lints.bank_conflicts(one, ((p.loop, p.solution.schedule) for p in planned))
        ),
        *(lint for p in planned for lint in lints.addresses(p.loop, laid, target)),
        *(w for one in laid.kernels for w in (*lints.copies(one), *lints.widths(one))),
        *lints.tensor_memory(laid, target),
        *lints.products(laid, target, options),
    ):
        observer.warn(found, options)
    observer.warnings[:] = lints.judge(observer.warnings, options.lint)
    stores = [asdict(store) for one in laid.kernels for store in stagings(one)]
    solved = [(p.loop.problem, p.solution) for p in planned]
    also = {**_asked(kernel, options), **listing(kernel, laid)}
    decisions = (*decisions, *about_turned(laid, [p.loop for p in planned], options), *begun.about_masks)
    decisions = (*decisions, *about_budget(budget, options))
    trace = dump(write_trace(solved, kernel.name, target.name, target.calibration, decisions, stores, also))
    observer.saw("schedule", planned, lambda _: trace)
    return Plan(kernel, laid, target, planned, decisions, trace)


@dataclass(frozen=True, slots=True)
class Begun:
    """A kernel before anything of it is solved: with its layouts and the grid that is launched, `laid`, and what was
    decided about both; `kernel` is what that was made of, with the tiles cut that it asks for itself (`asked`)."""

    kernel: Kernel
    laid: Laid
    target: Target
    decisions: tuple[Decision, ...]
    asked: tuple[Decision, ...]
    about_masks: tuple[Decision, ...]


def begin(kernel: Kernel, options: CompileOptions) -> Begun:
    """What every plan of a kernel begins with, and every prediction."""
    from tilec.passes.explicit_roles.tensor_sums import with_sums_as_fragments
    from tilec.passes.layout.register_limits import check_registers
    from tilec.passes.loop.choose_subtile import as_asked
    from tilec.passes.loop.eliminate_masks import unmasked
    from tilec.target import table as targets

    target = targets.load(options.target, options.calibration)
    target = target if options.stmatrix else target.without("stmatrix")
    lighter, about_masks = unmasked(_with_asked(kernel, options), target, options)
    cut, asked = as_asked(with_sums_as_fragments(lighter), options)
    laid, decisions = in_place(cut, target, options)
    check_registers(laid)
    return Begun(cut, laid, target, decisions, asked, about_masks)


def _with_asked(kernel: Kernel, options: CompileOptions) -> Kernel:
    """The kernel that asks for what the options ask for it."""
    if not options.fast_math or "fast-math" in kernel.asks:
        return kernel
    return replace(kernel, asks=tuple(sorted((*kernel.asks, "fast-math"))))


def _asked(kernel: Kernel, options: CompileOptions) -> dict[str, Any]:
    """What the kernel and the options say, as far as schedules depend on it."""
    return {
        "constants": {name: str(value) for name, value in options.defines},
        "options": changed(options),
        "threads": kernel.threads,
        "tiles": [
            {"name": b.name, "scope": b.scope, "shape": [*map(str, b.extents)], "dtype": b.dtype.name}
            for b in kernel.buffers
        ],
    }


def _scheduled(
    begun: Begun, options: CompileOptions, observer: Observer, budget: Budget
) -> tuple[Laid, tuple[Decision, ...], tuple[Planned, ...]]:
    """The kernel with the grid that is launched and its layouts, what was decided about both and about its tiles, and a
    schedule for each loop."""
    from tilec.passes.loop.choose_subtile import candidates

    kernel, laid, target = begun.kernel, begun.laid, begun.target
    decisions, asked = begun.decisions, begun.asked
    if not asked and (ways := candidates(kernel, laid, options)):
        return _cut_as_pays(kernel, (laid, decisions), ways, target, options, observer, budget)
    if laid.form == "unspecialised" and options.fewer_stages and options.opt_level > 2 and options.schedule is None:
        laid, planned, about_stages = _with_residence(laid, target, options, budget)
        observer.saw("layout", laid, partial(_laid_text, target=target))
        observer.saw("problem", tuple(p.loop for p in planned), problem_text)
        return laid, (*decisions, *asked, *about_stages), planned
    observer.saw("layout", laid, partial(_laid_text, target=target))
    planned = schedule_loops(laid, target, options, observer, budget)
    return in_order(laid, planned), (*decisions, *asked), planned


def _with_residence(
    laid: Laid, target: Target, options: CompileOptions, budget: Budget
) -> tuple[Laid, tuple[Planned, ...], tuple[Decision, ...]]:
    """With fewer versions of what loops load, where that lets more blocks share a multiprocessor, and pays."""
    from tilec.passes.choices.occupancy import fewer_stages
    from tilec.passes.loop.build_problem import Scheduled

    planned = schedule_loops(laid, target, options, Observer(), budget)
    found = fewer_stages(laid, [Scheduled(p.loop, p.solution.schedule) for p in planned], target)
    if found is None:
        return laid, planned, ()
    fewer, decision = found
    return fewer, schedule_loops(fewer, target, options, Observer(), budget), (decision,)


def _cut_as_pays(
    kernel: Kernel,
    whole: tuple[Laid, tuple[Decision, ...]],
    ways: tuple[Subtile, ...],
    target: Target,
    options: CompileOptions,
    observer: Observer,
    budget: Budget,
) -> tuple[Laid, tuple[Decision, ...], tuple[Planned, ...]]:
    """The same, with the tiles of the only loop whole or cut in one of these ways: the observer sees what is taken."""
    from tilec.passes.loop.assign_roles import products
    from tilec.passes.loop.choose_subtile import as_pays

    plans = {id(kernel): (*whole, schedule_loops(whole[0], target, options, Observer(), budget))}

    def price(cut: Kernel, scheduler: Scheduler) -> Solution | None:
        try:
            laid, decisions = in_place(cut, target, options)
            if len(products(laid.kernel.body)) < len(products(whole[0].kernel.body)):
                return None
            loops = schedule_loops(laid, target, replace(options, scheduler=scheduler), Observer(), budget)
        except CompileError:
            return None
        plans[id(cut)] = laid, decisions, loops
        return loops[0].solution if len(loops) == 1 else None

    (loop,) = plans[id(kernel)][2]
    best, decision = as_pays(kernel, loop.solution, options, ways, price)
    laid, decisions, loops = plans[id(best)]
    observer.saw("layout", laid, partial(_laid_text, target=target))
    observer.saw("problem", tuple(p.loop for p in loops), problem_text)
    return laid, (*decisions, decision), loops


def in_place(kernel: Kernel, target: Target, options: CompileOptions) -> tuple[Laid, tuple[Decision, ...]]:
    """The kernel with the grid that is launched and its layouts, and what was decided about both."""
    from tilec.passes.choices.register_stages import as_pays
    from tilec.passes.explicit_roles.role_layouts import laid_out
    from tilec.passes.grid.blocks import arranged
    from tilec.passes.grid.cta_pair_products import with_pairs
    from tilec.passes.layout.legalise_types import widened
    from tilec.passes.loop.decisions import (
        about_dependent_launch,
        about_detection,
        about_loads,
        about_multicast,
        about_products,
        about_roles,
        why_not_detected,
    )
    from tilec.passes.loop.detect_pipelines import detected, loads_ahead, with_detected
    from tilec.passes.memory.multicast import with_multicast

    def with_layouts(kernel: Kernel) -> Laid:
        strategy, switches = strategy_of(kernel, options), options.switches
        return laid_out(widened(kernel), target, strategy, switches, tma_loads=options.tma_loads)

    as_written, found = kernel, with_detected(kernel, target)
    written = with_layouts(kernel)
    if found is not kernel and why_not_detected(strategy_of(kernel, options), options) is None:
        ahead = with_layouts(found)
        if loads_ahead(ahead, detected(as_written, found)):
            kernel, written = found, ahead
    launched, about_blocks = arranged(kernel, written, target, options)
    laid = written if launched is kernel else with_layouts(launched)
    if laid.form != written.form:
        launched, about_blocks = arranged(kernel, written, target, options, walks=False)
        laid = with_layouts(launched)
    laid, about_registers = as_pays(launched, laid, with_layouts, target, options)
    paired, about_pairs = with_pairs(laid, target, options)
    laid = paired or with_multicast(laid, enabled=options.multicast)
    return laid, (
        *about_roles(laid, options),
        *about_loads(laid, options),
        *about_products(laid, target),
        *about_detection(as_written, found, kernel, strategy_of(as_written, options), options),
        *about_blocks,
        *(() if paired else about_multicast(laid, options)),
        *about_pairs,
        about_dependent_launch(laid, target, options),
        *about_registers,
    )


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


def _laid_text(laid: Laid, target: Target) -> str:
    """The kernel, and under it where the elements of each tile live; what layouts of shared tiles were chosen from."""
    from tilec.ir.text import print_kernel
    from tilec.ir.warp_text import show_fragment, show_shared
    from tilec.passes.layout.atoms import scores, shared_accesses

    lines = [print_kernel(laid.kernel)]
    for name, fragment in laid.fragments.items():
        lines.append(f"fragment {name}: {show_fragment(fragment)}")
    reached = list(shared_accesses(laid.kernel, laid.fragments, laid.nest_layout))
    buffers = {buffer.name: buffer for buffer in laid.kernel.buffers}
    for name, shared in laid.shared.items():
        where = f"{shared.panels} panels of {shared.panel}, swizzle {shared.swizzle}"
        lines.append(f"shared {name}: {where if shared.placement is None else show_shared(shared)}")
        if name not in buffers or shared.placement is not None:
            continue
        patterns = [access.pattern for access in reached if access.tile == name]
        for swizzle, (cost, score) in scores(buffers[name], patterns, target.weights).items():
            taken = f"{cost.smem_transactions} transactions, {cost.live_registers} registers"
            lines.append(f"  swizzle {swizzle}: score {score:g} ({taken})")
    return "\n".join(lines) + "\n"
