"""Says what refuted the intervals below the answer: which families of constraints, with the dependences, leave no room.

Slots and pools of values hang on literals that a model assumes to be true, so that the solver's own proof says which of
them it used. Stages, rings and the pools of rings do not: from them follows how far apart starts can be, and without
that a proof takes the solver a hundred times longer; so each of those is left out of the model to see whether there is
a proof without it. Then so is each family of the proof, since a proof may use more than it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilec.sched.cp import no_deadline
from tilec.sched.families import families, separable
from tilec.sched.least import least
from tilec.sched.model import Model
from tilec.sched.problem import Problem
from tilec.sched.solution import Attempt

# Deterministic time, of which one unit is one to five seconds here.
_EFFORT_PER_FAMILY = 0.02
_EFFORT_PER_PROOF = 0.1
_EFFORT_PER_RANGE = 0.2


def explain(
    problem: Problem, attempts: list[Attempt], effort: float, seconds_left: Callable[[], float] = no_deadline
) -> None:
    """Writes into the last attempt, if the solver refuted it, the families that did, none of which is known to be one
    too many; and into those of the smaller intervals next to it for which they, or they and the rings, are enough."""
    first = len(attempts)
    while first and (attempts[first - 1].how, attempts[first - 1].outcome) == ("solver", "refuted"):
        first -= 1
    if first == len(attempts) or seconds_left() <= 0:
        return
    reasons = _Reasons(problem, effort, seconds_left)
    low, high = attempts[first].ii, attempts[-1].ii
    unneeded = reasons.unneeded(high)
    attempts[-1] = _named(attempts[-1], problem, unneeded)
    for others in dict.fromkeys((unneeded, unneeded & {*separable(problem)})):
        if least(problem, low, high - 1, _EFFORT_PER_RANGE * effort, others, seconds_left).ii >= high:
            attempts[first:-1] = (_named(attempt, problem, others) for attempt in attempts[first:-1])
            return
    for at in reversed(range(first, len(attempts) - 1)):
        if reasons.core(attempts[at].ii, unneeded) is None:
            break
        attempts[at] = _named(attempts[at], problem, unneeded)


def _named(attempt: Attempt, problem: Problem, unneeded: frozenset[str]) -> Attempt:
    left = ("dependences", *(family for family in families(problem) if family not in unneeded))
    return replace(attempt, why=f"the {' and '.join(left)} leave no room", families=left)


class _Reasons:
    def __init__(self, problem: Problem, effort: float, seconds_left: Callable[[], float]) -> None:
        self.problem, self.effort, self.seconds_left = problem, effort, seconds_left

    def unneeded(self, ii: int) -> frozenset[str]:
        """Families without which the II is refuted all the same."""
        every, apart = families(self.problem), frozenset(separable(self.problem))
        dropped: frozenset[str] = frozenset()
        for family in (family for family in every if family not in apart):
            if self.core(ii, dropped | {family}) is not None:
                dropped |= {family}
        core = self.core(ii, dropped, _EFFORT_PER_PROOF)
        dropped |= frozenset() if core is None else apart - core
        for family in (family for family in every if family in apart):
            if family not in dropped and (core := self.core(ii, dropped | {family})) is not None:
                dropped |= apart - core
        return dropped

    def core(self, ii: int, without: frozenset[str], effort: float = _EFFORT_PER_FAMILY) -> frozenset[str] | None:
        """The separable families that a refutation rests on; None if there is none, or it is not found soon."""
        if self.seconds_left() <= 0:
            return None
        assumed = [family for family in separable(self.problem) if family not in without]
        model = Model(self.problem, ii, None, without, self.seconds_left, assumed)
        answer = model.feasible(effort * self.effort)
        return frozenset(answer.core) if answer.outcome == "refuted" else None
