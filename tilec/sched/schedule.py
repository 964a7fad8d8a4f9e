"""A schedule as data. It may come from the solver, a file or a person; only `verify` decides whether it is valid."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tilec.sched.problem import Problem
from tilec.support.records import dataclass

Status = Literal["optimal", "feasible", "serial", "given"]
"""`optimal`: no smaller II exists. `feasible`: one may exist. `serial`: one op after the other, as requested, without a
search. `given`: from a person or a file."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The issue times of one iteration's statements, and the number of versions of its buffers. All times are cycles.

    `ii` is the initiation interval, at least 1. Op i of iteration k issues in cycle `start[i]` + k·II. `order` lists
    all op ids as they issue within one steady-state interval, by start mod II. `depth[r]` is the number of versions of
    ring r, at least 1. `role[i]` is the role that runs op i (None: no candidates); empty if no op names candidates.

    `start` and `order` are as long as the problem's ops, `depth` as its rings. Nothing is checked here: `verify`
    reports what a schedule breaks. The form is that of modulo scheduling (Rau, "Iterative Modulo Scheduling", MICRO-27,
    1994).
    """

    ii: int
    start: tuple[int, ...]
    order: tuple[int, ...]
    depth: tuple[int, ...]
    status: Status
    role: tuple[int | None, ...] = ()

    @property
    def stage(self) -> tuple[int, ...]:
        """Return the interval in which each op issues, counted from the begin of its iteration: start // II."""
        return tuple(s // self.ii for s in self.start)


def deepen_rings(problem: Problem, schedule: Schedule, rings: tuple[int, ...]) -> Schedule:
    """Return the schedule with these rings deepened in turn to their limits or pools; rings without a limit stay.

    The schedule does not need the versions: they hide loads that take longer than is typical.
    """
    depth = list(schedule.depth)
    room = [pool.capacity - pool.reserved for pool in problem.pools]
    for ring, versions in zip(problem.rings, depth, strict=True):
        room[ring.pool] -= ring.bytes * versions
    growing = [r for r in rings if problem.rings[r].max_depth is not None]
    while growing:
        for r in tuple(growing):
            ring = problem.rings[r]
            if depth[r] >= (ring.max_depth or 0) or ring.bytes > room[ring.pool]:
                growing.remove(r)
            else:
                depth[r] += 1
                room[ring.pool] -= ring.bytes
    return schedule if tuple(depth) == schedule.depth else replace(schedule, depth=tuple(depth))
