"""The rows of the pass table that decide something: each asks questions about a kernel. The engine answers them and
records the decisions (`passes.choices.question`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from tilec.driver.front import get_strategy
from tilec.driver.planning import compute_layouts
from tilec.driver.scheduling import has_open_roles, solve_problems
from tilec.driver.work import Exploration, Work
from tilec.support.diagnostics import CompileError

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.passes.choices.question import QuestionGenerator
    from tilec.sched.solution import Solution

Explorer = Callable[[Work, str], Work]
"""Runs the table up to the named row, unobserved: from layouts on for a kernel without layouts, else from its
scheduling problems on."""


def eliminate_masks(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Test conditions that hold in most iterations only in the others."""
    from tilec.passes.choices.question import Candidate, ask_question, make_ruled_question
    from tilec.passes.loop.eliminate_masks import describe_masked_iterations, eliminate_masks

    written = work
    kernel, masks = eliminate_masks(written.kernel, written.target)
    for mask in masks:
        fewer = Candidate(describe_masked_iterations(mask), lambda: replace(written, kernel=kernel))
        every = Candidate("in every iteration", lambda: written, "--no-split-loops")
        what = f"mask at line {mask.nest.span.line}"
        if not written.options.split_loops:
            question = make_ruled_question(what, "the command line", "--no-split-loops", every)
        else:
            rest = "its condition" if mask.holds is None else "in the others it"
            question = make_ruled_question(what, "the compiler", f"{rest} holds for every element", fewer, every)
        work = (yield from ask_question(question)).value
    return work


