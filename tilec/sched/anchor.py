"""Where an iteration begins: what depends on it, and how it is chosen.

Moved as a whole, a schedule stays one for the dependences, the slots, the rings, and what is held at once. Not so for
what looks at the ends of intervals: the number of stages, which ops share one, what values hold from one interval to
the next, and the order within an interval. It is enough to try those beginnings at which some op issues in the first
cycle of an interval. From any other the schedule can be moved earlier until one does: no op changes its stage, none
overtakes another, and a value may end an interval earlier, but none begins in an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.sched.objective import inversions, life, limited, spared
from tilec.sched.problem import Problem

Starts = tuple[int, ...]


def depends_on_begin(problem: Problem) -> bool:
    """Whether there are beginnings that the problem forbids; of the others the first issue has the fewest stages."""
    return bool(problem.same_stage) or any(problem.pools[pool].carried is not None for pool in limited(problem))


def begin(problem: Problem, ii: int, start: Sequence[int]) -> Starts:
    """The same schedule counted from its first issue; or from so many cycles earlier, as few as possible, that the
    problem allows it, if that can be."""
    at_first = _shifted(start, 0)
    if not depends_on_begin(problem):
        return at_first
    holds = _Holds(problem, ii, at_first)
    return _shifted(start, next((shift for shift in _shifts(ii, at_first) if holds(shift)), 0))


def best_begin(problem: Problem, ii: int, start: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Starts:
    """The same schedule counted from where it costs least: the fewest stages, the least that values hold from one
    interval to the next, the fewest inversions of `pairs`, and then the fewest cycles before the first issue."""
    allowed, at_first = begin(problem, ii, start), _shifted(start, 0)
    lives = [_lives(problem, pool, at_first) for pool in spared(problem)]
    holds = _Holds(problem, ii, at_first)
    latest = max(at_first, default=0)
    most = (max(allowed, default=0) // ii + 1) * ii - 1 - latest

    def costs(shift: int) -> tuple[int, int, int, int]:
        across = max(
            (sum(_crossings(b + shift, e + shift, ii) * amount for b, e, amount in of) for of in lives), default=0
        )
        return (latest + shift) // ii, across, inversions(pairs, ii, [at + shift for at in at_first]), shift

    shifts = [shift for shift in _shifts(ii, at_first) if shift <= most and holds(shift)]
    return _shifted(start, min(map(costs, shifts))[-1]) if shifts else allowed


def _shifts(ii: int, start: Sequence[int]) -> list[int]:
    """For how many cycles before the first issue an interval may begin, so that some op issues in the first cycle of
    one."""
    return sorted({-at % ii for at in start})


def _shifted(start: Sequence[int], shift: int) -> Starts:
    first = min(start, default=0)
    return tuple(at - first + shift for at in start)


class _Holds:
    """Whether a schedule may be counted from so many cycles earlier."""

    def __init__(self, problem: Problem, ii: int, start: Sequence[int]) -> None:
        self.problem, self.ii, self.start = problem, ii, start
        self.lives = [(problem.pools[pool].carried, _lives(problem, pool, start)) for pool in limited(problem)]

    def __call__(self, shift: int) -> bool:
        for group in self.problem.same_stage:
            if len({(self.start[op] + shift) // self.ii for op in group}) > 1:
                return False
        return all(
            most is None or sum(_crossings(b + shift, e + shift, self.ii) * amount for b, e, amount in lives) <= most
            for most, lives in self.lives
        )


def _lives(problem: Problem, pool: int, start: Sequence[int]) -> list[tuple[int, int, int]]:
    """Of each value in a pool: when it begins, when it ends, how much it holds."""
    return [(*life(problem, value, start), value.amount) for value in problem.values if value.pool == pool]


def _crossings(begin: int, end: int, ii: int) -> int:
    """How many ends of intervals there are between two cycles."""
    return max(0, (end - 1) // ii - begin // ii)
