"""Versions beyond those that a schedule needs: latencies are what a load takes as a rule, and one that takes longer
stops nobody whose next tiles are there already."""

from __future__ import annotations

from dataclasses import replace

from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule


def deepened(problem: Problem, schedule: Schedule, rings: tuple[int, ...]) -> Schedule:
    """The schedule with these rings as deep as their limits and the pools allow, one version of each in turn."""
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
