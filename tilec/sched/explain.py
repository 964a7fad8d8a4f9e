"""Explains, on request, why no better schedule exists: which families of constraints, with the dependences, refute the
smaller intervals, and which intervals heuristics would have reached.

Families are left out of the model one after the other, to see whether a proof remains. The effort of the full proof
limits the effort to look for one with a family less; where the full proof is expensive, none is looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from tilec.sched.budget import Budget
from tilec.sched.heuristics.heuristic import is_serial_by_rule, try_all_arms
from tilec.sched.lower_bounds.implied import drop_implied_edges
from tilec.sched.lower_bounds.least import refute_intervals
from tilec.sched.lower_bounds.windows import find_needed_families
from tilec.sched.model.lags import set_observed_lags
from tilec.sched.model.model import Model
from tilec.sched.model.roles import choose_roles_by_rule, resolve_roles
from tilec.sched.objective import list_limited_pools
from tilec.sched.problem import Problem
from tilec.sched.solution import Attempt, Solution

# Deterministic time, of which one unit is one to five seconds here.
_EFFORT_PER_PROOF = 0.1
_EFFORT_PER_RANGE = 0.2
_CHEAP_PROOF_EFFORT = 0.01
_MAX_EFFORT_PER_FAMILY = 0.02
_MIN_EFFORT_PER_FAMILY = 0.004
_EFFORT_FACTOR = 4
_WORK_PER_EXPLANATION = 4_000_000
"""Work of the budget for the whole explanation of one problem."""


def explain_solution(problem: Problem, solution: Solution, budget: Budget | None = None) -> Solution:
    """Return the solution with the constraints that refute smaller intervals, and the intervals of heuristics.

    A given or already explained solution is returned as it is. The budget only limits the explanation: the answer was
    found before.
    """
    if solution.trials or not solution.attempts:
        return solution
    budget = budget or Budget(_WORK_PER_EXPLANATION)
    role = solution.schedule.role
    searched = resolve_roles(problem, role) if role == choose_roles_by_rule(problem) else problem
    *smaller, found = solution.attempts
    searched = drop_implied_edges(searched)
    attempts = (*_explain_refutations(searched, _name_window_families(searched, smaller), budget), found)
    plain = set_observed_lags(resolve_roles(problem, role), solution.schedule.start)
    is_compared = not budget.is_over and not (found.how == "serial" and is_serial_by_rule(plain))
    return replace(solution, attempts=attempts, trials=try_all_arms(plain, solution.schedule.ii) if is_compared else ())


def _name_window_families(problem: Problem, smaller: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts; those that windows refuted get the constraint families that suffice for it."""
    attempts: list[Attempt] = []
    enough: tuple[str, ...] = ()
    for attempt in smaller:
        if attempt.how == "bound" and not attempt.families:
            enough = find_needed_families(problem, attempt.ii, enough)
            attempt = replace(attempt, families=enough)
        attempts.append(attempt)
    return attempts


def _explain_refutations(problem: Problem, smaller: Sequence[Attempt], budget: Budget) -> Sequence[Attempt]:
    """Return the attempts; the last ones that the solver refuted get the constraint families that refute them.

    No family named is known to be unnecessary. The smaller intervals next to the last one get the same families where
    these, or these and the rings, refute them too.
    """
    attempts = [*smaller]
    by_solver = takewhile(lambda attempt: (attempt.how, attempt.outcome) == ("solver", "refuted"), reversed(attempts))
    first_refuted = len(attempts) - len(list(by_solver))
    if first_refuted == len(attempts) or budget.is_over:
        return attempts
    low, high = attempts[first_refuted].ii, attempts[-1].ii
    unneeded = _find_unneeded_families(problem, high, budget)
    attempts[-1] = _attach_families(attempts[-1], problem, unneeded)
    others_refuted = attempts[first_refuted:-1]
    for others in dict.fromkeys((unneeded, unneeded & {*list_separable_families(problem)})):
        if not unneeded or refute_intervals(problem, low, high - 1, _EFFORT_PER_RANGE, others, budget).ii >= high:
            attempts[first_refuted:-1] = (_attach_families(attempt, problem, others) for attempt in others_refuted)
            return attempts
    for at in reversed(range(first_refuted, len(attempts) - 1)):
        if _try_refute(problem, attempts[at].ii, unneeded, _MAX_EFFORT_PER_FAMILY, budget) is None:
            break
        attempts[at] = _attach_families(attempts[at], problem, unneeded)
    return attempts


def _attach_families(attempt: Attempt, problem: Problem, unneeded: frozenset[str]) -> Attempt:
    """Return the attempt as refuted by the dependences and all constraint families but the unneeded ones."""
    needed_families = ("dependences", *(family for family in list_families(problem) if family not in unneeded))
    return replace(attempt, why=f"refuted by the {' and '.join(needed_families)}", families=needed_families)


def _find_unneeded_families(problem: Problem, ii: int, budget: Budget) -> frozenset[str]:
    """Return constraint families without which the II is still refuted; none if the full proof is expensive."""
    dropped: frozenset[str] = frozenset()
    dearest = _try_refute(problem, ii, dropped, _EFFORT_PER_PROOF, budget)
    if dearest is None or dearest > _CHEAP_PROOF_EFFORT:
        return dropped
    for family in list_families(problem):
        enough = _MIN_EFFORT_PER_FAMILY + _EFFORT_FACTOR * dearest
        spent = _try_refute(problem, ii, dropped | {family}, min(enough, _MAX_EFFORT_PER_FAMILY), budget)
        if spent is not None:
            dropped |= {family}
            dearest = max(dearest, spent)
    return dropped


def _try_refute(problem: Problem, ii: int, without: frozenset[str], effort: float, budget: Budget) -> float | None:
    """Return the solver effort to refute the II without these families; None if it is not refuted in time."""
    if budget.is_over:
        return None
    answer = Model(problem, ii, None, without, budget).feasible(effort, hard=True)
    return answer.effort if answer.outcome == "refuted" else None


def list_families(problem: Problem) -> tuple[str, ...]:
    """Return the constraint families, besides dependences, that a model can leave out one by one.

    Constraints that cannot matter are not listed: a pool without rings, a slot used only once.
    """
    names = ["stages"] if problem.max_stages is not None else []
    names += ["rings"] if problem.rings else []
    taken = {ring.pool for ring in problem.rings if ring.bytes}
    names += [f"pool {pool.name}" for index, pool in enumerate(problem.pools) if index in taken]
    return (*names, *list_separable_families(problem))


def list_separable_families(problem: Problem) -> tuple[str, ...]:
    """Return the constraint families that affect nothing else in the model: values in pools, and slots.

    Stages, rings and pools of rings, in contrast, also limit the range of starts.
    """
    used = [use.slot for op in problem.ops for use in op.uses if use.cycles]
    used += [problem.roles[role].slot for op in problem.ops for role in op.roles]
    slots = (f"slot {slot.name}" for index, slot in enumerate(problem.slots) if used.count(index) > 1)
    return (*(f"values in {problem.pools[pool].name}" for pool in list_limited_pools(problem)), *slots)
