"""Finds the schedule with the smallest initiation interval, and among those the best one.

The first II with a schedule is optimal if every smaller one is refuted. A few are tried in order, from the lower bound
upward. If these have no schedule, growing steps find some schedule not far above; then those below are refuted all at
once, or one by one where that is affordable. A schedule may exist at one II and not at the next larger, so only what is
found or refuted counts. At each II heuristics come first, so that the solver only looks for what they miss. With the II
fixed, the objectives are settled one after the other, each with the earlier optima as constraints.
`find_smallest_interval` stops before that, for callers that only compare intervals.

Searches are limited by CP-SAT's deterministic time, each question and, by its `Budget`, the whole, so that results do
not depend on load. A limit in seconds gives that up; it is for problems too large to wait for. Where the budget ends,
the answer is the best heuristic schedule, with what is proven so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Literal

from tilec.sched.budget import WORK_PER_EFFORT, Budget
from tilec.sched.heuristics import heuristic
from tilec.sched.lower_bounds.bounds import (
    Bounds,
    Unschedulable,
    compute_bounds,
    compute_depth_limits,
    compute_serial_ii,
)
from tilec.sched.lower_bounds.implied import drop_implied_edges
from tilec.sched.lower_bounds.least import refute_intervals
from tilec.sched.lower_bounds.paths import build_arcs, find_earliest_starts
from tilec.sched.lower_bounds.windows import find_refutation
from tilec.sched.model.anchor import shift_to_valid_begin
from tilec.sched.model.lags import even_out_lags, set_even_lags, set_observed_lags
from tilec.sched.model.levels import EFFORT_PER_LEVEL, LevelSettler, left_justify
from tilec.sched.model.model import Answer, Model
from tilec.sched.model.roles import Roles, find_fewest_handovers, guess_roles, has_roles, resolve_roles
from tilec.sched.objective import evaluate_levels, list_limited_pools, make_schedule
from tilec.sched.problem import Problem
from tilec.sched.schedule import Status
from tilec.sched.solution import Attempt, Solution
from tilec.sched.verify import find_violations
from tilec.support.records import dataclass

Scheduler = Literal["exact", "heuristic"]

# Deterministic time, of which one unit is one to five seconds here.
_EFFORT_PER_II, _EFFORT_PER_NEXT_II = 0.5, 0.1
_QUICK_EFFORT = 0.02
_MAX_OPS_FOR_QUICK_EFFORT = 320
"""Larger models skip the quick first try: they take seconds to read, which the solver does not count as effort."""
_HURRIED_EFFORT = 0.04
_EFFORT_PER_LEAP = 0.05
_EFFORT_FOR_FALLBACK = 4.0

# A few intervals are refuted by windows, whose reasons say more, before many are refuted at once.
_STEPS_BEFORE_LEAP = 8

_INTERVALS_BEFORE_STEPS = 2
# The first step, and what may be left between the last two: a 64th of the interval.
_PRECISION = 64
_WORK_PER_SWEEP, _WORK_PER_START = 300_000, 6_000
"""Work to refute all intervals below a found schedule one by one, two seconds; where that takes more, it ends early."""
_MOST_UNDECIDED = 4
"""So many intervals in a row that the solver neither finds nor refutes, where nothing is found yet: it will not find a
larger one either."""

# Work that heuristics may take for the answer of an ended search, over all intervals tried.
_WORK_FOR_ANSWER = 4_000_000
_PLACINGS_PER_ANSWER = 100
Starts = tuple[int, ...]
Stages = Literal["few", "all", "few, then all"]
"""Of which models an interval is asked: that of the fewest stages and one more, that of all stages that can matter."""


def solve_problem(
    problem: Problem,
    effort: float = 1.0,
    budget: Budget | None = None,
    scheduler: Scheduler = "exact",
    most: int | None = None,
    relaxed: Solution | None = None,
) -> Solution:
    """Return the best schedule found, by heuristics only if asked or serial; raise `Unschedulable` if no II has one.

    `effort` scales how long to search before a proof is given up, charged to the budget. Heuristics try no interval
    above `most` cycles; the solver none below that of `relaxed`, the solution of a problem with fewer constraints.
    """
    budget = budget or Budget()
    before = budget.spent
    if scheduler == "heuristic" or problem.force_serial:
        solution = _solve_by_heuristics(problem, budget, most)
        return replace(solution, work=budget.spent - before, is_cut=budget.is_spent)
    return settle_objectives(problem, find_smallest_interval(problem, effort, budget, relaxed), effort, budget)


def find_smallest_interval(
    problem: Problem,
    effort: float = 1.0,
    budget: Budget | None = None,
    relaxed: Solution | None = None,
    known: Solution | None = None,
) -> Solution:
    """Return a schedule with the smallest II found and fewest stages, not settled; raise `Unschedulable` if none.

    It comes with what is proven. The search begins at the interval of `relaxed`, the solution of a problem with fewer
    constraints, if given: what has no schedule there has none here. It ends below that of `known`, a solution that is
    valid for the problem, or with that one.
    """
    budget = budget or Budget()
    before = budget.spent
    proven = compute_bounds(problem)
    found = _IntervalSweep(drop_implied_edges(problem), proven, effort, budget, relaxed, known)
    answer = found.run()
    status: Status = "feasible" if any(attempt.outcome == "unknown" for attempt in found.attempts) else "optimal"
    plain = set_observed_lags(resolve_roles(problem, answer.role), answer.start)
    schedule = make_schedule(plain, answer.ii, answer.start, status)
    stages, *others = evaluate_levels(plain, schedule)
    stages = replace(stages, proven=found.stages_proven and not answer.is_serial)
    solution = Solution(replace(schedule, role=answer.role), proven, tuple(found.attempts), (stages, *others))
    return replace(solution, work=budget.spent - before, is_cut=budget.is_spent, is_settled=answer.is_serial)


def settle_objectives(
    problem: Problem, solution: Solution, effort: float = 1.0, budget: Budget | None = None
) -> Solution:
    """Return the solution with the best schedule at its interval, settled in every level after the first.

    A settled solution is only verified.
    """
    budget = budget or Budget()
    before = budget.spent
    schedule = solution.schedule
    if not solution.is_settled:
        plain = set_observed_lags(resolve_roles(problem, schedule.role), schedule.start)
        open_cycles = 0 if schedule.status == "optimal" else schedule.ii // _PRECISION
        levels = LevelSettler(plain, schedule.ii, schedule.start, effort, budget, open_cycles)
        schedule = replace(make_schedule(plain, schedule.ii, levels.run(), schedule.status), role=schedule.role)
        objectives = levels.objectives(schedule, is_proven=solution.objectives[0].proven)
        work = solution.work + budget.spent - before
        solution = replace(solution, schedule=schedule, objectives=objectives, work=work, is_settled=True)
        solution = replace(solution, is_cut=budget.is_spent)
    broken = list(find_violations(problem, schedule))
    assert not broken, f"the solver's schedule is wrong: {broken[0]}"
    return solution


def _solve_by_heuristics(problem: Problem, budget: Budget, most: int | None) -> Solution:
    """Return the best schedule of the heuristics, or the solver's if even a serial one is invalid."""
    role = guess_roles(problem, budget) if has_roles(problem) else ()
    plain = resolve_roles(problem, role)
    solution = heuristic.schedule_by_heuristics(drop_implied_edges(plain), budget, most)
    schedule = replace(solution.schedule, role=role)
    if any(find_violations(problem, schedule)) and (heuristic.needs_overlap(problem) or not problem.force_serial):
        # Even the serial schedule is invalid: values exceed their pools in the written order, or an op precedes one of
        # the previous iteration.
        ii, start = find_fallback_schedule(plain, solution.bounds.mii, budget)
        schedule = replace(make_schedule(plain, ii, start, "feasible"), role=role)
        attempts = (Attempt(ii, "found", "solver", "an order that fits the pools, found by the solver"),)
        solution = replace(solution, attempts=attempts, objectives=evaluate_levels(plain, schedule))
    broken = list(find_violations(problem, schedule))
    assert not broken, f"the heuristic's schedule is wrong: {broken[0]}"
    return replace(solution, schedule=schedule)


