"""Says why there is no better schedule, for who looks: which families of constraints, with the dependences, leave no
room at the intervals below the answer, and what heuristics would have found.

The families are left out of the model one after the other, to see whether there is a proof without them. What a proof
costs says how long to look for one with a family less; where it is dear, with all of them, none is looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.sched.budget import Budget
from tilec.sched.heuristic import is_serial, trials
from tilec.sched.implied import without_implied
from tilec.sched.lags import observed
from tilec.sched.least import least
from tilec.sched.model import Model
from tilec.sched.objective import limited
from tilec.sched.problem import Problem
from tilec.sched.roles import by_rule, resolve
from tilec.sched.solution import Attempt, Solution
from tilec.sched.windows import needed

# Deterministic time, of which one unit is one to five seconds here.
_EFFORT_PER_PROOF = 0.1
_EFFORT_PER_RANGE = 0.2
_CHEAP_PROOF = 0.01
_MOST_EFFORT_PER_FAMILY = 0.02
_LEAST_EFFORT_PER_FAMILY = 0.004
_TIMES_THE_DEAREST = 4
_WORK = 4_000_000
"""Of a budget, for all that is told of a problem."""


def explained(problem: Problem, solution: Solution, budget: Budget | None = None) -> Solution:
    """The solution of the problem with what refuted the smaller intervals, and with what heuristics reach. What is
    given, or explained, has nothing to explain. The time is that of the budget, which says
    nothing of the answer: it was found before."""
    if solution.trials or not solution.attempts:
        return solution
    budget = budget or Budget(_WORK)
    role = solution.schedule.role
    asked = resolve(problem, role) if role == by_rule(problem) else problem
    *smaller, found = solution.attempts
    asked = without_implied(asked)
    attempts = (*_told_why(asked, _by_windows(asked, smaller), budget), found)
    plain = observed(resolve(problem, role), solution.schedule.start)
    is_compared = not budget.is_over and not (found.how == "serial" and is_serial(plain))
    return replace(solution, attempts=attempts, trials=trials(plain, solution.schedule.ii) if is_compared else ())


def _by_windows(problem: Problem, smaller: Sequence[Attempt]) -> list[Attempt]:
    """The attempts; those that windows refuted with the families that were enough."""
    attempts: list[Attempt] = []
    enough: tuple[str, ...] = ()
    for attempt in smaller:
        if attempt.how == "bound" and not attempt.families:
            enough = needed(problem, attempt.ii, enough)
            attempt = replace(attempt, families=enough)
        attempts.append(attempt)
    return attempts


def _told_why(problem: Problem, smaller: Sequence[Attempt], budget: Budget) -> Sequence[Attempt]:
    """The attempts; with the families that refuted the last one, if the solver did, none of which is known to be one
    too many, and those of the smaller intervals next to it for which they, or they and the rings, are enough."""
    attempts = [*smaller]
    first = len(attempts)
    while first and (attempts[first - 1].how, attempts[first - 1].outcome) == ("solver", "refuted"):
        first -= 1
    if first == len(attempts) or budget.is_over:
        return attempts
    reasons = _Reasons(problem, budget)
    low, high = attempts[first].ii, attempts[-1].ii
    unneeded = reasons.unneeded(high)
    attempts[-1] = _named(attempts[-1], problem, unneeded)
    if not unneeded:
        attempts[first:-1] = (_named(attempt, problem, unneeded) for attempt in attempts[first:-1])
        return attempts
    for others in dict.fromkeys((unneeded, unneeded & {*separable(problem)})):
        if least(problem, low, high - 1, _EFFORT_PER_RANGE, others, budget).ii >= high:
            attempts[first:-1] = (_named(attempt, problem, others) for attempt in attempts[first:-1])
            return attempts
    for at in reversed(range(first, len(attempts) - 1)):
        if reasons.refute(attempts[at].ii, unneeded, _MOST_EFFORT_PER_FAMILY) is None:
            break
        attempts[at] = _named(attempts[at], problem, unneeded)
    return attempts


def _named(attempt: Attempt, problem: Problem, unneeded: frozenset[str]) -> Attempt:
    left = ("dependences", *(family for family in families(problem) if family not in unneeded))
    return replace(attempt, why=f"the {' and '.join(left)} leave no room", families=left)


class _Reasons:
    def __init__(self, problem: Problem, budget: Budget) -> None:
        self.problem, self.budget = problem, budget

    def unneeded(self, ii: int) -> frozenset[str]:
        """Families without which the II is refuted all the same."""
        dropped: frozenset[str] = frozenset()
        dearest = self.refute(ii, dropped, _EFFORT_PER_PROOF)
        if dearest is None or dearest > _CHEAP_PROOF:
            return dropped
        for family in families(self.problem):
            enough = _LEAST_EFFORT_PER_FAMILY + _TIMES_THE_DEAREST * dearest
            spent = self.refute(ii, dropped | {family}, min(enough, _MOST_EFFORT_PER_FAMILY))
            if spent is not None:
                dropped |= {family}
                dearest = max(dearest, spent)
        return dropped

    def refute(self, ii: int, without: frozenset[str], effort: float) -> float | None:
        """The effort that a refutation takes; None if there is none, or it is not found soon."""
        if self.budget.is_over:
            return None
        answer = Model(self.problem, ii, None, without, self.budget).feasible(effort, hard=True)
        return answer.effort if answer.outcome == "refuted" else None


# ---- families of constraints -----------------------------------------------------------------------------------------


def families(problem: Problem) -> tuple[str, ...]:
    """The constraints besides the dependences, as groups that can be left out of a model one by one. What cannot be in
    the way is not among them: a pool that no ring takes anything of, a slot that is used only once."""
    names = ["stages"] if problem.max_stages is not None else []
    names += ["rings"] if problem.rings else []
    taken = {ring.pool for ring in problem.rings if ring.bytes}
    names += [f"pool {pool.name}" for index, pool in enumerate(problem.pools) if index in taken]
    return (*names, *separable(problem))


def separable(problem: Problem) -> tuple[str, ...]:
    """The families whose constraints stand alone: nothing else is drawn from them, as the reach of starts is from
    stages, rings and the pools of rings."""
    used = [use.slot for op in problem.ops for use in op.uses if use.cycles]
    used += [problem.roles[role].slot for op in problem.ops for role in op.roles]
    slots = (f"slot {slot.name}" for index, slot in enumerate(problem.slots) if used.count(index) > 1)
    return (*(f"values in {problem.pools[pool].name}" for pool in limited(problem)), *slots)