def detect_pipelines(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Pipeline loops that load tiles for products, if asynchronous copies can load them."""
    from tilec.passes.choices.question import Candidate, ask_question, make_ruled_question
    from tilec.passes.loop.detect_pipelines import (
        detect_pipelines,
        find_detected_loops,
        has_asynchronous_loads,
        why_not_detected,
    )

    written = work
    found = detect_pipelines(written.kernel, written.target)
    loops = find_detected_loops(written.kernel, found)
    if not loops:
        return written
    against = why_not_detected(get_strategy(written.kernel, written.options), written.options)
    layouts = None if against is not None else compute_layouts(found, written)
    if layouts is not None and not has_asynchronous_loads(layouts, loops):
        layouts, against = None, ("the compiler", "no asynchronous copy can load its tiles")
    for loop in loops:
        what = f"loop at line {loop.span.line}"
        serial = Candidate("as it is written", lambda: written, "--no-auto-pipeline")
        if against is not None:
            question = make_ruled_question(what, *against, serial)
        else:
            pipelined = Candidate("pipelined", lambda: replace(written, kernel=found, layouts=layouts))
            why = "it loads tiles for a product, and nothing prevents pipelining"
            question = make_ruled_question(what, "the compiler", why, pipelined, serial)
        work = (yield from ask_question(question)).value
    return work


def persistent_grid(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Decide whether to launch only as many blocks as run at once, each looping over the grid."""
    from tilec.passes.choices.launch_grid import choose_persistent_grid
    from tilec.passes.choices.question import ask_question

    against = dict(work.withdrawn_choices).get("persistent-grid")
    question = choose_persistent_grid(work.kernel, work.assignment, work.target, work.options, against)
    return replace(work, walks=(yield from ask_question(question)).value, kernel_before_grid=work.kernel)


def decide_cluster(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Choose the cluster: the blocks that load or multiply shared tiles together."""
    from tilec.passes.choices.cluster import choose_cluster
    from tilec.passes.choices.question import ask_question

    kernel = work.kernel
    chosen = (yield from ask_question(choose_cluster(work.assignment, work.target, work.options, work.walks))).value
    return work if chosen == kernel.cluster else replace(work, kernel=replace(kernel, cluster=chosen))


def decide_rasterisation(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Choose the order in which blocks walk the grid, for reuse in the L2 cache."""
    from tilec.passes.choices.launch_grid import choose_rasterisation
    from tilec.passes.choices.question import ask_question

    question = choose_rasterisation(work.kernel, work.assignment, work.target, work.options, walks=work.walks)
    return replace(work, kernel=(yield from ask_question(question)).value)


def tile_scheduler(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Choose how blocks of a persistent grid get their next tile, and build that grid."""
    from tilec.passes.choices.launch_grid import choose_tile_scheduler, schedule_tiles_statically
    from tilec.passes.choices.question import ask_question

    if not work.walks:
        return work
    if work.options.tile_scheduler == "auto" and not work.target.has("cluster.launch_control"):
        return replace(work, kernel=schedule_tiles_statically(work.kernel, work.target))
    question = choose_tile_scheduler(work.kernel, work.assignment, work.target, work.options)
    return replace(work, kernel=(yield from ask_question(question)).value)


def register_stages(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Decide whether products load their fragments one iteration early."""
    from tilec.passes.choices.register_stages import choose_register_stages

    assignment = yield from choose_register_stages(
        work.kernel, work.assignment, lambda k: compute_layouts(k, work), work.target, work.options
    )
    return replace(work, layouts=assignment)


def cta_pairs(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Decide which products the tensor cores of two blocks compute together."""
    from tilec.passes.choices.question import Candidate, ask_question, make_ruled_question
    from tilec.passes.grid.cta_pair_products import can_pair, pair_products

    if not can_pair(work.assignment, work.target):
        return work
    single = Candidate("none", lambda: work, "--no-cta-pairs")
    if not work.options.cta_pairs:
        return (
            yield from ask_question(make_ruled_question("CTA pairs", "the command line", "--no-cta-pairs", single))
        ).value
    paired, answer = pair_products(work.assignment, work.target)
    if paired is None:
        return (yield from ask_question(make_ruled_question("CTA pairs", "the compiler", answer, single))).value
    both = Candidate(answer, lambda: replace(work, layouts=paired), "--cta-pairs")
    why = "both blocks need the same columns, and each can read half of them from the other"
    return (yield from ask_question(make_ruled_question("CTA pairs", "the compiler", why, both, single))).value


def decide_multicast(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Let the blocks of a cluster share loads, unless their tensor cores multiply together."""
    from tilec.ir.tile import walk_statements
    from tilec.passes.choices.question import Candidate, ask_question, make_ruled_question
    from tilec.passes.grid.cta_pair_products import is_paired
    from tilec.passes.memory.load_footprints import find_load_footprints
    from tilec.passes.memory.multicast import mark_multicast

    if any(map(is_paired, walk_statements(work.assignment.kernel.body))):
        return work
    assignment = mark_multicast(work.assignment, enabled=work.options.multicast)
    if assignment.kernel.cluster.blocks == 1:
        return replace(work, layouts=assignment)
    each = Candidate("none", lambda: replace(work, layouts=assignment), "--no-multicast")
    if not work.options.multicast:
        return (
            yield from ask_question(make_ruled_question("multicast", "the command line", "--no-multicast", each))
        ).value
    found = dict.fromkeys((load.tile, load.shared) for load in find_load_footprints(assignment.kernel) if load.shared)
    if not found:
        why = "no blocks of a cluster load the same tile at the same time"
        return (yield from ask_question(make_ruled_question("multicast", "the compiler", why, each))).value
    chosen = ", ".join(f"{name} along {' and '.join(axes)}" for name, axes in found)
    slices = Candidate(chosen, lambda: replace(work, layouts=assignment), "--multicast")
    why = "each block loads one slice of the tile and multicasts it"
    return (yield from ask_question(make_ruled_question("multicast", "the compiler", why, slices, each))).value


def decide_roles(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Choose which warps load and which compute, within what layouts and mechanisms allow."""
    from tilec.passes.choices.question import ask_question
    from tilec.passes.choices.roles import choose_roles

    return (yield from ask_question(choose_roles(work.assignment, work.options, work))).value


def decide_overlap(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Decide whether statements of two iterations may interleave within a role."""
    from tilec.passes.choices.question import ask_question
    from tilec.passes.choices.roles import choose_overlap

    question = choose_overlap(work.assignment, work.options, work)
    return work if question is None else (yield from ask_question(question)).value


def dependent_launch(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Decide whether the kernel starts while the kernel before it ends."""
    from tilec.passes.choices.dependent_launch import choose_dependent_launch
    from tilec.passes.choices.question import ask_question

    return (yield from ask_question(choose_dependent_launch(work.assignment, work.target, work.options, work))).value


def decide_subtile(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Choose whole or split tiles for the only pipelined loop, whichever has the smaller interval."""
    from tilec.passes.choices.question import ask_question
    from tilec.passes.choices.subtile import SubtilePlan, choose_subtile, find_subtile_candidates
    from tilec.passes.loop.assign_roles import find_wgmma_products

    assert work.unassigned is not None
    whole, unassigned = work, work.unassigned
    is_asked = any(decision.what == "subtile" for decision in unassigned.decisions)
    splits = () if is_asked else find_subtile_candidates(unassigned.kernel, whole.assignment, whole.options)
    if not splits:
        return whole
    planned = _plan_loops(whole, explore, Exploration())

    @cache
    def assign_split_layouts(split: Kernel) -> Work | None:
        try:
            tried = explore(replace(unassigned, kernel=split), "dependent-launch")
        except CompileError:
            return None
        return (
            tried
            if len(find_wgmma_products(tried.assignment.kernel.body))
            >= len(find_wgmma_products(whole.assignment.kernel.body))
            else None
        )

    def solve_by_heuristic(split: Kernel, most: int | None) -> Solution | None:
        tried = assign_split_layouts(split)
        if tried is None:
            return None
        try:
            tried = _plan_loops(tried, explore, Exploration(is_by_heuristic=True, most=most))
        except CompileError:
            return None
        return _get_only_solution(tried)

    def plan_split(split: Kernel) -> Work | None:
        if split is unassigned.kernel:
            return planned
        tried = assign_split_layouts(split)
        try:
            return None if tried is None else _plan_loops(tried, explore, Exploration())
        except CompileError:
            return None

    def get_interval(tried: Work) -> int | None:
        solution = _get_only_solution(tried)
        return None if solution is None else solution.schedule.ii

    (loop,) = planned.explored or ()
    answer = yield from ask_question(
        choose_subtile(
            unassigned.kernel,
            whole.options,
            splits,
            loop.solution,
            SubtilePlan(solve_by_heuristic, plan_split, get_interval),
        )
    )
    return answer.value


def decide_occupancy(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Use fewer tile versions where more blocks then share a multiprocessor and that pays."""
    from tilec.passes.choices.occupancy import choose_stages_by_occupancy
    from tilec.passes.choices.question import ask_question
    from tilec.passes.loop.build_problem import ScheduledLoop

    if work.assignment.form != "unspecialised" or work.explored is not None:
        return work
    unplanned, work = work, _plan_loops(work, explore)
    schedules = [ScheduledLoop(p.loop, p.solution.schedule) for p in work.explored or ()]
    query = choose_stages_by_occupancy(work.assignment, schedules, work.target)
    if query is None:
        return work
    assignment = (yield from ask_question(query)).value
    return work if assignment is work.assignment else _plan_loops(replace(unplanned, layouts=assignment), explore)


def ping_pong(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Decide whether warpgroups of a loop run independently and alternate at the tensor cores."""
    from tilec.passes.choices.ping_pong import choose_ping_pong
    from tilec.passes.choices.question import Candidate, ask_question, make_ruled_question
    from tilec.passes.loop.build_problem import find_ping_pong_loops, loops_to_schedule
    from tilec.passes.loop.decisions import name_ping_pong_decision

    if work.explored is not None or work.assignment.roles:
        return work
    options, loops, divided_loops = work.options, loops_to_schedule(work.assignment), []
    given = {"overlap": options.overlap, "store_role": options.epilogue_warp}
    for loop, _, divided in find_ping_pong_loops(
        work.assignment, work.target, unlimited_smem=options.switches.unlimited_smem, **given
    ):
        what = name_ping_pong_decision(loop, loops)
        if not options.ping_pong:
            yield from ask_question(
                make_ruled_question(what, "the command line", "--no-ping-pong", Candidate("no", lambda: work))
            )
        elif (query := choose_ping_pong(what, divided(), options.max_scheduled_ii)) is not None:
            divided_loops.append((yield from ask_question(query)).value)
    return replace(work, divided=tuple(divided_loops))


def epilogue_warp(work: Work, explore: Explorer) -> QuestionGenerator[Work]:
    """Decide whether a separate warp starts copies to global memory, by the schedule of each loop where it could."""
    from tilec.passes.choices.epilogue_warp import choose_epilogue_warp
    from tilec.passes.choices.question import ask_question
    from tilec.passes.loop.build_problem import ScheduledLoop

    if work.explored is not None:
        return work
    work = replace(work, loops=solve_problems(work, where=has_open_roles))
    for planned in work.loops:
        query = choose_epilogue_warp(ScheduledLoop(planned.loop, planned.solution.schedule), planned.solution)
        if query is not None:
            yield from ask_question(query)
    return work


def _plan_loops(work: Work, explore: Explorer, exploration: Exploration | None = None) -> Work:
    """Schedule the kernel's loops so that later rows do not, or answer only what `exploration` asks about them."""
    scheduled = explore(replace(work, exploration=exploration), "solve")
    return replace(scheduled, explored=scheduled.loops, exploration=None)


def _get_only_solution(work: Work) -> Solution | None:
    """Return the solution of the only loop, or None."""
    loops = work.explored or ()
    return loops[0].solution if len(loops) == 1 else None
