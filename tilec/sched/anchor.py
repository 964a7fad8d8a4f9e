"""Chooses the cycle at which an iteration begins, for a schedule whose relative start times are known.

Shifting all starts by one amount keeps dependences, slots, rings and peak pressure. It changes the number of stages,
which ops share a stage, what values hold across the end of an interval, and the order within an interval. It is enough
to try the shifts at which some op issues in the first cycle of an interval: any other schedule can be moved earlier
until one does, and then no op changes its stage, none overtakes another, and no value crosses more interval ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.sched.objective import inversions, life, limited, spared
from tilec.sched.problem import Problem

Starts = tuple[int, ...]


def depends_on_begin(problem: Problem) -> bool:
    """Return whether the problem forbids some beginnings; otherwise the first issue is the beginning with fewest
    stages."""
    return bool(problem.same_stage) or any(problem.pools[pool].carried is not None for pool in limited(problem))


def begin(problem: Problem, ii: int, start: Sequence[int]) -> Starts:
    """Return the starts shifted so that the first issue is in cycle 0, or, where the problem forbids that, as few
    cycles later as it allows. Where no shift is allowed, the first issue is in cycle 0."""
    at_first = _shifted(start, 0)
    if not depends_on_begin(problem):
        return at_first
    holds = _Holds(problem, ii, at_first)
    return _shifted(start, next((shift for shift in _shifts(ii, at_first) if holds(shift)), 0))


def best_begin(problem: Problem, ii: int, start: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Starts:
    """Return the starts shifted to the cheapest beginning: fewest stages, then least held across interval ends, then
    fewest inversions of `pairs`, then the earliest first issue."""
    allowed, at_first = begin(problem, ii, start), _shifted(start, 0)
    lives = [_lives(problem, pool, at_first) for pool in spared(problem)]
    holds = _Holds(problem, ii, at_first)
    latest = max(at_first, default=0)
    most = (max(allowed, default=0) // ii + 1) * ii - 1 - latest

    def costs(shift: int) -> tuple[int, int, int, int]:
        across = max(
            (sum(_crossings(b + shift, e + shift, ii) * amount for b, e, amount in values) for values in lives),
            default=0,
        )
        return (latest + shift) // ii, across, inversions(pairs, ii, [at + shift for at in at_first]), shift

    shifts = [shift for shift in _shifts(ii, at_first) if shift <= most and holds(shift)]
    return _shifted(start, min(map(costs, shifts))[-1]) if shifts else allowed


def _shifts(ii: int, start: Sequence[int]) -> list[int]:
    """Return the shifts, each less than an interval, that move some op to the first cycle of an interval."""
    return sorted({-at % ii for at in start})


def _shifted(start: Sequence[int], shift: int) -> Starts:
    first = min(start, default=0)
    return tuple(at - first + shift for at in start)


class _Holds:
    """Decides whether a schedule may be shifted later by a number of cycles."""

    def __init__(self, problem: Problem, ii: int, start: Sequence[int]) -> None:
        self.problem, self.ii, self.start = problem, ii, start
        self.lives = [(problem.pools[pool].carried, _lives(problem, pool, start)) for pool in limited(problem)]

    def __call__(self, shift: int) -> bool:
        for group in self.problem.same_stage:
            if len({(self.start[op] + shift) // self.ii for op in group}) > 1:
                return False
        return all(
            most is None
            or sum(_crossings(begin + shift, end + shift, self.ii) * amount for begin, end, amount in lives) <= most
            for most, lives in self.lives
        )


def _lives(problem: Problem, pool: int, start: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (begin, end, amount) of each value in a pool."""
    return [(*life(problem, value, start), value.amount) for value in problem.values if value.pool == pool]


def _crossings(begin: int, end: int, ii: int) -> int:
    return max(0, (end - 1) // ii - begin // ii)
