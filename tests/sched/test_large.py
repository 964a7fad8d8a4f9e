"""Loops of more ops than kernels have: how long they take, and what is said when time is short."""

from __future__ import annotations

import time

import pytest
from graphs import crowded, graph

from tilec.sched.budget import Budget
from tilec.sched.model.levels import find_smallest_threshold
from tilec.sched.solve import solve_problem
from tilec.sched.text import problem_from_neutral
from tilec.sched.verify import find_violations


@pytest.mark.parametrize("count", [20, 30, 40])
def test_graphs_of_usual_size_are_proven(count: int) -> None:
    for seed in range(2):
        problem = problem_from_neutral(graph(seed, count))
        began = time.process_time()
        solution = solve_problem(problem)
        assert solution.schedule.status == "optimal"
        assert time.process_time() - began < 10  # usually a tenth of that; a machine under load counts slowly
        assert not list(find_violations(problem, solution.schedule))


@pytest.mark.parametrize(("seed", "count"), [(1, 150), (2, 300)])
def test_a_time_limit_is_kept(seed: int, count: int) -> None:
    problem = problem_from_neutral(graph(seed, count))
    began = time.monotonic()
    solution = solve_problem(problem, budget=Budget(None, lambda: began + 3 - time.monotonic()))
    assert time.monotonic() - began < 15  # 3 and what no limit can cut short, on a machine that does other things
    assert not list(find_violations(problem, solution.schedule))
    assert solution.schedule.status == ("optimal" if not solution.warning else "feasible")


@pytest.mark.weekly
def test_a_time_limit_cuts_heuristics_short_too() -> None:
    """Long uses on few slots: no heuristic reaches hundreds of intervals from the bound on, and each takes its time to
    find that out."""
    problem = problem_from_neutral(crowded(4, 250))
    began = time.process_time()
    solution = solve_problem(problem, budget=Budget(None, lambda: began + 2 - time.process_time()))
    assert time.process_time() - began < 6
    assert not list(find_violations(problem, solution.schedule))
    assert solution.schedule.status == "feasible" and solution.warning
    tried = [attempt.ii for attempt in solution.attempts]
    assert tried == list(range(solution.bounds.mii - 1, solution.schedule.ii + 1))
    assert not any(level.proven for level in solution.objectives[:1])


def test_no_time_at_all_is_still_an_answer_and_an_honest_one() -> None:
    problem = problem_from_neutral(graph(5, 40))
    solution = solve_problem(problem, budget=Budget(None, lambda: 0.0))
    assert not list(find_violations(problem, solution.schedule))
    best = solve_problem(problem)
    assert solution.schedule.ii >= best.schedule.ii
    assert not any(level.proven for level in solution.objectives[1:])
    if solution.schedule.status == "optimal":
        assert solution.schedule.ii == best.schedule.ii


@pytest.mark.parametrize("least", range(20))
def test_the_smallest_feasible_threshold_is_found_by_doubling_and_bisecting(least: int) -> None:
    asked: list[int] = []

    def is_feasible(at: int) -> bool:
        asked.append(at)
        return at >= least

    assert find_smallest_threshold(is_feasible, 0, 40) == (least, least)
    assert len(asked) <= 10 and len(set(asked)) == len(asked)


def test_a_threshold_that_cannot_be_told_leaves_a_range() -> None:
    # Asked at 0, 2 and 6: the last is no answer.
    assert find_smallest_threshold(lambda at: False if at < 5 else None, 0, 40) == (3, 40)
    assert find_smallest_threshold(lambda at: True, 7, 7) == (7, 7)
