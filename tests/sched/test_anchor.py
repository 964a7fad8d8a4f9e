"""An iteration need not begin with its first issue: what is proven is proven wherever it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loops import best, carrying_problem

from tilec.sched import solve as solving
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.model import levels
from tilec.sched.model.anchor import shift_to_best_begin, shift_to_valid_begin
from tilec.sched.model.model import Model
from tilec.sched.objective import list_same_role_pairs, measure_carried_pressure
from tilec.sched.problem import Edge, Op, Pool, Problem, Slot, Use, Value
from tilec.sched.solve import solve_problem
from tilec.sched.verify import find_violations


def relay(carried: int | None = None) -> Problem:
    """Three ops in a row on one unit, that pass something on: one barrier and then two."""
    latencies = (2, 3, 3)
    ops = tuple(Op(name, (Use(0, 1),), 1, at) for name, at in zip(("copy", "scale", "store"), latencies, strict=True))
    values = (Value("x", (0,), (1,), 1, 0), Value("y", (1,), (2,), 2, 0))
    pools = (Pool("barriers", 16, carried=carried, spare=False),)
    return Problem("relay", ops, (Edge(0, 1, 2), Edge(1, 2, 3)), (Slot("unit"),), pools, values=values)


@pytest.mark.parametrize(("carried", "ii"), [(None, 3), (4, 4), (2, 5), (1, 6), (0, 8)])
def test_what_is_carried_may_ask_for_a_later_first_issue(carried: int | None, ii: int) -> None:
    problem = relay(carried)
    schedule = solve_problem(problem).schedule
    assert (schedule.ii, schedule.status) == (ii, "optimal")
    assert not list(find_violations(problem, schedule))
    assert not any(best(problem, at, 3) for at in range(1, ii))


def test_the_beginning_is_the_first_that_is_allowed() -> None:
    start = (7, 8, 14)
    assert shift_to_valid_begin(relay(), 8, start) == (0, 1, 7)
    assert shift_to_valid_begin(replace(relay(), same_stage=((0, 1),)), 8, start) == (0, 1, 7)
    # Counted from the first issue, the second is in stage 0 and the third in stage 1.
    shared = replace(relay(), same_stage=((1, 2),))
    assert shift_to_valid_begin(shared, 4, start) == (0, 1, 7)  # they are too far apart for any
    assert shift_to_valid_begin(shared, 7, start) == (6, 7, 13)
    # x lives from 4 to 9 and y from 6 to 12: of ends of intervals at 6 and 12, only x is held across the first.
    assert shift_to_valid_begin(relay(1), 6, (0, 2, 5)) == (4, 6, 9)


def test_the_best_beginning_carries_least_in_as_many_stages() -> None:
    problem = replace(relay(), pools=(Pool("registers", 99),))
    chosen = shift_to_best_begin(problem, 8, (0, 6, 9), list_same_role_pairs(problem))
    assert (chosen, measure_carried_pressure(problem, 8, (0, 6, 9)), measure_carried_pressure(problem, 8, chosen)) == (
        (2, 8, 11),
        3,
        1,
    )
    # In as many stages there is no other.
    assert shift_to_best_begin(problem, 5, (0, 6, 9), list_same_role_pairs(problem)) == (0, 6, 9)


@pytest.mark.parametrize("seed", range(200))
def test_what_is_carried_against_enumeration(seed: int) -> None:
    """The interval, every level, and the starts; those that need more enumeration than fits in a test are others."""
    problem = carrying_problem(seed)
    stages = problem.max_stages or 3
    small = [ii for ii in range(1, 12) if (stages * ii) ** len(problem.ops) <= 20_000]
    try:
        solution = solve_problem(problem)
    except Unschedulable:
        assert not any(best(problem, ii, stages) for ii in small)
        return
    ii = solution.schedule.ii
    assert not list(find_violations(problem, solution.schedule)) and solution.schedule.status == "optimal"
    assert not [at for at in small if at < ii and best(problem, at, stages)]
    quick = solve_problem(problem, scheduler="heuristic").schedule
    assert quick.ii >= ii and not list(find_violations(problem, quick))
    needed = solution.objectives[0].value
    if (needed * ii) ** len(problem.ops) <= 50_000:
        levels, start = best(problem, ii, needed) or ((), ())
        assert tuple(level.value for level in solution.objectives[:-1]) == levels
        assert solution.schedule.start == start and all(level.proven for level in solution.objectives)


@pytest.mark.parametrize("latency", [6, 40])
def test_values_that_outlive_the_last_op_by_intervals_are_counted(latency: int) -> None:
    """A read that takes many intervals holds as many copies of what it reads."""
    ops = (Op("write", (), 1, 1), Op("read", (), 1, latency))
    value = Value("x", (0,), (1,), 3, 0)
    problem = Problem("long", ops, (Edge(0, 1, 1),), (Slot("unit"),), (Pool("registers", 1 << 20),), values=(value,))
    across = {level.name: level for level in solve_problem(problem).objectives}["pressure across iterations"]
    assert (across.value, across.proven) == (3 * latency, True)


def test_a_value_that_is_read_before_all_of_it_is_written_ends_with_the_reading() -> None:
    ops = tuple(Op(name, (Use(0, 1),), 1, 1) for name in ("first", "second", "read"))
    values = (Value("x", (0, 1), (2,), 2, 0),)
    pools = (Pool("barriers", 2, carried=0),)
    problem = Problem("parts", ops, (Edge(0, 2, 2), Edge(2, 1, 1)), (Slot("unit"),), pools, values=values)
    schedule = solve_problem(problem).schedule
    assert schedule.ii == 3 and not list(find_violations(problem, schedule))


def test_a_model_whose_iterations_begin_with_an_issue_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: enumeration finds a smaller interval than is said to be the least."""
    problem = carrying_problem(54)
    right = solve_problem(problem).schedule.ii
    soon = Model.require_early_issue
    monkeypatch.setattr(Model, "require_early_issue", lambda self, at_once=False: soon(self, True))
    found = solve_problem(problem).schedule
    assert found.status == "optimal" and found.ii > right and best(problem, right, problem.max_stages or 3)


def test_a_schedule_counted_from_its_first_issue_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what has been found is moved to where it is none."""
    monkeypatch.setattr(
        solving, "shift_to_valid_begin", lambda problem, ii, start: tuple(at - min(start) for at in start)
    )
    monkeypatch.setattr(levels, "shift_to_valid_begin", solving.shift_to_valid_begin)
    with pytest.raises(AssertionError, match="carries 2 across the end of an interval, 1 are allowed"):
        solve_problem(relay(1))
