"""Rings that are deeper than a schedule needs: within their limits and the pool, one version of each in turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Slot, Use
from tilec.sched.schedule import Schedule, deepen_rings
from tilec.sched.verify import find_violations

OPS = tuple(Op(name, (Use(0, 4),), 4, 10, "role", 1) for name in ("load a", "load b", "use"))
RINGS = (Ring("a", (0,), (2,), 100, 0, 4), Ring("b", (1,), (2,), 50, 0, 6))
EDGES = (Edge(0, 2, 10), Edge(1, 2, 10))
SCHEDULE = Schedule(12, (0, 4, 20), (0, 1, 2), (3, 3), "given")


def problem(capacity: int, rings: tuple[Ring, ...] = RINGS) -> Problem:
    return Problem("loop", OPS, EDGES, (Slot("unit"),), (Pool("smem", capacity, 10),), rings)


@pytest.mark.parametrize(
    ("capacity", "depth"),
    [
        (460, (3, 3)),  # all of it is taken
        (509, (3, 3)),
        (510, (3, 4)),  # no room for a fourth a
        (560, (4, 3)),  # first one of a
        (610, (4, 4)),
        (10_000, (4, 6)),
    ],
)
def test_as_deep_as_there_is_room(capacity: int, depth: tuple[int, int]) -> None:
    found = deepen_rings(problem(capacity), SCHEDULE, (0, 1))
    assert found.depth == depth and replace(found, depth=SCHEDULE.depth) == SCHEDULE
    assert list(find_violations(problem(capacity), found)) == []


def test_only_those_that_are_named_and_have_a_limit() -> None:
    assert deepen_rings(problem(10_000), SCHEDULE, (1,)).depth == (3, 6)
    unlimited = (replace(RINGS[0], max_depth=None), RINGS[1])
    assert deepen_rings(problem(10_000, unlimited), SCHEDULE, (0, 1)).depth == (3, 6)


def test_a_schedule_that_stays_is_the_same() -> None:
    assert deepen_rings(problem(460), SCHEDULE, (0, 1)) is SCHEDULE
