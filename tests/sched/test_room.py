"""Problems that differ in their room alone: what has no schedule with more of it has none with less."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loops import gemm, tight_problem

from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.problem import Problem, has_less_room
from tilec.sched.solve import find_smallest_interval


def take_room(problem: Problem, by: int) -> Problem:
    """The problem with pools that are smaller by so much."""
    return replace(problem, pools=tuple(replace(pool, capacity=max(0, pool.capacity - by)) for pool in problem.pools))


def limit_rings(problem: Problem, depth: int | None) -> Problem:
    return replace(problem, rings=tuple(replace(ring, max_depth=depth) for ring in problem.rings))


def test_smaller_pools_and_shallower_rings() -> None:
    plain = gemm()
    assert has_less_room(plain, plain)
    assert has_less_room(take_room(plain, 1), plain) and not has_less_room(plain, take_room(plain, 1))
    assert has_less_room(limit_rings(plain, 3), limit_rings(plain, 4))
    assert not has_less_room(limit_rings(plain, 4), limit_rings(plain, 3))
    assert has_less_room(limit_rings(plain, 4), plain) and not has_less_room(plain, limit_rings(plain, 4))


def test_what_is_reserved_is_no_room() -> None:
    plain = gemm()
    taken = (replace(pool, capacity=pool.capacity + 7, reserved=pool.reserved + 8) for pool in plain.pools)
    reserved = replace(plain, pools=tuple(taken))
    assert has_less_room(reserved, plain) and not has_less_room(plain, reserved)


@pytest.mark.parametrize(
    "other",
    [
        replace(gemm(), max_stages=2),
        replace(gemm(), edges=gemm().edges[1:]),
        replace(gemm(), pools=tuple(replace(pool, spare=False) for pool in gemm().pools)),
        replace(gemm(), pools=(*gemm().pools, gemm().pools[0])),
        replace(gemm(), rings=gemm().rings[1:]),
        replace(gemm(), rings=tuple(replace(ring, bytes=ring.bytes + 1) for ring in gemm().rings)),
    ],
)
def test_other_problems(other: Problem) -> None:
    assert not has_less_room(gemm(), other) and not has_less_room(other, gemm())


@pytest.mark.parametrize("seed", range(40))
def test_the_search_begins_where_more_room_ended(seed: int) -> None:
    roomier = tight_problem(seed)
    problem = take_room(roomier, 3)
    try:
        known = find_smallest_interval(roomier)
        alone = find_smallest_interval(problem)
    except Unschedulable:
        return
    found = find_smallest_interval(problem, relaxed=known)
    assert has_less_room(problem, roomier)
    assert found.schedule.ii == alone.schedule.ii >= known.schedule.ii
