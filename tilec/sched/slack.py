"""Adds ring versions that the schedule does not need, to hide loads that take longer than is typical."""

from __future__ import annotations

from dataclasses import replace

from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule


def deepen_rings(problem: Problem, schedule: Schedule, rings: tuple[int, ...]) -> Schedule:
    """Return the schedule with these rings deepened in turn to their limits or pools; rings without a limit stay."""
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