def find_fallback_schedule(problem: Problem, least: int, budget: Budget | None = None) -> tuple[int, Starts]:
    """Return the II and starts of some valid schedule, serial if possible; raise `Unschedulable` without.

    Where values exceed their pools in the written order, or iterations must overlap, the solver looks for another
    order. A schedule with overlap can also be run serially without holding more, so if no order exists, no schedule
    does. Charged to the budget, even beyond its end.
    """
    ii, start = heuristic.schedule_serially(problem, least)
    is_sure = not list_limited_pools(problem) and not heuristic.needs_overlap(problem)
    broken = [] if is_sure else list(find_violations(problem, make_schedule(problem, ii, start, "given")))
    if not broken:
        return ii, start
    if heuristic.needs_overlap(problem) and (found := heuristic.place_ops(problem, ii)) is not None:
        return ii, found
    budget = budget or Budget()
    separate = budget.without_work_limit()
    answer = Model(problem, ii, budget=separate, from_begin=True).feasible(_EFFORT_FOR_FALLBACK)
    budget.spend(separate.spent)
    if answer.outcome == "found":
        return ii, shift_to_valid_begin(problem, ii, answer.start)
    pool = next((p for p in problem.pools if f"pool {p.name} " in broken[0]), None)
    name = pool.name if pool is not None else "values"
    users = [value for value in problem.values if problem.pools[value.pool] == pool]
    ops = tuple(dict.fromkeys(op for value in users for op in (*value.producers, *value.consumers)))
    orders = "in every order of the ops" if answer.outcome == "refuted" else "in every order that could be tried"
    raise Unschedulable("pool", name, f"the values exceed their pool {orders}; in the written order, {broken[0]}", ops)


