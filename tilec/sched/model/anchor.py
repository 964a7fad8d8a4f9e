"""Chooses the cycle at which an iteration begins, for a schedule whose relative start times are known.

Shifting all starts by one amount keeps dependences, slots, rings and peak pressure. It changes the number of stages,
which ops share a stage, what values hold across the end of an interval, and the order within an interval. It is enough
to try the shifts at which some op issues in the first cycle of an interval: any other schedule can be moved earlier
until one does, and then no op changes its stage, none overtakes another, and no value crosses more interval ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.sched.objective import count_inversions, find_lifetime, list_limited_pools, list_pressure_pools
from tilec.sched.problem import Problem

Starts = tuple[int, ...]


def is_begin_constrained(problem: Problem) -> bool:
    """Return whether the problem forbids some beginnings; otherwise the first issue is the beginning with fewest
    stages."""
    return bool(problem.same_stage) or any(
        problem.pools[pool].carried is not None for pool in list_limited_pools(problem)
    )


def shift_to_valid_begin(problem: Problem, ii: int, start: Sequence[int]) -> Starts:
    """Return the starts shifted so that the first issue is in cycle 0, or, where the problem forbids that, as few
    cycles later as it allows. Where no shift is allowed, the first issue is in cycle 0."""
    at_first = _shift_starts(start, 0)
    if not is_begin_constrained(problem):
        return at_first
    holds = _ShiftChecker(problem, ii, at_first)
    return _shift_starts(start, next((shift for shift in _list_candidate_shifts(ii, at_first) if holds(shift)), 0))


def shift_to_best_begin(problem: Problem, ii: int, start: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Starts:
    """Return the starts shifted to the cheapest beginning: fewest stages, then least held across interval ends, then
    fewest inversions of `pairs`, then the earliest first issue."""
    allowed, at_first = shift_to_valid_begin(problem, ii, start), _shift_starts(start, 0)
    lives = [_list_lifetimes(problem, pool, at_first) for pool in list_pressure_pools(problem)]
    holds = _ShiftChecker(problem, ii, at_first)
    latest = max(at_first, default=0)
    most = (max(allowed, default=0) // ii + 1) * ii - 1 - latest

    def price_shift(shift: int) -> tuple[int, int, int, int]:
        across = max(
            (
                sum(_count_interval_ends(b + shift, e + shift, ii) * amount for b, e, amount in values)
                for values in lives
            ),
            default=0,
        )
        return (latest + shift) // ii, across, count_inversions(pairs, ii, [at + shift for at in at_first]), shift

    shifts = [shift for shift in _list_candidate_shifts(ii, at_first) if shift <= most and holds(shift)]
    return _shift_starts(start, min(map(price_shift, shifts))[-1]) if shifts else allowed


def _list_candidate_shifts(ii: int, start: Sequence[int]) -> list[int]:
    """Return the shifts, each less than an interval, that move some op to the first cycle of an interval."""
    return sorted({-at % ii for at in start})


def _shift_starts(start: Sequence[int], shift: int) -> Starts:
    first = min(start, default=0)
    return tuple(at - first + shift for at in start)


class _ShiftChecker:
    """Decides whether a schedule may be shifted later by a number of cycles."""

    def __init__(self, problem: Problem, ii: int, start: Sequence[int]) -> None:
        self.problem, self.ii, self.start = problem, ii, start
        self.lives = [
            (problem.pools[pool].carried, _list_lifetimes(problem, pool, start)) for pool in list_limited_pools(problem)
        ]

    def __call__(self, shift: int) -> bool:
        for group in self.problem.same_stage:
            if len({(self.start[op] + shift) // self.ii for op in group}) > 1:
                return False
        return all(
            most is None
            or sum(_count_interval_ends(begin + shift, end + shift, self.ii) * amount for begin, end, amount in lives)
            <= most
            for most, lives in self.lives
        )


def _list_lifetimes(problem: Problem, pool: int, start: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (begin, end, amount) of each value in a pool."""
    return [(*find_lifetime(problem, value, start), value.amount) for value in problem.values if value.pool == pool]


def _count_interval_ends(begin: int, end: int, ii: int) -> int:
    return max(0, (end - 1) // ii - begin // ii)
