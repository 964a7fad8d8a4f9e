"""Ops that begin before others of the iteration before: edges of distance −1."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tilec.sched.check import find_problem_faults
from tilec.sched.heuristics.heuristic import is_serial_by_rule
from tilec.sched.objective import make_schedule
from tilec.sched.problem import Edge, Op, Problem, Slot, Use
from tilec.sched.schedule import Schedule
from tilec.sched.solve import Scheduler, find_fallback_schedule, solve_problem
from tilec.sched.verify import find_violations


def loaded(steps: int, latency: int, versions: int = 2) -> Problem:
    """Loads and uses of so many steps: a load begins before the use of the step before, also across iterations."""
    slots = (Slot("load"), Slot("use"))
    ops = tuple(
        op
        for k in range(steps)
        for op in (Op(f"load {k}", (Use(0, 1),), 1, latency), Op(f"use {k}", (Use(1, 2),), 2, 2))
    )
    edges = []
    for k in range(steps):
        edges.append(Edge(2 * k, 2 * k + 1, latency))
        later, step = divmod(k + versions, steps)
        edges.append(Edge(2 * k + 1, 2 * step, 2, later))  # the same version again
        before, step = divmod(k - 1, steps)
        edges.append(Edge(2 * k, 2 * step + 1, 1, before))
    return Problem("loaded", ops, tuple(edges), slots)


@pytest.mark.parametrize(("steps", "latency"), [(2, 1), (2, 3), (4, 1), (4, 2)])
def test_the_first_load_belongs_to_the_iteration_before(steps: int, latency: int) -> None:
    problem = loaded(steps, latency)
    assert not list(find_problem_faults(problem))
    found = solve_problem(problem).schedule
    assert not list(find_violations(problem, found))
    first, last = found.start[0], found.start[2 * steps - 1]
    assert first + found.ii < last
    assert found.ii == 3 * steps  # a use of two cycles, the load that fills its version again, the next use


def test_the_smallest_interval_is_found() -> None:
    """Every schedule of a small problem looked at."""
    problem = loaded(2, 2)
    found = solve_problem(problem).schedule.ii

    def is_possible(ii: int) -> bool:
        for start in itertools.product(range(ii), *(range(3 * ii),) * 3):
            order = tuple(sorted(range(len(start)), key=lambda op: start[op] % ii))
            if not any(find_violations(problem, Schedule(ii, start, order, (), "given"))):
                return True
        return False

    assert is_possible(found) and not is_possible(found - 1)


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize("scheduler", ["exact", "heuristic"])
def test_what_has_to_overlap_is_never_serial(scheduler: Scheduler, is_forced: bool) -> None:
    problem = replace(loaded(4, 2), force_serial=is_forced)
    assert not is_serial_by_rule(problem)
    assert not list(find_violations(problem, solve_problem(problem, scheduler=scheduler).schedule))


def test_the_last_resort_overlaps_too() -> None:
    problem = loaded(4, 2)
    ii, start = find_fallback_schedule(problem, 1)
    assert not list(find_violations(problem, make_schedule(problem, ii, start, "given")))


def test_versions_that_are_not_there_are_a_fault() -> None:
    """With one version a load cannot begin before the use of the step before."""
    assert any("a cycle of dependences" in fault for fault in find_problem_faults(loaded(2, 1, versions=1)))
