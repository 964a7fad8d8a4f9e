"""The schedules of a kernel's pipelined loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop
from tilec.passes.scheduling.schedule_loop import make_cached_solver, read_given_schedules, schedule_loop
from tilec.passes.state import Exploration, Explorer, KernelState
from tilec.sched.budget import Budget
from tilec.sched.lower_bounds.bounds import compute_bounds
from tilec.sched.model.roles import resolve_roles
from tilec.sched.schedule import deepen_rings
from tilec.sched.solve import settle_objectives
from tilec.support.options import CompileOptions


def solve_loops(state: KernelState) -> tuple[PlannedLoop, ...]:
    """Schedule each pipelined loop by its trace, its hints or the solver; finish explored ones at the same interval.
    The only loop of a warp-specialised kernel then gets the versions that it asks for and memory allows."""
    if state.search.explored is not None:
        planned = tuple(_settle_loop(each, state.options, state.search.budget) for each in state.search.explored)
    else:
        planned = solve_problems(state, where=lambda loop: True)
    if state.search.exploration is not None:
        return planned
    if state.options.schedule is None and len(planned) == 1 and state.assignment.form == "warp_specialised":
        return (_deepen_rings(planned[0]),)
    return planned


def solve_problems(state: KernelState, where: Callable[[LoopProblem], bool]) -> tuple[PlannedLoop, ...]:
    """Return the loops that have schedules or for which `where` holds, the latter scheduled."""
    problems, options = state.problems, state.options
    if not problems:
        return ()
    known = {p.loop.loop.var: p for p in state.loops}
    return tuple(
        known.get(loop.loop.var) or schedule_loop(loop, given, options, state.search.budget, state.search.exploration)
        for loop, given in zip(problems, read_given_schedules(options, len(problems)), strict=True)
        if loop.loop.var in known or where(loop)
    )


def plan_loops(state: KernelState, explore: Explorer, exploration: Exploration | None = None) -> KernelState:
    """Return the state with its loops scheduled and recorded as explored, as far as `exploration` asks."""
    scheduled = explore(replace(state, search=replace(state.search, exploration=exploration)), "solve-loops")
    search = replace(scheduled.search, explored=scheduled.loops, exploration=None)
    return replace(scheduled, search=search)


def _deepen_rings(planned: PlannedLoop) -> PlannedLoop:
    """Return the loop with as many versions of loaded tiles as its `num_stages` asks for and memory allows. A block
    that moves registers between its warps has the multiprocessor to itself."""
    loop, solution = planned.loop, planned.solution
    if loop.loop.num_stages is None or loop.loop.stage is not None:
        return planned
    loaded = (r for r, plan in enumerate(loop.rings) if all(loop.roles[op] == "producer" for op in plan.producers))
    schedule = deepen_rings(loop.problem, solution.schedule, tuple(loaded))
    return replace(planned, solution=replace(solution, schedule=schedule))


def _settle_loop(planned: PlannedLoop, options: CompileOptions, budget: Budget) -> PlannedLoop:
    """Return the loop with the best schedule at its known interval; as it is if it has that already."""
    found = planned.solution
    if found.is_settled:
        return planned
    # Without open roles the cache can verify the solution by itself.
    role = found.schedule.role
    problem = resolve_roles(planned.loop.problem, role)
    plain = replace(
        found, schedule=replace(found.schedule, role=()), bounds=compute_bounds(problem), attempts=(), work=0
    )
    name = f"settled {plain.schedule.ii} {plain.schedule.start}"
    settled_solution = make_cached_solver(
        options, budget, lambda resolved, *rest: settle_objectives(resolved, plain, *rest), name
    )(problem)
    solution = replace(
        found,
        schedule=replace(settled_solution.schedule, role=role),
        objectives=settled_solution.objectives,
        work=found.work + settled_solution.work,
        is_cut=settled_solution.is_cut,
        is_settled=True,
    )
    return replace(planned, solution=solution)
