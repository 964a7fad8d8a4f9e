"""One question about many intervals: what it refutes has no schedule, and where it knows everything it is exact."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from loops import random_problem

from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds
from tilec.sched.lower_bounds.least import refute_intervals
from tilec.sched.problem import Edge, Op, Problem, Slot, Use
from tilec.sched.solve import solve_problem
from tilec.sched.verify import find_violations


def tied(seed: int, groups: int = 1) -> Problem:
    """A few ops on two slots of one unit, each of which some cycle of dependences holds to the others; once for each
    of several groups, with slots in common."""
    draw = random.Random(seed)
    count = draw.randint(2, 5)
    shapes = [(draw.randint(0, 1), draw.randint(1, 5), draw.randint(1, 9)) for _ in range(count)]
    inside = [Edge(i, i + 1, shapes[i][2]) for i in range(count - 1)]
    inside += [Edge(count - 1, 0, draw.randint(1, 6), draw.randint(1, 2))]
    inside += [Edge(j, i, draw.randint(0, 4), 1) for i in range(count) for j in range(i, count) if draw.random() < 0.3]
    slots = (Slot("a"), Slot("b"))
    ops = tuple(
        Op(f"op{i}", (Use(slot, cycles),), cycles, latency)
        for _ in range(groups)
        for i, (slot, cycles, latency) in enumerate(shapes)
    )
    edges = tuple(replace(e, src=e.src + g * count, dst=e.dst + g * count) for g in range(groups) for e in inside)
    copies = tuple(tuple(i + g * count for g in range(groups)) for i in range(count)) if groups > 1 else ()
    return Problem(f"tied {seed}", ops, edges, slots, copies=copies)


@pytest.mark.parametrize("groups", [1, 2])
def test_exact_where_slots_have_one_unit(groups: int) -> None:
    is_beyond = 0
    for seed in range(40):
        problem = tied(seed, groups)
        schedule = solve_problem(problem).schedule
        assert schedule.status == "optimal" and not list(find_violations(problem, schedule))
        low = compute_bounds(problem).mii
        assert refute_intervals(problem, low, schedule.ii + 5, 1.0).ii == schedule.ii
        assert refute_intervals(problem, low, schedule.ii - 1, 1.0).ii == max(low, schedule.ii)
        is_beyond += schedule.ii > low
    assert is_beyond >= 5  # of bounds alone this test would say nothing


@pytest.mark.parametrize("seed", range(120))
def test_nothing_is_refuted_that_has_a_schedule(seed: int) -> None:
    """Whatever else limits a problem: rings, pools, wide slots, values."""
    problem = random_problem(seed)
    try:
        solution = solve_problem(problem)
    except Unschedulable:
        return
    low = solution.bounds.mii
    assert refute_intervals(problem, low, solution.schedule.ii + 20, 1.0).ii <= solution.schedule.ii


def test_a_family_left_aside_refutes_nothing() -> None:
    """Two ops of three cycles each, on one slot, that must be two cycles apart both ways."""
    ops = tuple(Op(name, (Use(0, 3),), 1, 1) for name in "ab")
    problem = Problem("pair", ops, (Edge(0, 1, 2), Edge(1, 0, 2, 1)), (Slot("unit"),))
    assert refute_intervals(problem, 4, 20, 1.0).ii == 6
    assert refute_intervals(problem, 4, 20, 1.0, frozenset({"slot unit"})).ii == 4


def test_nothing_is_said_of_ops_that_go_their_own_ways() -> None:
    problem = Problem("apart", tuple(Op(name, (Use(0, 3),), 1, 1) for name in "ab"), (), (Slot("unit"),))
    assert refute_intervals(problem, 4, 20, 1.0).ii == 4
