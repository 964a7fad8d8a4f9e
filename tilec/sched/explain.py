"""Says what refuted the intervals below the answer: which families of constraints, with the dependences, leave no room.

The families are left out of the model one after the other, to see whether there is a proof without them. What a proof
costs says how long to look for one with a family less; where it is dear, with all of them, none is looked for.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.sched.budget import Budget
from tilec.sched.families import families, separable
from tilec.sched.least import least
from tilec.sched.model import Model
from tilec.sched.problem import Problem
from tilec.sched.solution import Attempt

# Deterministic time, of which one unit is one to five seconds here.
_EFFORT_PER_PROOF = 0.1
_EFFORT_PER_RANGE = 0.2
_CHEAP_PROOF = 0.01
_MOST_EFFORT_PER_FAMILY = 0.02
_LEAST_EFFORT_PER_FAMILY = 0.004
_TIMES_THE_DEAREST = 4


def explain(problem: Problem, attempts: list[Attempt], effort: float, budget: Budget) -> None:
    """Writes into the last attempt, if the solver refuted it, the families that did, none of which is known to be one
    too many; and into those of the smaller intervals next to it for which they, or they and the rings, are enough."""
    first = len(attempts)
    while first and (attempts[first - 1].how, attempts[first - 1].outcome) == ("solver", "refuted"):
        first -= 1
    if first == len(attempts) or budget.is_over:
        return
    reasons = _Reasons(problem, effort, budget)
    low, high = attempts[first].ii, attempts[-1].ii
    unneeded = reasons.unneeded(high)
    attempts[-1] = _named(attempts[-1], problem, unneeded)
    if not unneeded:
        attempts[first:-1] = (_named(attempt, problem, unneeded) for attempt in attempts[first:-1])
        return
    for others in dict.fromkeys((unneeded, unneeded & {*separable(problem)})):
        if least(problem, low, high - 1, _EFFORT_PER_RANGE * effort, others, budget).ii >= high:
            attempts[first:-1] = (_named(attempt, problem, others) for attempt in attempts[first:-1])
            return
    for at in reversed(range(first, len(attempts) - 1)):
        if reasons.refute(attempts[at].ii, unneeded, _MOST_EFFORT_PER_FAMILY) is None:
            break
        attempts[at] = _named(attempts[at], problem, unneeded)


def _named(attempt: Attempt, problem: Problem, unneeded: frozenset[str]) -> Attempt:
    left = ("dependences", *(family for family in families(problem) if family not in unneeded))
    return replace(attempt, why=f"the {' and '.join(left)} leave no room", families=left)


class _Reasons:
    def __init__(self, problem: Problem, effort: float, budget: Budget) -> None:
        self.problem, self.effort, self.budget = problem, effort, budget

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
        answer = Model(self.problem, ii, None, without, self.budget).feasible(effort * self.effort, hard=True)
        return answer.effort if answer.outcome == "refuted" else None
