"""The passes over tile IR: what is rewritten, where tiles lie, and what is decided about the blocks and warps of a
kernel before its loops are scheduled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.driver.front import strategy_of
from tilec.driver.scheduling import schedule_loops
from tilec.driver.work import Work
from tilec.support.diagnostics import CompileError
from tilec.support.options import Scheduler

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Kernel
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.sched.decision import Decision
    from tilec.sched.solution import Solution

Explore = Callable[[Work, str], Work]
"""Runs the passes of the table on a kernel without layouts, up to the one of that name, unobserved."""


def eliminate_masks(work: Work, explore: Explore) -> Work:
    """Conditions that hold in most iterations are tested only in the others."""
    from tilec.passes.loop.eliminate_masks import without_masks

    kernel, decisions = without_masks(work.kernel, work.target, work.options)
    return _decided(replace(work, kernel=kernel), *decisions)


def sums_in_fragments(work: Work, observer: Observer) -> Work:
    """Sums that a kernel puts in tensor memory, and leaves to the compiler to order, are fragments."""
    from tilec.passes.explicit_roles.tensor_sums import with_sums_as_fragments

    kernel = work.kernel
    with work.mistakes.caught():
        kernel = with_sums_as_fragments(kernel)
    return replace(work, kernel=kernel)


def subtile_as_asked(work: Work, observer: Observer) -> Work:
    """Tiles in the parts that the kernel asks for."""
    from tilec.passes.loop.choose_subtile import as_asked

    kernel = work.kernel
    decisions: tuple[Decision, ...] = ()
    with work.mistakes.caught():
        kernel, decisions = as_asked(kernel, work.options)
    return _decided(replace(work, kernel=kernel), *decisions)


def layouts_of(kernel: Kernel, work: Work) -> LayoutAssignment:
    """A kernel with a mechanism for each copy and product, and a layout for each tile."""
    from tilec.passes.explicit_roles.role_layouts import with_layouts

    strategy, switches = strategy_of(kernel, work.options), work.options.switches
    given = (work.target, strategy, switches, work.mistakes)
    return with_layouts(kernel, *given, tma_loads=work.options.tma_loads, versions=work.versions)


def legalise_types(work: Work, observer: Observer) -> Work:
    """Types that the machine does not know are computed with as others, and kept as bytes."""
    from tilec.passes.analysis.unique_names import with_unique_names
    from tilec.passes.layout.legalise_types import legalised

    return replace(work, kernel=with_unique_names(legalised(work.kernel, work.mistakes)))


def assign_layouts(work: Work, observer: Observer) -> Work:
    """A mechanism for each copy and product, and a layout for each tile."""
    return replace(work, layouts=layouts_of(work.kernel, work), unassigned=work)


def check_registers(work: Work, observer: Observer) -> Work:
    """Whether the assembler can be asked to keep the fragments of a kernel at all."""
    from tilec.passes.layout.register_limits import check_registers

    check_registers(work.assignment, work.mistakes)
    return work


# ---- choices ---------------------------------------------------------------------------------------------------------


def detect_pipelines(work: Work, explore: Explore) -> Work:
    """Loops that load tiles for products are pipelined, if asynchronous copies can load them."""
    from tilec.passes.loop.decisions import about_detection, why_not_detected
    from tilec.passes.loop.detect_pipelines import detected, prefetches_tiles, with_detected

    written, found = work.kernel, with_detected(work.kernel, work.target)
    strategy = strategy_of(written, work.options)
    if found is not written and why_not_detected(strategy, work.options) is None:
        found_assignment = layouts_of(found, work)
        if prefetches_tiles(found_assignment, detected(written, found)):
            work = replace(work, kernel=found, layouts=found_assignment)
    return _decided(work, *about_detection(written, found, work.kernel, strategy, work.options))


def launch_grid(work: Work, explore: Explore) -> Work:
    """Which blocks run, in which clusters and in which order."""
    from tilec.passes.grid.blocks import arranged

    written = work.assignment
    launched, decisions = arranged(work.kernel, written, work.target, work.options)
    assignment = written if launched is work.kernel else layouts_of(launched, work)
    if assignment.form != written.form:
        launched, decisions = arranged(work.kernel, written, work.target, work.options, walks=False)
        assignment = layouts_of(launched, work)
    return _decided(replace(work, kernel=launched, layouts=assignment), *decisions)


def register_stages(work: Work, explore: Explore) -> Work:
    """Whether products load their fragments an iteration ahead."""
    from tilec.passes.choices.register_stages import as_pays

    assignment, decisions = as_pays(
        work.kernel, work.assignment, lambda k: layouts_of(k, work), work.target, work.options
    )
    return _decided(replace(work, layouts=assignment), *decisions)


def cta_pairs(work: Work, explore: Explore) -> Work:
    """Products that the tensor cores of two blocks do together, or else loads that the blocks of a cluster share."""
    from tilec.passes.grid.cta_pair_products import with_pairs
    from tilec.passes.loop.decisions import about_multicast
    from tilec.passes.memory.multicast import with_multicast

    paired, decisions = with_pairs(work.assignment, work.target, work.options)
    assignment = paired or with_multicast(work.assignment, enabled=work.options.multicast)
    shared = () if paired else about_multicast(assignment, work.options)
    return _decided(replace(work, layouts=assignment), *shared, *decisions)


def explain_warps(work: Work, observer: Observer) -> Work:
    """What was decided about the warps of the kernel, while mechanisms and layouts were chosen."""
    from tilec.passes.loop.decisions import about_loads, about_products, about_programmatic_launch, about_roles

    assignment, options = work.assignment, work.options
    return _decided(
        work,
        *about_roles(assignment, options),
        *about_loads(assignment, options),
        *about_products(assignment, work.target),
        about_programmatic_launch(assignment, work.target, options),
    )


def subtile(work: Work, explore: Explore) -> Work:
    """The tiles of the only pipelined loop whole, or in parts, whichever has the smaller interval."""
    from tilec.passes.loop.assign_roles import products
    from tilec.passes.loop.choose_subtile import as_pays, candidates

    assert work.unassigned is not None
    whole, unassigned = work, work.unassigned
    is_asked = any(decision.what == "subtile" for decision in unassigned.decisions)
    ways = () if is_asked else candidates(unassigned.kernel, whole.assignment, whole.options)
    if not ways:
        return whole
    explored = {id(unassigned.kernel): _explored(whole)}

    def price(subtiled: Kernel, scheduler: Scheduler) -> Solution | None:
        try:
            tried = explore(replace(unassigned, kernel=subtiled), "explain-warps")
            if len(products(tried.assignment.kernel.body)) < len(products(whole.assignment.kernel.body)):
                return None
            tried = _explored(replace(tried, options=replace(whole.options, scheduler=scheduler)))
        except CompileError:
            return None
        explored[id(subtiled)] = replace(tried, options=whole.options)
        return tried.explored[0].solution if tried.explored is not None and len(tried.explored) == 1 else None

    (loop,) = explored[id(unassigned.kernel)].explored or ()
    best, decision = as_pays(unassigned.kernel, loop.solution, whole.options, ways, price)
    return _decided(explored[id(best)], decision)


def occupancy(work: Work, explore: Explore) -> Work:
    """Fewer versions of what loops load, where that lets more blocks share a multiprocessor, and pays."""
    from tilec.passes.choices.occupancy import fewer_stages
    from tilec.passes.loop.build_problem import Scheduled

    if work.assignment.form != "unspecialised" or work.explored is not None:
        return work
    work = _explored(work)
    planned = work.explored or ()
    found = fewer_stages(work.assignment, [Scheduled(p.loop, p.solution.schedule) for p in planned], work.target)
    if found is None:
        return work
    fewer, decision = found
    return _decided(_explored(replace(work, layouts=fewer)), decision)


def _explored(work: Work) -> Work:
    return replace(work, explored=schedule_loops(work.assignment, work.target, work.options, work.budget))


def _decided(work: Work, *decisions: Decision) -> Work:
    return replace(work, decisions=(*work.decisions, *decisions)) if decisions else work
