"""A schedule for each pipelined loop of a kernel: given by a person, read from a trace, or solved."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.driver.front import strategy_of
from tilec.driver.observer import Observer
from tilec.support.diagnostics import Diagnostic, Label, fail
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.passes.layout.assign_layouts import Laid
    from tilec.passes.loop.build_problem import LoopProblem
    from tilec.sched.budget import Budget
    from tilec.sched.decision import Decision
    from tilec.sched.schedule import Schedule
    from tilec.sched.solution import Solution
    from tilec.target.table import Target


@dataclass(frozen=True, slots=True)
class Planned:
    """A pipelined loop with the answer to its scheduling problem."""

    loop: LoopProblem
    solution: Solution


def search_budget(options: CompileOptions) -> Budget:
    """What all searches for a kernel may take together."""
    from tilec.sched.budget import WORK_PER_EFFORT, Budget

    return Budget(options.search_budget * WORK_PER_EFFORT // 1000)


def schedule_loops(
    laid: Laid, target: Target, options: CompileOptions, observer: Observer, budget: Budget
) -> tuple[Planned, ...]:
    """A schedule for each loop, in program order: read from a trace, given by its stage= and order= lists, or solved. A
    loop's problem is known when those in it are scheduled, so that inner ones go first.
    """
    from tilec.driver.legality import check_ceilings
    from tilec.passes.loop.build_problem import Scheduled, loops_to_schedule, problems

    if laid.parts:
        return _schedule_roles(laid, target, options, observer, budget)
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
            observer.saw("problem", tuple(loops), problem_text)
        for loop in ready if target.ceilings else ():
            check_ceilings(loop, target)
        for loop in ready:
            given = None if read is None else read[place[id(loop.loop)]]
            planned.append(_decide(loop, options, budget) if given is None else _carried_out(loop, given))
        if len(planned) == len(place):
            if read is None and len(planned) == 1 and laid.form == "warp_specialised":
                planned = [_deepened(planned[0])]
            return tuple(sorted(planned, key=lambda p: place[id(p.loop.loop)]))


def _schedule_roles(
    laid: Laid, target: Target, options: CompileOptions, observer: Observer, budget: Budget
) -> tuple[Planned, ...]:
    """A schedule for each loop in which a role of the kernel's own acquires stages of pipelines."""
    if strategy_of(laid.kernel, options) == "none":
        return ()
    from tilec.passes.loop.role_loops import problems

    loops = problems(laid, target)
    observer.saw("problem", loops, problem_text)
    if options.schedule is None:
        return tuple(_decide(loop, options, budget) for loop in loops)
    read = _read_schedules(options.schedule, len(loops))
    return tuple(_carried_out(loop, schedule) for loop, schedule in zip(loops, read, strict=True))


def in_order(laid: Laid, planned: tuple[Planned, ...]) -> Laid:
    """The roles that a kernel makes itself, with their statements in the order of the schedules."""
    if not laid.parts or not planned:
        return laid
    from tilec.passes.loop.role_loops import in_order

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


def _decide(loop: LoopProblem, options: CompileOptions, budget: Budget) -> Planned:
    from tilec.passes.loop.annotate import given_schedule
    from tilec.sched.solve import given

    by_hand = given_schedule(loop)
    return Planned(loop, _solve(loop, options, budget) if by_hand is None else given(loop.problem, by_hand))


def _solve(loop: LoopProblem, options: CompileOptions, budget: Budget) -> Solution:
    from tilec.driver.refusals import binding
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
            budget=budget,
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
    from tilec.driver.refusals import describe, refusals
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


def not_proven(planned: Planned) -> Diagnostic | None:
    if planned.solution.warning is None:
        return None
    label = Label(planned.loop.loop.span)
    helped = "search longer, with a larger --search-budget" if planned.solution.is_cut else None
    return Diagnostic("schedule-not-proven", planned.solution.warning, label, help=helped, severity="warning")


def about_budget(budget: Budget, options: CompileOptions) -> tuple[Decision, ...]:
    """That schedules were searched for no further, where the budget is spent."""
    if not budget.is_spent or options.scheduler != "exact":
        return ()
    from tilec.sched.decision import Decision

    is_usual = options.search_budget == CompileOptions().search_budget
    why = f"the search took all of its {options.search_budget} units: a larger --search-budget may find more"
    return (Decision("search", "budget spent", "the compiler" if is_usual else "the command line", why),)


def problem_text(loops: tuple[LoopProblem, ...]) -> str:
    import json

    from tilec.sched.text import to_json

    return json.dumps([to_json(loop.problem) for loop in loops], indent=1, ensure_ascii=False) + "\n"
