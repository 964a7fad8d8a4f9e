"""The exact model by itself: heuristics and lower bounds, which often answer before it is asked, are left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from loops import has_schedule, random_problem, staged_problem

from tilec.sched.bounds import Unschedulable, bounds
from tilec.sched.model import Model
from tilec.sched.problem import Problem

LONGEST = 1000.0
"""Deterministic seconds: a bound against hanging, none of these problems takes one."""


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("drawn", [random_problem, staged_problem])
def test_intervals_against_enumeration(drawn: Callable[[int], Problem], seed: int) -> None:
    """Each interval up to 7 that holds the longest cycle of dependences is found or refuted as enumeration says."""
    problem = drawn(seed)
    try:
        known = bounds(problem)
    except Unschedulable:
        return
    least = max((bound.ii for bound in known.each if bound.kind in ("recurrence", "ring")), default=1)
    intervals = [ii for ii in range(1, 8) if ii ** len(problem.ops) <= 5_000]
    found = {ii: Model(problem, ii).feasible(LONGEST).outcome for ii in intervals if ii >= least}
    assert found == {ii: "found" if has_schedule(problem, ii) else "refuted" for ii in found}
