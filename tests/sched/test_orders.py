"""Schedules that are proven the best without the solver, by all orders of the ops that share a slot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loops import banked_problem, gemm, random_problem, valued_problem
from test_solve import run_alone

from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.lower_bounds.orders import are_earliest_starts, bound_collisions, bound_slot_pressure, list_orders
from tilec.sched.model import levels
from tilec.sched.problem import Edge, Op, Problem, Slot, Use
from tilec.sched.solve import solve_problem

DRAWN = [make(seed) for seed in range(60) for make in (random_problem, banked_problem, valued_problem)]
TWO_LOADS = Problem(
    "two loads and their reader",
    (Op("a", (Use(0, 4),), 4, 10), Op("b", (Use(0, 6),), 6, 10), Op("use", (Use(1, 8),), 8, 8)),
    (Edge(0, 2, 10), Edge(1, 2, 10)),
    (Slot("copies"), Slot("products")),
)


@pytest.mark.some(8)
@pytest.mark.parametrize("problem", DRAWN)
def test_the_solver_finds_the_same(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        found = solve_problem(problem)
    except Unschedulable:
        return
    monkeypatch.setattr(levels, "list_orders", lambda *_: [])
    solved = solve_problem(problem)
    assert replace(found, work=0) == replace(solved, work=0)


def test_one_load_waits_for_the_other() -> None:
    orders = list_orders(TWO_LOADS, 12, 23, ())
    # An interval sooner or later, the reader would be more than 23 cycles behind the first of them.
    assert sorted(order[0][1] for order in orders) == [-8, 4]
    # The reader is 10 behind the later load: 14 behind the first of them, or 16 where b goes first.
    a_first, b_first = ([order for order in orders if order[0][1] == least] for least in (4, -8))
    assert bound_slot_pressure(orders, [(0, 2), (1, 2)]) == bound_slot_pressure(a_first, [(0, 2), (1, 2)]) == 14
    assert bound_slot_pressure(b_first, [(0, 2), (1, 2)]) == 16
    assert are_earliest_starts(orders, (0, 4, 14))
    assert not are_earliest_starts(orders, (0, 5, 15)) and not are_earliest_starts(orders, (6, 0, 16))
    assert bound_collisions(orders, (), 12) == 0


def test_too_many_orders_bound_nothing() -> None:
    ops = tuple(Op(f"op {at}", (Use(0, 1),), 1, 1) for at in range(6))
    assert list_orders(Problem("any order", ops, (), (Slot("unit"),)), 8, 15, ()) == []
    assert bound_slot_pressure([], [(0, 1)]) == 0 and not are_earliest_starts([], (0,))


def test_a_product_needs_no_solver() -> None:
    run_alone(
        "import sys\nfrom loops import gemm\nfrom tilec.sched.solve import solve_problem\n"
        "assert all(level.proven for level in solve_problem(gemm()).objectives)\nassert 'ortools' not in sys.modules",
        "0",
    )
    assert solve_problem(gemm()).schedule.start[0] == 0
