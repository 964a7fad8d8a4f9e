"""A schedule for a pipelined loop: by hints in the kernel, from a trace, or by the solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.analysis.fragment_prefetch import is_wgmma_operation
from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop
from tilec.passes.state import Exploration
from tilec.sched.problem import has_less_room
from tilec.support.diagnostics import CompileError, Label, raise_error
from tilec.support.options import CompileOptions
from tilec.support.processes import start_isolated_functions

if TYPE_CHECKING:
    from tilec.sched.budget import Budget
    from tilec.sched.cache import Solver
    from tilec.sched.problem import Problem
    from tilec.sched.schedule import Schedule
    from tilec.sched.solution import Solution


def schedule_loop(
    loop: LoopProblem,
    read: Schedule | None,
    options: CompileOptions,
    budget: Budget,
    exploration: Exploration | None = None,
) -> PlannedLoop:
    """Return the loop with the given schedule, else by the kernel's hints, else solved."""
    if read is not None:
        return _use_given_schedule(loop, read)
    from tilec.passes.loop.annotate import build_manual_schedule
    from tilec.sched.objective import record_given_schedule

    manual = build_manual_schedule(loop)
    if manual is not None:
        return PlannedLoop(loop, record_given_schedule(loop.problem, manual))
    solution = solve_loop(loop, options, budget, exploration, relaxed=_find_relaxed_solution(loop, exploration))
    crossing = find_crossing_products(loop, solution.schedule)
    if not crossing:
        return PlannedLoop(loop, solution)
    kept = replace(loop, problem=replace(loop.problem, same_stage=(*loop.problem.same_stage, *crossing)))
    try:
        other = solve_loop(kept, options, budget, exploration, relaxed=solution)
    except CompileError:
        return PlannedLoop(loop, solution)
    exposed = sum(loop.problem.ops[product].latency for product, _ in crossing)
    return (
        PlannedLoop(kept, other) if other.schedule.ii <= solution.schedule.ii + exposed else PlannedLoop(loop, solution)
    )


def _find_relaxed_solution(loop: LoopProblem, exploration: Exploration | None) -> Solution | None:
    """Return the solution of the loop with more room that an exploration knows, if it differs in nothing else."""
    known = exploration.roomier if exploration is not None else ()
    return next((each.solution for each in known if has_less_room(loop.problem, each.loop.problem)), None)


