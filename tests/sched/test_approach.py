"""Intervals too many to be refuted one by one: a schedule near the bound, and a record of what is not known."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from loops import gemm, random_problem, tight_problem

from tilec.sched import solve as solving
from tilec.sched.budget import Budget
from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds
from tilec.sched.lower_bounds.least import RefutedIntervals
from tilec.sched.model.model import Answer
from tilec.sched.problem import Problem
from tilec.sched.solution import Attempt, Solution
from tilec.sched.solve import AttemptedInterval, _IntervalSweep as Sweep, find_smallest_interval, solve_problem
from tilec.sched.verify import find_violations

PROBLEMS = [random_problem(seed) for seed in range(60)] + [tight_problem(seed) for seed in range(60)]


def find(problem: Problem, relaxed: Solution | None = None) -> Solution | None:
    with suppress(Unschedulable):
        return find_smallest_interval(problem, relaxed=relaxed)
    return None


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_without_proofs_nothing_false_is_said(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    known = find(problem)
    monkeypatch.setattr(solving, "_INTERVALS_BEFORE_STEPS", 1)
    monkeypatch.setattr(solving, "_WORK_PER_SWEEP", 0)
    monkeypatch.setattr(solving, "refute_intervals", lambda problem, low, *rest, **options: RefutedIntervals(low, 0.0))
    found = find(problem)
    assert (found is None) == (known is None)
    if found is None or known is None:
        return
    ii = found.schedule.ii
    assert not list(find_violations(problem, found.schedule))
    assert ii >= known.schedule.ii
    assert [attempt.ii for attempt in found.attempts] == list(range(found.attempts[0].ii, ii + 1))
    assert [attempt.outcome for attempt in found.attempts if attempt.ii == ii] == ["found"]
    refuted = [attempt.ii for attempt in found.attempts if attempt.outcome == "refuted"]
    assert known.schedule.ii not in refuted
    is_open = any(attempt.outcome == "unknown" for attempt in found.attempts)
    assert found.schedule.status == ("feasible" if is_open else "optimal")
    assert (found.warning is None) == (found.most_excess == 0) == (not is_open)
    assert found.schedule.ii <= (1 + found.most_excess / 100) * known.schedule.ii


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_a_search_goes_on_where_one_with_fewer_constraints_ended(problem: Problem) -> None:
    relaxed = find(problem)
    if relaxed is None or len(problem.ops) < 2:
        return
    kept = replace(problem, same_stage=(*problem.same_stage, (0, len(problem.ops) - 1)))
    alone, behind = find(kept), find(kept, relaxed)
    assert (alone is None) == (behind is None)
    if alone is not None and behind is not None:
        assert (behind.schedule.ii, behind.schedule.status) == (alone.schedule.ii, alone.schedule.status)
        assert not list(find_violations(kept, behind.schedule))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_a_search_below_a_known_schedule_ends_with_it_or_a_smaller_one(problem: Problem) -> None:
    alone = find(problem)
    if alone is None:
        return
    known = solve_problem(problem, scheduler="heuristic")
    below = find_smallest_interval(problem, known=known)
    ii = below.schedule.ii
    assert not list(find_violations(problem, below.schedule))
    assert alone.schedule.ii <= ii <= known.schedule.ii or alone.schedule.status != "optimal"
    assert ii <= known.schedule.ii
    assert [attempt.ii for attempt in below.attempts] == list(range(below.attempts[0].ii, ii + 1))
    assert alone.schedule.ii not in [attempt.ii for attempt in below.attempts if attempt.outcome == "refuted"]
    if below.schedule.status == "optimal":
        assert ii <= alone.schedule.ii


@pytest.mark.parametrize(
    ("few", "all_stages", "is_hard", "smallest"),
    [(180, 120, False, 120), (180, 180, False, 180), (180, 120, True, 180), (None, 120, False, 120)],
    ids=["more stages", "no more", "few too hard", "few have none"],
)
def test_more_stages_are_asked_for_where_few_are_refuted(
    few: int | None, all_stages: int, is_hard: bool, smallest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedules of few stages exist from `few` on, and of all from `all_stages`; a heuristic has one at 200."""
    asked: list[str] = []

    def attempt(sweep: Sweep, ii: int, effort: float, stages: str) -> AttemptedInterval:
        asked.append(stages)
        least = few if stages == "few" else all_stages
        is_found = least is not None and ii >= least
        if not is_found and is_hard:
            sweep.undecided.add((ii, 2))
        return Attempt(ii, "found" if is_found else "unknown", "solver", ""), Answer("unknown", False, (), 0.0), 1

    monkeypatch.setattr(Sweep, "attempt_interval", attempt)
    problem = gemm()
    sweep = Sweep(problem, compute_bounds(problem), 1.0, Budget(), None, None)
    sweep.known = 200, (0, 0, 0), ()
    found, best, _ = sweep.approach_interval(100, 300)
    assert smallest <= found <= smallest * (1 + 1 / solving._PRECISION) and best is not None
    assert ("all" in asked) == (not is_hard)
