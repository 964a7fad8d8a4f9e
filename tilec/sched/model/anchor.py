"""Chooses the cycle at which an iteration begins, for a schedule whose relative start times are known.

Shifting all starts by one amount keeps dependences, slots, rings and peak pressure. It changes the number of stages,
which ops share a stage, what values hold across the end of an interval, and the order within an interval. It is enough
to try the shifts at which some op issues in the first cycle of an interval: any other schedule can be moved earlier
until one does, and then no op changes its stage, none overtakes another, and no value crosses more interval ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.sched.objective import (
    count_inversions,
    list_lifetimes,
    list_limited_pools,
    list_pressure_pools,
    sum_across_ends,
)
from tilec.sched.problem import Problem

Starts = tuple[int, ...]


def is_begin_constrained(problem: Problem) -> bool:
    """Return whether ops that share a stage, or limits of carried values, forbid some beginnings of an iteration.

    Else an iteration that begins with the first issue has fewest stages.
    """
    return bool(problem.same_stage) or any(
        problem.pools[pool].carried is not None for pool in list_limited_pools(problem)
    )


def shift_to_valid_begin(problem: Problem, ii: int, start: Sequence[int]) -> Starts:
    """Return the starts shifted so that the first issue is in cycle 0, or as soon after as the problem allows.

    Where no shift is allowed, the first issue is in cycle 0.
    """
    at_first = _shift_starts(start, 0)
    if not is_begin_constrained(problem):
        return at_first
    holds = _make_shift_test(problem, ii, at_first)
    return _shift_starts(start, next((shift for shift in _list_candidate_shifts(ii, at_first) if holds(shift)), 0))


def shift_to_best_begin(problem: Problem, ii: int, start: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Starts:
    """Return the starts shifted to the allowed beginning with fewest stages, least carried, fewest inversions.

    Least held across interval ends; inversions are those of `pairs`; then the earliest first issue.
    """
    allowed, at_first = shift_to_valid_begin(problem, ii, start), _shift_starts(start, 0)
    lives = [list_lifetimes(problem, pool, at_first) for pool in list_pressure_pools(problem)]
    holds = _make_shift_test(problem, ii, at_first)
    latest = max(at_first, default=0)
    most = (max(allowed, default=0) // ii + 1) * ii - 1 - latest

    def price_shift(shift: int) -> tuple[int, int, int, int]:
        """Return the cost of a shift, level by level: stages, carried amounts, inversions, and the shift itself."""
        across = max((sum_across_ends(values, ii, shift) for values in lives), default=0)
        return (latest + shift) // ii, across, count_inversions(pairs, ii, [at + shift for at in at_first]), shift

    shifts = [shift for shift in _list_candidate_shifts(ii, at_first) if shift <= most and holds(shift)]
    return _shift_starts(start, min(map(price_shift, shifts))[-1]) if shifts else allowed


def _list_candidate_shifts(ii: int, start: Sequence[int]) -> list[int]:
    """Return the shifts, each less than an interval, that move some op to the first cycle of an interval."""
    return sorted({-at % ii for at in start})


def _shift_starts(start: Sequence[int], shift: int) -> Starts:
    """Return the starts moved so that the smallest is `shift`."""
    first = min(start, default=0)
    return tuple(at - first + shift for at in start)


def _make_shift_test(problem: Problem, ii: int, start: Sequence[int]) -> Callable[[int], bool]:
    """Return a function that tells whether the problem allows the schedule shifted later by a number of cycles."""
    limited = ((problem.pools[pool].carried, pool) for pool in list_limited_pools(problem))
    lives = [(most, list_lifetimes(problem, pool, start)) for most, pool in limited if most is not None]

    def is_allowed(shift: int) -> bool:
        """Return whether, after the shift, shared stages stay shared and pools carry no more than allowed."""
        stages = ({(start[op] + shift) // ii for op in group} for group in problem.same_stage)
        if any(len(of_group) > 1 for of_group in stages):
            return False
        return all(sum_across_ends(values, ii, shift) <= most for most, values in lives)

    return is_allowed