def find_crossing_products(loop: LoopProblem, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """Return the wgmma products of a loop with the ops that read their results first, if threads read the result of
    each product, in a later iteration of the scheduled loop; else ().

    The assembler follows no product across the end of an iteration where threads use its accumulator: the wait is then
    for all products, also those begun since, and none would run beside the threads. So it pays to keep each product
    and its reader in one stage, unless the interval grows by more than the products take.
    """
    readers: dict[int, int] = {}
    for edge in loop.problem.edges:
        is_read = edge.distance == 0 and edge.why.startswith("data ")
        if is_read and is_wgmma_operation(loop.statements[edge.src]):
            first = min(readers.get(edge.src, edge.dst), edge.dst, key=lambda op: schedule.start[op])
            readers[edge.src] = first
    products = [op for op, stmt in enumerate(loop.statements) if is_wgmma_operation(stmt)]
    crosses = all(
        op in readers
        and not is_wgmma_operation(loop.statements[readers[op]])
        and schedule.stage[op] != schedule.stage[readers[op]]
        for op in products
    )
    return tuple((op, readers[op]) for op in products) if crosses else ()


def solve_loop(
    loop: LoopProblem,
    options: CompileOptions,
    budget: Budget,
    exploration: Exploration | None,
    relaxed: Solution | None = None,
) -> Solution:
    """Return a loop's solution: searched, serial beyond an II limit, or as far as `exploration` asks; refuse if none
    exists. The search begins where it ended for `relaxed`, the solution of the loop with fewer constraints."""
    from tilec.passes.scheduling.refusals import describe_binding
    from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds
    from tilec.sched.model.roles import solve_with_best_roles
    from tilec.sched.solve import find_smallest_interval, solve_problem

    problem, most = loop.problem, options.max_scheduled_ii
    try:
        is_light = most is not None and len({*loop.roles}) > 1 and compute_bounds(problem).mii > most
        if is_light:
            problem = replace(problem, force_serial=True)
        is_exact = options.scheduler == "exact" and not is_light
        is_interval_only = is_exact and exploration is not None and not exploration.is_by_heuristic
        solver: Solver
        # With roles to choose, what has no schedule may be due to those that were chosen.
        known = relaxed if all(len(op.roles) < 2 for op in problem.ops) else None
        if exploration is not None and exploration.is_by_heuristic:
            up_to = exploration.most
            solver, name = partial(solve_problem, scheduler="heuristic", most=up_to), f"heuristic up to {up_to}"
        elif is_interval_only:
            solver, name = partial(find_smallest_interval, relaxed=known), "interval"
        else:
            solver, name = partial(solve_problem, scheduler=options.scheduler, relaxed=known), options.scheduler
        if known is not None:
            name += f" behind {known.schedule.ii}: {known.warning}"

        def search_below(problem: Problem, known: Solution) -> Solution:
            """Return a solution of a smaller interval than that of a known one, or the known one."""
            schedule = known.schedule
            below = f"{name} below {schedule.ii}: {schedule.start} {schedule.role}"
            search = partial(find_smallest_interval, known=known)
            return make_cached_solver(options, budget, search, below)(problem)

        solve = make_cached_solver(options, budget, solver, name)
        solve_below = search_below if is_interval_only else None
        return solve_with_best_roles(problem, solve, only_by_rule=is_light, solve_below=solve_below)
    except Unschedulable as refusal:
        involved = tuple(Label(loop.statements[op].span) for op in refusal.ops)
        raise_error(
            "unschedulable",
            f"no schedule exists: {refusal.reason}",
            loop.loop.span,
            secondary=involved,
            notes=describe_binding(loop.problem, refusal),
        )


def make_cached_solver(
    options: CompileOptions, budget: Budget, solver: Solver, name: str
) -> Callable[[Problem], Solution]:
    """Return a function that solves a problem by this solver, or takes the solution from the cache that the options
    name."""
    from tilec.sched.cache import solve_cached

    def search_schedule(problem: Problem, effort: float, budget: Budget) -> Solution:
        """Solve what is not in the cache; meanwhile the library of the assembler, which follows, is loaded."""
        start_isolated_functions()
        return solver(problem, effort, budget)

    folder = Path(options.cache_dir) if options.cache_dir is not None else None
    return partial(
        solve_cached, folder=folder, afresh=options.solve_afresh, solver=search_schedule, scheduler=name, budget=budget
    )


def _use_given_schedule(loop: LoopProblem, schedule: Schedule) -> PlannedLoop:
    """Return the loop with a trace's schedule; refuse one that is not valid for the loop, with its violations. A person
    may have edited it."""
    from tilec.passes.scheduling.refusals import describe_placement, find_refusals
    from tilec.sched.model.roles import choose_roles_by_rule, is_valid_assignment, resolve_roles
    from tilec.sched.objective import record_given_schedule
    from tilec.sched.verify import find_violations

    if broken := tuple(find_violations(loop.problem, schedule)):
        is_divided = len(schedule.role) == len(loop.problem.ops) and is_valid_assignment(loop.problem, schedule.role)
        plain = resolve_roles(loop.problem, schedule.role if is_divided else choose_roles_by_rule(loop.problem))
        refused = list(find_refusals(plain, schedule))
        ops = dict.fromkeys(op for refusal in refused for op in refusal.ops)
        placed = tuple(describe_placement(plain, schedule, op) for op in ops)
        # One label a statement: its first refusal.
        blamed = {refusal.ops[0]: refusal.text for refusal in reversed(refused)}
        labels = tuple(Label(loop.statements[op].span, text) for op, text in sorted(blamed.items()))
        title = "the given schedule is not valid for this loop"
        raise_error("bad-schedule", title, loop.loop.span, secondary=labels, notes=(*broken, *placed))
    return PlannedLoop(loop, record_given_schedule(loop.problem, schedule))


def read_given_schedules(options: CompileOptions, loops: int) -> tuple[Schedule | None, ...]:
    """Return the schedule that the given trace has for each loop, or Nones without a trace; refuse an unfit trace."""
    if options.schedule is None:
        return (None,) * loops
    from tilec.sched.trace import TraceError, read_schedules

    try:
        schedules = read_schedules(options.schedule)
    except TraceError as error:
        raise_error("bad-schedule", f"the schedule file cannot be used: {error}")
    if len(schedules) != loops:
        raise_error("bad-schedule", f"the schedule file has {len(schedules)} loops, the kernel {loops}")
    return tuple(schedules)
