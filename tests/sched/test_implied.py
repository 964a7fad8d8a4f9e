"""Dependences that follow from others: what is left says as much."""

from __future__ import annotations

import random
import time

import pytest

from tilec.sched.budget import Budget
from tilec.sched.lower_bounds import implied
from tilec.sched.lower_bounds.bounds import compute_bounds
from tilec.sched.lower_bounds.implied import drop_implied_edges
from tilec.sched.lower_bounds.paths import build_edge_arcs, find_all_distances
from tilec.sched.problem import Edge, Op, Problem, Slot, Use
from tilec.sched.solve import Scheduler, solve_problem
from tilec.sched.verify import find_violations


def _drawn(seed: int) -> Problem:
    random_ = random.Random(seed)
    count = random_.randrange(2, 12)
    edges = []
    for _ in range(random_.randrange(1, 60)):
        src, dst, distance = random_.randrange(count), random_.randrange(count), random_.choice([0, 0, 0, 1, 1, 2, -1])
        if distance > 0 or src < dst:
            edges.append(Edge(src, dst, random_.randrange(-2, 9), distance, hand_over=random_.choice([0, 0, 0, 5])))
    return Problem("drawn", tuple(Op(f"op {at}", (), 1, 1) for at in range(count)), tuple(edges), ())


def _in_place(count: int) -> Problem:
    """A loop that changes one tile so often: each statement waits for every other one, and each holds the one unit. Two
    loads besides fit nowhere between them."""
    ops = tuple(Op(f"change {at}", (Use(0, 128),), 128, 132) for at in range(count))
    loads = tuple(Op(f"load {at}", (Use(0, 64),), 64, 624) for at in range(2))
    within = tuple(Edge(u, v, 132) for u in range(count) for v in range(u + 1, count))
    across = tuple(Edge(u, v, 132, 1) for u in range(count) for v in range(u + 1))
    return Problem("in place", (*ops, *loads), (*within, *across), (Slot("issue"),))


@pytest.mark.parametrize("seed", range(300))
def test_what_is_left_keeps_ops_as_far_apart(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implied, "_MAX_EDGES", 0)
    drop_implied_edges.cache_clear()
    problem = _drawn(seed)
    lean = drop_implied_edges(problem)
    drop_implied_edges.cache_clear()
    assert {*lean.edges} <= {*problem.edges}
    assert [e for e in lean.edges if e.hand_over] == [e for e in problem.edges if e.hand_over]
    ii = 200  # no cycle is longer, but for those of distance 0
    if not any(edge.distance < 0 for edge in problem.edges):
        assert find_all_distances(lean, ii, build_edge_arcs(lean)) == find_all_distances(
            problem, ii, build_edge_arcs(problem)
        )


def test_a_tile_that_is_changed_over_and_over_keeps_its_chain() -> None:
    problem = _in_place(80)
    lean = drop_implied_edges(problem)
    # From each to the next, from the last to the first; and what they say of each of them follows.
    assert [(e.src, e.dst, e.distance) for e in lean.edges] == [*((u, u + 1, 0) for u in range(79)), (79, 0, 1)]
    assert compute_bounds(problem).mii == 80 * 132


SCHEDULERS: tuple[Scheduler, ...] = ("exact", "heuristic")


@pytest.mark.weekly
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_loop_of_hundreds_of_statements_is_soon_scheduled(scheduler: Scheduler) -> None:
    problem = _in_place(200)
    began = time.process_time()
    solution = solve_problem(problem, budget=Budget(5_000_000), scheduler=scheduler)
    assert time.process_time() - began < 30  # a sixth of that; it was minutes
    assert not list(find_violations(problem, solution.schedule))


def test_heuristics_end_with_their_budget() -> None:
    problem = _in_place(200)
    budget = Budget(300_000)
    began = time.process_time()
    solution = solve_problem(problem, budget=budget, scheduler="heuristic")
    assert time.process_time() - began < 10
    assert budget.is_spent and solution.is_cut
    assert not list(find_violations(problem, solution.schedule))
    assert solution == solve_problem(problem, budget=Budget(300_000), scheduler="heuristic")
