"""The passes that schedule each pipelined loop: by hints in the kernel, from a trace, or by the solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.driver.front import get_strategy
from tilec.driver.work import Exploration, PlannedLoop, Work
from tilec.support.diagnostics import Label, raise_error
from tilec.support.options import CompileOptions

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Kernel
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.passes.loop.build_problem import LoopProblem
    from tilec.sched.budget import Budget
    from tilec.sched.cache import Solver
    from tilec.sched.decision import Decision
    from tilec.sched.problem import Problem
    from tilec.sched.schedule import Schedule
    from tilec.sched.solution import Solution
    from tilec.target.table import Target


def build_all_problems(
    assignment: LayoutAssignment,
    target: Target,
    options: CompileOptions,
    budget: Budget,
    divided: tuple[LoopProblem, ...] = (),
    known: tuple[PlannedLoop, ...] = (),
) -> tuple[tuple[LoopProblem, ...], tuple[PlannedLoop, ...]]:
    """Return the scheduling problem of each loop, in program order, and the inner loops scheduled on the way. A loop's
    problem is known only after its inner loops are scheduled; `known` are some of them."""
    from tilec.driver.legality import check_ceilings
    from tilec.passes.loop.build_problem import ScheduledLoop, build_problems, loops_to_schedule

    if assignment.roles:
        return _build_role_problems(assignment, target, options), ()
    loops = loops_to_schedule(assignment)
    place = {loop.var: k for k, loop in enumerate(loops)}
    read = None if options.schedule is None else _read_schedules(options.schedule, len(loops))
    decided = list(known)
    found = [p.loop for p in decided]
    while True:
        ready = build_problems(
            assignment,
            target,
            [ScheduledLoop(p.loop, p.solution.schedule) for p in decided],
            unlimited_smem=options.switches.unlimited_smem,
            overlap=options.overlap,
            store_role=options.epilogue_warp,
            divided=divided,
        )
        for loop in ready if target.ceilings else ():
            check_ceilings(loop, target)
        found += ready
        if len(found) == len(loops):
            return tuple(sorted(found, key=lambda loop: place[loop.loop.var])), tuple(decided)
        for loop in ready:
            decided.append(_schedule_loop(loop, None if read is None else read[place[loop.loop.var]], options, budget))


def _build_role_problems(
    assignment: LayoutAssignment, target: Target, options: CompileOptions
) -> tuple[LoopProblem, ...]:
    """Return the problem of each loop in which an explicit role acquires pipeline stages."""
    if get_strategy(assignment.kernel, options) == "none":
        return ()
    from tilec.passes.loop.role_loops import build_role_problems

    return build_role_problems(assignment, target)


def has_open_roles(loop: LoopProblem) -> bool:
    """Return whether the loop's schedule chooses the role of some statements."""
    return any(len(op.roles) > 1 for op in loop.problem.ops)


def solve_problems(work: Work, where: Callable[[LoopProblem], bool]) -> tuple[PlannedLoop, ...]:
    """Schedule the loops for which `where` holds; loops that have a schedule keep it."""
    problems, options = work.problems, work.options
    if not problems:
        return ()
    known = {p.loop.loop.var: p for p in work.loops}
    read = (None,) * len(problems) if options.schedule is None else _read_schedules(options.schedule, len(problems))
    return tuple(
        known.get(loop.loop.var) or _schedule_loop(loop, given, options, work.budget, work.exploration)
        for loop, given in zip(problems, read, strict=True)
        if loop.loop.var in known or where(loop)
    )


def _deepen_rings(planned: PlannedLoop) -> PlannedLoop:
    """Return the kernel's only loop with as many tile versions as it asks for, if they fit. A block that moves
    registers between its warps has the multiprocessor to itself."""
    from tilec.sched.slack import deepen_rings

    loop, solution = planned.loop, planned.solution
    if loop.loop.num_stages is None or loop.loop.stage is not None:
        return planned
    loaded = (r for r, plan in enumerate(loop.rings) if all(loop.roles[op] == "producer" for op in plan.producers))
    schedule = deepen_rings(loop.problem, solution.schedule, tuple(loaded))
    return replace(planned, solution=replace(solution, schedule=schedule))


