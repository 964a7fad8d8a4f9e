"""The rows of the pass table that decide something: each asks questions about a kernel. The engine answers them and
records the decisions (`passes.choices.question`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from tilec.driver.front import strategy_of
from tilec.driver.planning import layouts_of
from tilec.driver.scheduling import has_open_roles, solved
from tilec.driver.work import Exploration, Work
from tilec.support.diagnostics import CompileError

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.passes.choices.question import Asking
    from tilec.sched.solution import Solution

Explore = Callable[[Work, str], Work]
"""Runs the table up to the named row, unobserved: from layouts on for a kernel without layouts, else from its
scheduling problems on."""


def eliminate_masks(work: Work, explore: Explore) -> Asking[Work]:
    """Test conditions that hold in most iterations only in the others."""
    from tilec.passes.choices.question import Candidate, ask, ruled
    from tilec.passes.loop.eliminate_masks import iterations, without_masks

    written = work
    kernel, masks = without_masks(written.kernel, written.target)
    for mask in masks:
        fewer = Candidate(iterations(mask), lambda: replace(written, kernel=kernel))
        every = Candidate("in every iteration", lambda: written, "--no-split-loops")
        what = f"mask at line {mask.nest.span.line}"
        if not written.options.split_loops:
            question = ruled(what, "the command line", "--no-split-loops", every)
        else:
            rest = "its condition" if mask.holds is None else "in the others it"
            question = ruled(what, "the compiler", f"{rest} holds for every element", fewer, every)
        work = (yield from ask(question)).value
    return work


def detect_pipelines(work: Work, explore: Explore) -> Asking[Work]:
    """Pipeline loops that load tiles for products, if asynchronous copies can load them."""
    from tilec.passes.choices.question import Candidate, ask, ruled
    from tilec.passes.loop.detect_pipelines import detected, prefetches_tiles, why_not_detected, with_detected

    written = work
    found = with_detected(written.kernel, written.target)
    loops = detected(written.kernel, found)
    if not loops:
        return written
    against = why_not_detected(strategy_of(written.kernel, written.options), written.options)
    layouts = None if against is not None else layouts_of(found, written)
    if layouts is not None and not prefetches_tiles(layouts, loops):
        layouts, against = None, ("the compiler", "no asynchronous copy can load its tiles")
    for loop in loops:
        what = f"loop at line {loop.span.line}"
        serial = Candidate("as it is written", lambda: written, "--no-auto-pipeline")
        if against is not None:
            question = ruled(what, *against, serial)
        else:
            pipelined = Candidate("pipelined", lambda: replace(written, kernel=found, layouts=layouts))
            why = "it loads tiles for a product, and nothing speaks against it"
            question = ruled(what, "the compiler", why, pipelined, serial)
        work = (yield from ask(question)).value
    return work


def persistent_grid(work: Work, explore: Explore) -> Asking[Work]:
    """Decide whether to launch only as many blocks as run at once, each looping over the grid."""
    from tilec.passes.choices.launch_grid import persistence
    from tilec.passes.choices.question import ask

    against = dict(work.withdrawn).get("persistent-grid")
    question = persistence(work.kernel, work.assignment, work.target, work.options, against)
    return replace(work, walks=(yield from ask(question)).value, ungrouped=work.kernel)


def cluster(work: Work, explore: Explore) -> Asking[Work]:
    """Choose the cluster: the blocks that load or multiply shared tiles together."""
    from tilec.passes.choices.cluster import question
    from tilec.passes.choices.question import ask

    kernel = work.kernel
    chosen = (yield from ask(question(work.assignment, work.target, work.options, work.walks))).value
    return work if chosen == kernel.cluster else replace(work, kernel=replace(kernel, cluster=chosen))


def rasterisation(work: Work, explore: Explore) -> Asking[Work]:
    """Choose the order in which blocks walk the grid, for reuse in the L2 cache."""
    from tilec.passes.choices.launch_grid import rasterisation
    from tilec.passes.choices.question import ask

    question = rasterisation(work.kernel, work.assignment, work.target, work.options, walks=work.walks)
    return replace(work, kernel=(yield from ask(question)).value)


def tile_scheduler(work: Work, explore: Explore) -> Asking[Work]:
    """Choose how blocks of a persistent grid get their next tile, and build that grid."""
    from tilec.passes.choices.launch_grid import by_stride, next_tiles
    from tilec.passes.choices.question import ask

    if not work.walks:
        return work
    if work.options.tile_scheduler == "auto" and not work.target.has("cluster.launch_control"):
        return replace(work, kernel=by_stride(work.kernel, work.target))
    question = next_tiles(work.kernel, work.assignment, work.target, work.options)
    return replace(work, kernel=(yield from ask(question)).value)


def register_stages(work: Work, explore: Explore) -> Asking[Work]:
    """Decide whether products load their fragments one iteration early."""
    from tilec.passes.choices.register_stages import asking

    assignment = yield from asking(
        work.kernel, work.assignment, lambda k: layouts_of(k, work), work.target, work.options
    )
    return replace(work, layouts=assignment)


def cta_pairs(work: Work, explore: Explore) -> Asking[Work]:
    """Decide which products the tensor cores of two blocks compute together."""
    from tilec.passes.choices.question import Candidate, ask, ruled
    from tilec.passes.grid.cta_pair_products import may_pair, with_pairs

    if not may_pair(work.assignment, work.target):
        return work
    single = Candidate("none", lambda: work, "--no-cta-pairs")
    if not work.options.cta_pairs:
        return (yield from ask(ruled("CTA pairs", "the command line", "--no-cta-pairs", single))).value
    paired, answer = with_pairs(work.assignment, work.target)
    if paired is None:
        return (yield from ask(ruled("CTA pairs", "the compiler", answer, single))).value
    both = Candidate(answer, lambda: replace(work, layouts=paired), "--cta-pairs")
    why = "they need the same columns, which their tensor cores can read from each other"
    return (yield from ask(ruled("CTA pairs", "the compiler", why, both, single))).value


def multicast(work: Work, explore: Explore) -> Asking[Work]:
    """Let the blocks of a cluster share loads, unless their tensor cores multiply together."""
    from tilec.ir.tile import walk
    from tilec.passes.choices.question import Candidate, ask, ruled
    from tilec.passes.grid.cta_pair_products import is_paired
    from tilec.passes.memory.load_footprints import footprints
    from tilec.passes.memory.multicast import with_multicast

    if any(map(is_paired, walk(work.assignment.kernel.body))):
        return work
    assignment = with_multicast(work.assignment, enabled=work.options.multicast)
    if assignment.kernel.cluster.blocks == 1:
        return replace(work, layouts=assignment)
    each = Candidate("none", lambda: replace(work, layouts=assignment), "--no-multicast")
    if not work.options.multicast:
        return (yield from ask(ruled("multicast", "the command line", "--no-multicast", each))).value
    found = dict.fromkeys((load.tile, load.shared) for load in footprints(assignment.kernel) if load.shared)
    if not found:
        why = "no blocks of a cluster load the same tile at the same time"
        return (yield from ask(ruled("multicast", "the compiler", why, each))).value
    chosen = ", ".join(f"{name} along {' and '.join(axes)}" for name, axes in found)
    slices = Candidate(chosen, lambda: replace(work, layouts=assignment), "--multicast")
    why = "each block loads a slice, for all that need the tile"
    return (yield from ask(ruled("multicast", "the compiler", why, slices, each))).value


def roles(work: Work, explore: Explore) -> Asking[Work]:
    """Choose which warps load and which compute, within what layouts and mechanisms allow."""
    from tilec.passes.choices.question import ask
    from tilec.passes.choices.roles import roles

    return (yield from ask(roles(work.assignment, work.options, work))).value


def overlap(work: Work, explore: Explore) -> Asking[Work]:
    """Decide whether statements of two iterations may interleave within a role."""
    from tilec.passes.choices.question import ask
    from tilec.passes.choices.roles import overlap

    question = overlap(work.assignment, work.options, work)
    return work if question is None else (yield from ask(question)).value


def dependent_launch(work: Work, explore: Explore) -> Asking[Work]:
    """Decide whether the kernel starts while the kernel before it ends."""
    from tilec.passes.choices.dependent_launch import question
    from tilec.passes.choices.question import ask

    return (yield from ask(question(work.assignment, work.target, work.options, work))).value


def subtile(work: Work, explore: Explore) -> Asking[Work]:
    """Choose whole or split tiles for the only pipelined loop, whichever has the smaller interval."""
    from tilec.passes.choices.question import ask
    from tilec.passes.choices.subtile import Plan, candidates, question
    from tilec.passes.loop.assign_roles import products

    assert work.unassigned is not None
    whole, unassigned = work, work.unassigned
    is_asked = any(decision.what == "subtile" for decision in unassigned.decisions)
    splits = () if is_asked else candidates(unassigned.kernel, whole.assignment, whole.options)
    if not splits:
        return whole
    planned = _planned(whole, explore, Exploration())

    @cache
    def with_layouts(split: Kernel) -> Work | None:
        try:
            tried = explore(replace(unassigned, kernel=split), "dependent-launch")
        except CompileError:
            return None
        return (
            tried
            if len(products(tried.assignment.kernel.body)) >= len(products(whole.assignment.kernel.body))
            else None
        )

    def quickly(split: Kernel, most: int | None) -> Solution | None:
        tried = with_layouts(split)
        if tried is None:
            return None
        try:
            tried = _planned(tried, explore, Exploration(is_by_heuristic=True, most=most))
        except CompileError:
            return None
        return _only(tried)

    def made(split: Kernel) -> Work | None:
        if split is unassigned.kernel:
            return planned
        tried = with_layouts(split)
        try:
            return None if tried is None else _planned(tried, explore, Exploration())
        except CompileError:
            return None

    def interval(tried: Work) -> int | None:
        solution = _only(tried)
        return None if solution is None else solution.schedule.ii

    (loop,) = planned.explored or ()
    answer = yield from ask(
        question(unassigned.kernel, whole.options, splits, loop.solution, Plan(quickly, made, interval))
    )
    return answer.value


def occupancy(work: Work, explore: Explore) -> Asking[Work]:
    """Use fewer tile versions where more blocks then share a multiprocessor and that pays."""
    from tilec.passes.choices.occupancy import question
    from tilec.passes.choices.question import ask
    from tilec.passes.loop.build_problem import Scheduled

    if work.assignment.form != "unspecialised" or work.explored is not None:
        return work
    unplanned, work = work, _planned(work, explore)
    schedules = [Scheduled(p.loop, p.solution.schedule) for p in work.explored or ()]
    query = question(work.assignment, schedules, work.target)
    if query is None:
        return work
    assignment = (yield from ask(query)).value
    return work if assignment is work.assignment else _planned(replace(unplanned, layouts=assignment), explore)


def ping_pong(work: Work, explore: Explore) -> Asking[Work]:
    """Decide whether warpgroups of a loop run independently and alternate at the tensor cores."""
    from tilec.passes.choices.ping_pong import question
    from tilec.passes.choices.question import Candidate, ask, ruled
    from tilec.passes.loop.build_problem import divisions, loops_to_schedule
    from tilec.passes.loop.decisions import ping_pong

    if work.explored is not None or work.assignment.roles:
        return work
    options, loops, divided_loops = work.options, loops_to_schedule(work.assignment), []
    given = {"overlap": options.overlap, "store_role": options.epilogue_warp}
    for loop, _, divided in divisions(
        work.assignment, work.target, unlimited_smem=options.switches.unlimited_smem, **given
    ):
        what = ping_pong(loop, loops)
        if not options.ping_pong:
            yield from ask(ruled(what, "the command line", "--no-ping-pong", Candidate("no", lambda: work)))
        elif (query := question(what, divided(), options.max_scheduled_ii)) is not None:
            divided_loops.append((yield from ask(query)).value)
    return replace(work, divided=tuple(divided_loops))


def epilogue_warp(work: Work, explore: Explore) -> Asking[Work]:
    """Decide whether a separate warp starts copies to global memory, by the schedule of each loop where it could."""
    from tilec.passes.choices.epilogue_warp import question
    from tilec.passes.choices.question import ask
    from tilec.passes.loop.build_problem import Scheduled

    if work.explored is not None:
        return work
    work = replace(work, loops=solved(work, where=has_open_roles))
    for planned in work.loops:
        query = question(Scheduled(planned.loop, planned.solution.schedule), planned.solution)
        if query is not None:
            yield from ask(query)
    return work


def _planned(work: Work, explore: Explore, exploration: Exploration | None = None) -> Work:
    """Schedule the kernel's loops so that later rows do not, or answer only what `exploration` asks about them."""
    scheduled = explore(replace(work, exploration=exploration), "solve")
    return replace(scheduled, explored=scheduled.loops, exploration=None)


def _only(work: Work) -> Solution | None:
    """Return the solution of the only loop, or None."""
    loops = work.explored or ()
    return loops[0].solution if len(loops) == 1 else None
