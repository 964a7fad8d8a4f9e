"""The exact model by itself: heuristics and lower bounds, which often answer before it is asked, are left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from loops import crowded_rings, has_schedule, random_problem, staged_problem

from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds
from tilec.sched.model.model import Model
from tilec.sched.problem import Edge, Op, Problem, Slot, Use

LONGEST = 1000.0
"""Deterministic seconds: a bound against hanging, none of these problems takes one."""


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("drawn", [random_problem, staged_problem])
def test_intervals_against_enumeration(drawn: Callable[[int], Problem], seed: int) -> None:
    """Each interval up to 7 that holds the longest cycle of dependences is found or refuted as enumeration says."""
    problem = drawn(seed)
    try:
        known = compute_bounds(problem)
    except Unschedulable:
        return
    least = max((bound.ii for bound in known.each if bound.kind in ("recurrence", "ring")), default=1)
    intervals = [ii for ii in range(1, 8) if ii ** len(problem.ops) <= 5_000]
    found = {ii: Model(problem, ii).feasible(LONGEST).outcome for ii in intervals if ii >= least}
    assert found == {ii: "found" if has_schedule(problem, ii) else "refuted" for ii in found}


def first_interval(problem: Problem) -> int:
    """Return the smallest interval from the bounds on that the model does not refute."""
    least = max(bound.ii for bound in compute_bounds(problem).each if bound.kind in ("recurrence", "ring", "slot"))
    return next(ii for ii in itertools.count(least) if Model(problem, ii).feasible(LONGEST).outcome == "found")


def test_a_shared_stage_holds_one_interval() -> None:
    """`a` and `b` are 4 cycles apart, and `c` and `d`, which begin one cycle later. In an interval of 5 either pair
    fills the stage that it shares, and both pairs need one that is a cycle longer."""
    ops = (Op("a", (Use(0, 5),), 1, 4), Op("b", (), 1, 1), Op("c", (), 1, 4), Op("d", (), 1, 1))
    one_later = (Edge(0, 2, 1), Edge(2, 0, -1))
    problem = Problem("pairs", ops, (Edge(0, 1, 4), Edge(2, 3, 4), *one_later), (Slot("unit"),))
    assert first_interval(replace(problem, same_stage=((0, 1),))) == 5
    assert first_interval(replace(problem, same_stage=((0, 1), (2, 3)))) == 6


@pytest.mark.parametrize(("reserved", "is_found"), [(0, True), (40, False)])
def test_rings_share_what_a_pool_does_not_reserve(reserved: int, is_found: bool) -> None:
    problem = crowded_rings(reserved)
    assert (Model(problem, 9).feasible(LONGEST).outcome == "found") == is_found