def _schedule_loop(
    loop: LoopProblem,
    read: Schedule | None,
    options: CompileOptions,
    budget: Budget,
    exploration: Exploration | None = None,
) -> PlannedLoop:
    """Return the loop with its schedule from the trace, from the kernel's hints, or from the solver."""
    if read is not None:
        return _use_given_schedule(loop, read)
    from tilec.passes.loop.annotate import build_manual_schedule
    from tilec.sched.solve import record_given_schedule

    manual = build_manual_schedule(loop)
    solution = (
        record_given_schedule(loop.problem, manual)
        if manual is not None
        else _solve_loop(loop, options, budget, exploration)
    )
    return PlannedLoop(loop, solution)


def _solve_loop(
    loop: LoopProblem, options: CompileOptions, budget: Budget, exploration: Exploration | None
) -> Solution:
    """Solve a loop's problem, or find only what `exploration` asks for."""
    from tilec.driver.refusals import describe_binding
    from tilec.sched.bounds import Unschedulable, compute_bounds
    from tilec.sched.roles import solve_with_best_roles
    from tilec.sched.solve import find_smallest_interval, solve_problem

    problem, most = loop.problem, options.max_scheduled_ii
    try:
        is_light = most is not None and len({*loop.roles}) > 1 and compute_bounds(problem).mii > most
        if is_light:
            problem = replace(problem, force_serial=True)
        solver: Solver
        if exploration is not None and exploration.is_by_heuristic:
            up_to = exploration.most
            solver, name = partial(solve_problem, scheduler="heuristic", most=up_to), f"heuristic up to {up_to}"
        elif exploration is not None and options.scheduler == "exact" and not is_light:
            solver, name = find_smallest_interval, "interval"
        else:
            solver, name = partial(solve_problem, scheduler=options.scheduler), options.scheduler
        return solve_with_best_roles(problem, _make_cached_solver(options, budget, solver, name), only_by_rule=is_light)
    except Unschedulable as refusal:
        involved = tuple(Label(loop.statements[op].span) for op in refusal.ops)
        raise_error(
            "unschedulable",
            f"no schedule exists: {refusal.reason}",
            loop.loop.span,
            secondary=involved,
            notes=describe_binding(loop.problem, refusal),
        )


def _make_cached_solver(
    options: CompileOptions, budget: Budget, solver: Solver, name: str
) -> Callable[[Problem], Solution]:
    """Return the solver with its cache on disk."""
    from tilec.sched.cache import solve_cached

    folder = Path(options.cache_dir) if options.cache_dir is not None else None
    return partial(
        solve_cached, folder=folder, afresh=options.solve_afresh, solver=solver, scheduler=name, budget=budget
    )