@dataclass(frozen=True, slots=True)
class FoundSchedule:
    """A schedule at the smallest II found."""

    ii: int
    start: tuple[int, ...]
    role: Roles = ()
    is_serial: bool = False


KnownSchedule = tuple[int, Starts | None, Roles]
"""II, starts (None: only the serial schedule is known) and roles."""

AttemptedInterval = tuple[Attempt, Answer, int]
"""The record of an interval, the solver's or heuristic's answer, and a lower bound of its stages."""


class _IntervalSweep:
    """Looks for the smallest II that has a schedule, and for the fewest stages at it."""

    def __init__(
        self,
        problem: Problem,
        proven: Bounds,
        effort: float,
        budget: Budget,
        relaxed: Solution | None,
        known: Solution | None,
    ) -> None:
        self.problem, self.proven, self.effort, self.budget = problem, proven, effort, budget
        self.relaxed = relaxed
        self.attempts: list[Attempt] = []
        self.stages_proven = True
        self.undecided: set[tuple[int, int]] = set()
        """Intervals with numbers of stages for which nothing is known."""
        self.spent = 0.0
        self.has_leapt = False
        # Roles for the heuristics; the solver chooses its own.
        self.role = guess_roles(problem, budget) if has_roles(problem) else ()
        self.known: KnownSchedule | None = None
        self.is_known_given = known is not None
        if known is not None:
            self.known = known.schedule.ii, known.schedule.start, known.schedule.role
        self.guess = resolve_roles(problem, self.role)

    def run(self) -> FoundSchedule:
        """Try the intervals from the lower bound upward, record the attempts, and return the first schedule found.

        A spent budget ends the sweep with a heuristic or serial schedule.
        """
        ii = self.proven.mii
        self.serial = find_fallback_schedule(self.guess, max(ii, compute_serial_ii(self.guess)), self.budget)
        if self.relaxed is not None and self.relaxed.attempts and self.relaxed.schedule.ii >= ii:
            ii = self.relaxed.schedule.ii
            self.attempts += (attempt for attempt in self.relaxed.attempts if attempt.ii < ii)
        elif ii > 1:
            reasons = "; ".join(bound.culprit for bound in self.proven.binding)
            binding = tuple(bound.family for bound in self.proven.binding)
            self.attempts.append(Attempt(ii - 1, "refuted", "bound", reasons, families=binding))
        last = max(ii, compute_serial_ii(self.guess)) if not self.is_known_given else self.reachable(ii, ii)[0]
        if self.budget.seconds_left() != inf:
            self.reachable(ii, last)  # before time runs out
        first, leap_from, count, work = ii, ii + _STEPS_BEFORE_LEAP, 0, 0
        while ii <= last:
            self.budget.tried(ii)
            if self.is_known_given and ii == last:
                return self.end_sweep(ii, *self.reachable(ii, last))
            if self.budget.is_over:
                return self.end_sweep(ii, *self.find_by_all_heuristics(ii, last))
            if ii > first and not self.has_leapt and (ii >= leap_from or self.attempts[-1].how == "solver"):
                self.has_leapt = True
                ii = self.leap_refuted_intervals(ii, self.reachable(ii, last)[0])
                continue
            reason = find_refutation(self.problem, ii)
            if reason is not None:
                self.attempts.append(Attempt(ii, "refuted", "bound", reason))
                ii += 1
                continue
            before = self.budget.spent
            attempt, found, fewest = self.attempt_interval(ii, _EFFORT_PER_II if count == 0 else _EFFORT_PER_NEXT_II)
            self.attempts.append(attempt)
            ii += 1
            if attempt.outcome == "found":
                return self.choose(attempt.ii, self.reduce_stages(attempt.ii, found, fewest))
            count, work = count + 1, work + self.budget.spent - before
            if attempt.outcome == "unknown" or count == _INTERVALS_BEFORE_STEPS:
                return self.close_in(ii, last, work // count)
        return self.end_serially(last)

    def close_in(self, first: int, last: int, work: int) -> FoundSchedule:
        """Return the best schedule found from II `first` to `last`, with the attempts below it recorded.

        First some schedule is found, then the IIs below it are refuted at once, or one by one where that is
        affordable, by the `work` that one takes; where one is found after all, it is the smallest.
        """
        high, best, tried = self.approach_interval(first, last)
        low = first
        # Once one proof is missing, the others no longer prove which II is the smallest.
        is_proven = all(attempt.outcome == "refuted" for attempt in self.attempts)
        if is_proven and low < high:
            low = self.leap_refuted_intervals(low, high - 1)
        # The smallest II is often one of the first, so some are tried even where all are too many.
        is_affordable = (high - low) * work <= _WORK_PER_SWEEP
        effort = _EFFORT_PER_II if is_affordable else _HURRIED_EFFORT
        most = self.budget.spent + (_WORK_PER_SWEEP if is_affordable else _WORK_PER_START)
        while is_proven and low < high and not self.budget.is_over:
            self.budget.tried(low)
            is_known = low in tried and tried[low][0].outcome != "unknown"
            attempt, found, fewest = tried[low] if is_known else self.attempt_interval(low, effort)
            self.attempts.append(attempt)
            low += 1
            if attempt.outcome == "found":
                return self.choose(attempt.ii, self.reduce_stages(attempt.ii, found, fewest))
            is_proven = attempt.outcome == "refuted" and self.budget.spent < most
        if best is None:
            return self.end_sweep(low, *self.find_by_all_heuristics(low, last))
        self.skip_intervals(low, high, tried)
        self.attempts.append(best[0])
        return self.choose(high, self.reduce_stages(high, *best[1:]))

    def approach_interval(
        self, first: int, last: int
    ) -> tuple[int, AttemptedInterval | None, dict[int, AttemptedInterval]]:
        """Return the smallest II found from `first` to the one that heuristics reach, at most `last`.

        Steps double until one is found, since most are near the bound; then what is left is halved. With few stages
        that is soon done; with all of them less is left to halve. With the II come what was found there, None beyond
        `last` where only the serial schedule is known, and all that was tried. A schedule may exist at one II and not
        at the next larger, so a smaller one may exist.
        """
        tried: dict[int, AttemptedInterval] = {}
        high, start, role = self.reachable(first, last)
        if start is None:
            high += 1
        else:
            found = Answer("found", False, start, 0.0, role)
            tried[high] = Attempt(high, "found", "heuristic", "a schedule exists"), found, 1
        # What was found with more constraints is near the smallest, so that halving is sooner there.
        step = high if self.is_known_given else max(1, first // _PRECISION)
        high = self.halve_range(first, high, step, "few", tried)
        below = max((ii for ii in tried if ii < high), default=first)
        # Where few stages are too hard to decide about, or none of these intervals has any, all are harder.
        if high in tried and below not in {ii for ii, _ in self.undecided}:
            high = self.halve_range(first, high, high, "all", tried)
        return high, tried.get(high), tried

    def halve_range(self, low: int, high: int, step: int, stages: Stages, tried: dict[int, AttemptedInterval]) -> int:
        """Return the smallest II found between `low` and `high`, by doubling steps and then by halves, and add what was
        tried with so many stages."""
        in_row = 0
        while high - low > high // _PRECISION and not self.budget.is_over:
            if in_row == _MOST_UNDECIDED and high not in tried:
                break
            ii = min(low + step, (low + high) // 2)
            self.budget.tried(ii)
            before = len(self.undecided)
            tried[ii] = self.attempt_interval(ii, _HURRIED_EFFORT, stages)
            low, high = (low, ii) if tried[ii][0].outcome == "found" else (ii + 1, high)
            in_row = min(in_row + 1, _MOST_UNDECIDED) if len(self.undecided) > before else 0
            step *= 2
        return high

    def end_serially(self, last: int) -> FoundSchedule:
        """Record an attempt that found only the serial schedule, and return that schedule."""
        self.attempts.append(Attempt(last, "found", "serial", "one op after the other"))
        return FoundSchedule(*self.serial, self.role, is_serial=True)

    def reachable(self, ii: int, last: int) -> KnownSchedule:
        """Return the II, starts and roles of a schedule that was given, or is found once by a heuristic in growing
        steps; `last` and None if there is none.
        """
        step, most = max(1, ii // 128), _WORK_FOR_ANSWER
        while self.known is None and self.budget.seconds_left() > 0 and ii < last and most > 0:
            most -= heuristic.estimate_placing_work(self.problem, ii)
            if (start := heuristic.place_ops(set_even_lags(self.guess, ii), ii)) is not None:
                self.known = ii, start, self.role
            ii, step = ii + step, step * 5 // 4 + 1
        self.known = self.known or (last, None, self.role)
        return self.known

    def find_by_all_heuristics(self, ii: int, last: int) -> KnownSchedule:
        """Return the II, starts (None: none) and roles of the best heuristic, or of `reachable` if time or work is
        short.
        """
        found, start, role = self.reachable(ii, last)
        work = _PLACINGS_PER_ANSWER * heuristic.estimate_placing_work(self.problem, ii)
        if self.budget.seconds_left() == inf and work <= _WORK_FOR_ANSWER:
            rest = self.budget.reserve_for_answer()
            other = heuristic.schedule_by_heuristics(self.guess, rest).schedule
            self.budget.spend(rest.spent)
            if ii <= other.ii < found and not any(find_violations(self.guess, other)):
                return other.ii, other.start, self.role
        return found, start, role

    def placed(self, ii: int) -> Starts | None:
        """Return the starts that the heuristic finds at this interval, charged to the budget; None if it finds none."""
        self.budget.spend(heuristic.estimate_placing_work(self.problem, ii))
        return heuristic.place_ops(set_even_lags(self.guess, ii), ii)

    def leap_refuted_intervals(self, ii: int, high: int) -> int:
        """Return the first II from `ii` to `high` + 1 that one solver run over all of them does not refute, and record
        the refuted ones."""
        effort = _EFFORT_PER_LEAP * self.effort
        answer = refute_intervals(self.problem, ii, high, effort, budget=self.budget.split_third())
        self.spent += answer.effort
        for at in range(ii, answer.ii):
            spent = round(answer.effort * 1_000_000) if at == ii else 0
            self.attempts.append(Attempt(at, "refuted", "solver", "no schedule exists", spent))
        return answer.ii

    def end_sweep(self, ii: int, last: int, known: Starts | None, role: Roles) -> FoundSchedule:
        """Record IIs from `ii` to `last` as skipped; return the schedule `known` at `last`, or the serial one."""
        self.stages_proven = False
        self.skip_intervals(ii, last, {})
        if known is None:
            return self.end_serially(last)
        self.attempts.append(Attempt(last, "found", "heuristic", "a schedule exists"))
        return FoundSchedule(last, shift_to_valid_begin(self.problem, last, known), role)

    def skip_intervals(self, first: int, last: int, tried: Mapping[int, AttemptedInterval]) -> None:
        """Record the IIs from `first` to `last` − 1 as skipped, those `tried` as what came of them."""
        spent = "the search budget is spent" if self.budget.is_spent else "the effort for proofs is spent"
        why = f"skipped: {spent if self.budget.seconds_left() > 0 else 'time is up'}"
        skipped = (Attempt(at, "unknown", "solver", why) for at in range(first, last))
        self.attempts += (tried[each.ii][0] if each.ii in tried else each for each in skipped)

    def attempt_interval(self, ii: int, effort: float, stages: Stages = "few, then all") -> AttemptedInterval:
        """Look for a schedule at one II, by a heuristic, then by the solver; return what came of it.

        A model of few stages is small, and finds most schedules. Only the model of all stages refutes the II.
        """
        before, known = self.spent, self.placed(ii)
        low = find_earliest_starts(self.problem, ii, build_arcs(self.problem, compute_depth_limits(self.problem, ii)))
        fewest = max(low, default=0) // ii + 1
        if known is not None:
            start = left_justify(set_even_lags(self.guess, ii), ii, known)
            found = Attempt(ii, "found", "heuristic", "a schedule exists")
            return found, Answer("found", False, start, 0.0, self.role), fewest
        answer, is_complete, few = Answer("unknown", False, (), 0.0), False, fewest + 1
        if stages != "all":
            answer, is_complete = self.ask(ii, few, min(effort, _HURRIED_EFFORT))
            if answer.outcome == "refuted":
                fewest += 2
            elif answer.outcome == "unknown":
                self.undecided.add((ii, few))
        if stages != "few" and answer.outcome != "found" and not (answer.outcome == "refuted" and is_complete):
            answer, is_complete = self.ask(ii, None, effort)
        if answer.outcome == "refuted" and not is_complete:
            answer = replace(answer, outcome="unknown")
        why = {
            "found": "a schedule exists", "refuted": "no schedule exists",
            "unknown": "neither found nor refuted with this effort",
        }[answer.outcome]  # fmt: skip
        work = round((self.spent - before) * WORK_PER_EFFORT)
        return Attempt(ii, answer.outcome, "solver", why, work), answer, fewest

    def reduce_stages(self, ii: int, found: Answer, fewest: int) -> Answer:
        """Return an answer of the fewest stages at this II, none of fewer than `fewest`; `found` if none has fewer."""
        self.stages_proven = True
        for stages in range(fewest, max(shift_to_valid_begin(self.problem, ii, found.start), default=0) // ii + 1):
            fewer = Answer("unknown", False, (), 0.0)
            if (ii, stages) not in self.undecided:
                fewer, _ = self.ask(ii, stages, EFFORT_PER_LEVEL)
            if fewer.outcome == "found":
                return fewer
            self.stages_proven &= fewer.outcome == "refuted"
        return found

    def ask(self, ii: int, stages: int | None, effort: float) -> tuple[Answer, bool]:
        """Return the solver's answer for at most `stages` stages, and whether its model allows all stages that can
        matter.
        """
        model = Model(self.problem, ii, stages, budget=self.budget.split_third())
        answer = Answer("unknown", False, (), 0.0)
        if len(self.problem.ops) <= _MAX_OPS_FOR_QUICK_EFFORT:
            answer = model.feasible(min(_QUICK_EFFORT, effort) * self.effort)
            self.spent += answer.effort
        if answer.outcome == "unknown":
            answer = model.feasible(effort * self.effort, hard=True)
            self.spent += answer.effort
        return answer, model.is_complete

    def choose(self, ii: int, answer: Answer) -> FoundSchedule:
        """Return the found schedule with the roles of fewest hand-overs and the most even lags at its II and stages."""
        start, role = shift_to_valid_begin(self.problem, ii, answer.start), answer.role
        stages = max(start, default=0) // ii + 1
        effort = EFFORT_PER_LEVEL * self.effort
        if has_roles(self.problem):
            better = find_fewest_handovers(self.problem, ii, stages, start, effort, self.budget)
            if better is not None:
                role, start = better[0], shift_to_valid_begin(self.problem, ii, better[1])
        if self.problem.copies:
            plain = resolve_roles(self.problem, role)
            start = shift_to_valid_begin(self.problem, ii, even_out_lags(plain, ii, stages, start, effort, self.budget))
        return FoundSchedule(ii, start, role)