def _settle_loop(planned: PlannedLoop, options: CompileOptions, budget: Budget) -> PlannedLoop:
    """Return the loop with the best schedule at its known interval."""
    found = planned.solution
    if found.is_settled:
        return planned
    from tilec.sched.bounds import compute_bounds
    from tilec.sched.roles import resolve_roles
    from tilec.sched.solve import settle_objectives

    # Without open roles the cache can verify the solution by itself.
    role = found.schedule.role
    problem = resolve_roles(planned.loop.problem, role)
    plain = replace(
        found, schedule=replace(found.schedule, role=()), bounds=compute_bounds(problem), attempts=(), work=0
    )
    name = f"settled {plain.schedule.ii} {plain.schedule.start}"
    settled_solution = _make_cached_solver(
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


def _read_schedules(trace: str, loops: int) -> tuple[Schedule, ...]:
    """Read the schedules of a trace, one for each of `loops` loops."""
    from tilec.sched.trace import TraceError, read_schedules

    try:
        schedules = read_schedules(trace)
    except TraceError as error:
        raise_error("bad-schedule", f"the schedule file cannot be used: {error}")
    if len(schedules) != loops:
        raise_error("bad-schedule", f"the schedule file has {len(schedules)} loops, the kernel {loops}")
    return tuple(schedules)


def _check_trace_tiles(trace: str, kernel: Kernel, options: CompileOptions) -> None:
    """Raise for the trace of a kernel with other tiles or threads: it schedules other copies and products."""
    from tilec.sched.trace import TraceError, read_kernel_request

    try:
        traced = read_kernel_request(trace)
    except TraceError as error:
        raise_error("bad-schedule", f"the schedule file cannot be used: {error}")
    found = []
    if traced.tiles is not None:
        shapes = {tile.name: tile.shape for tile in traced.tiles}
        for buffer in kernel.buffers:
            shape = tuple(map(str, buffer.extents))
            if (before := shapes.get(buffer.name, shape)) != shape:
                found.append(
                    f"`{buffer.name}` is {' × '.join(before)} in the schedule file and {' × '.join(shape)} here"
                )
    if traced.threads not in (None, kernel.threads):
        found.append(f"a block has {traced.threads} threads in the schedule file and {kernel.threads} here")
    if not found:
        return
    defined = {name: str(value) for name, value in options.defines}
    for name in dict.fromkeys([*traced.constants, *defined]):
        then, now = (values.get(name, "the kernel's own") for values in (traced.constants, defined))
        if then != now:
            found.append(f"constant {name} is {then} in the schedule file and {now} here")
    again = " ".join(f"-D {name}={value}" for name, value in traced.constants.items())
    raise_error(
        "bad-schedule",
        "the schedule file was written for other constants of this kernel",
        notes=tuple(found),
        help=f"compile with {again or 'no -D'}, as the schedule file was, or write a new one with "
        "--schedule-trace-file",
    )


def _use_given_schedule(loop: LoopProblem, schedule: Schedule) -> PlannedLoop:
    """Return the loop with the schedule of a trace. Raises if it is illegal: a person may have edited it."""
    from tilec.driver.refusals import describe_placement, find_refusals
    from tilec.sched.roles import choose_roles_by_rule, is_valid_assignment, resolve_roles
    from tilec.sched.solve import record_given_schedule
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


# ---- passes ----------------------------------------------------------------------------------------------------------


def build_problems(work: Work, observer: Observer) -> Work:
    """Build the scheduling problem of each pipelined loop."""
    if work.is_checked_only:
        from tilec.driver.legality import check_loops

        check_loops(work.assignment, work.target, work.options.switches, work.mistakes)
        return work
    if work.explored is not None:
        return replace(work, problems=tuple(p.loop for p in work.explored), loops=work.explored)
    if work.options.schedule is not None:
        _check_trace_tiles(work.options.schedule, work.source_kernel, work.options)
    problems, decided = build_all_problems(
        work.assignment, work.target, work.options, work.budget, work.divided, work.loops
    )
    return replace(work, problems=problems, loops=decided)


def solve_loops(work: Work, observer: Observer) -> Work:
    """Solve the scheduling problem of each pipelined loop."""
    if work.explored is not None:
        planned = tuple(_settle_loop(each, work.options, work.budget) for each in work.explored)
    else:
        planned = solve_problems(work, where=lambda loop: True)
    if work.exploration is not None:
        return replace(work, loops=planned)
    if work.options.schedule is None and len(planned) == 1 and work.assignment.form == "warp_specialised":
        planned = (_deepen_rings(planned[0]),)
    return replace(work, loops=planned)


def order_roles(work: Work, observer: Observer) -> Work:
    """Put the statements of explicit roles in the order of their schedules."""
    if not work.assignment.roles or not work.loops:
        return work
    from tilec.passes.loop.role_loops import order_roles

    ordered = order_roles(
        work.assignment, {(p.loop.roles[0], p.loop.loop.var): p.solution.schedule for p in work.loops}
    )
    return replace(work, layouts=ordered)


# ---- what is written and checked of them -----------------------------------------------------------------------------


def explain_budget(budget: Budget, options: CompileOptions) -> tuple[Decision, ...]:
    """Return a decision that says so if the search budget is spent."""
    if not budget.is_spent:
        return ()
    from tilec.sched.decision import Decision

    is_default = options.search_budget == CompileOptions().search_budget
    why = (
        f"the search used all of its {options.search_budget} units; a larger --search-budget may find a better schedule"
    )
    return (Decision("search", "budget spent", "the compiler" if is_default else "the command line", why),)


def format_problems(loops: tuple[LoopProblem, ...]) -> str:
    """Return the problems as the JSON that `tilec schedule --problem` reads."""
    import json

    from tilec.sched.text import problem_to_json

    return json.dumps([problem_to_json(loop.problem) for loop in loops], indent=1, ensure_ascii=False) + "\n"
