"""The budget of a search: what it takes in all, that its end is an answer, and that no cache changes what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from graphs import graph
from loops import attention, gemm, random_problem, valued_problem

from tilec.sched import cache
from tilec.sched.budget import WORK_FOR_ANSWERS, Budget
from tilec.sched.cp import Program
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.problem import Edge, Op, Pool, Problem, Value
from tilec.sched.solution import Solution
from tilec.sched.solve import solve_problem
from tilec.sched.text import problem_from_neutral
from tilec.sched.verify import find_violations

HARD = attention()


def test_a_search_says_what_it_took() -> None:
    budget = Budget()
    first, second = solve_problem(HARD, budget=budget), solve_problem(gemm(), budget=budget)
    assert first.work > second.work > 0
    assert budget.spent == first.work + second.work
    assert solve_problem(HARD) == first and not first.is_cut


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9])
def test_where_the_budget_ends_there_is_an_answer(share: float) -> None:
    best = solve_problem(HARD)
    budget = Budget(int(best.work * share))
    solution = solve_problem(HARD, budget=budget)
    assert not list(find_violations(HARD, solution.schedule))
    assert solution.is_cut and budget.is_over and budget.left == 0
    assert solution.schedule.ii >= best.schedule.ii
    assert solution == solve_problem(HARD, budget=Budget(int(best.work * share)))
    if solution.schedule.status != "optimal":
        assert solution.warning is not None and "budget" in solution.warning
    if share == 0:
        assert solution.work <= WORK_FOR_ANSWERS and solution.schedule.status == "feasible"


def test_answers_where_the_budget_has_ended_have_one_allowance() -> None:
    """However many problems there are; and each has an answer, whether any of it is left or none."""
    budget, alone = Budget(0), solve_problem(HARD, budget=Budget(0))
    assert 0 < alone.work < WORK_FOR_ANSWERS
    for _ in range(2 * WORK_FOR_ANSWERS // alone.work):
        solution = solve_problem(HARD, budget=budget)
        assert not list(find_violations(HARD, solution.schedule))
    assert budget.spent <= WORK_FOR_ANSWERS + alone.work
    assert budget.balance == -WORK_FOR_ANSWERS and solution.work == 0
    assert solution.schedule.ii >= alone.schedule.ii


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("drawn", [random_problem, valued_problem])
def test_with_nothing_to_spend_iterations_overlap_all_the_same(drawn: Callable[[int], Problem], seed: int) -> None:
    problem = drawn(seed)
    try:
        best = solve_problem(problem).schedule.ii
    except Unschedulable:
        with pytest.raises(Unschedulable):
            solve_problem(problem, budget=Budget(0))
        return
    solution = solve_problem(problem, budget=Budget(0))
    assert not list(find_violations(problem, solution.schedule))
    assert best <= solution.schedule.ii <= max(best + 2, best * 3 // 2)


def test_a_budget_that_is_enough_changes_nothing() -> None:
    best = solve_problem(HARD)
    assert solve_problem(HARD, budget=Budget(best.work + 1)) == best


def test_the_only_order_there_is_is_found_even_with_nothing_to_spend() -> None:
    """As written, two values are held at once, and there is room for one."""
    ops = tuple(Op(name, (), 1, 3) for name in "abcd")
    values = (Value("x", (0,), (2,), 3, 0), Value("y", (1,), (3,), 3, 0))
    edges = (Edge(0, 2, 3), Edge(1, 3, 3))
    problem = Problem("crossed", ops, edges, (), (Pool("tmem", 5),), values=values)
    solution = solve_problem(problem, budget=Budget(0))
    assert not list(find_violations(problem, solution.schedule))
    assert solution.work > 0


@pytest.mark.some(2)
@pytest.mark.some(1)
@pytest.mark.parametrize("share", [0.3, 1.0, 1.5, 2.1])
def test_a_cache_spends_what_the_search_would(share: float, tmp_path: Path) -> None:
    """Two problems that share a budget have the same answers with no cache, with a cold one and with any warm one."""
    problems = HARD, problem_from_neutral(graph(4, 40))
    work = solve_problem(HARD).work

    def answers(folder: Path | None, of: tuple[Problem, ...] = problems) -> tuple[list[Solution], int]:
        budget = Budget(int(work * share))
        return [cache.solve_cached(p, folder, budget=budget) for p in of], budget.spent

    alone = answers(None)
    assert answers(tmp_path) == alone
    assert answers(tmp_path) == alone
    for problem in problems:
        cache.solve_cached(problem, tmp_path)
    assert answers(tmp_path) == alone
    answers(tmp_path, problems[1:])
    assert answers(tmp_path) == alone
    assert cache.solve_cached(problems[0], tmp_path) == solve_problem(HARD)


def test_what_a_search_took_is_kept(tmp_path: Path) -> None:
    cold, warm = Budget(), Budget()
    cache.solve_cached(gemm(), tmp_path, budget=cold)
    cache.solve_cached(replace(gemm(), name="another"), tmp_path, budget=warm)
    assert cold.spent == warm.spent > 0


def test_simplifying_many_intervals_is_paid_for() -> None:
    """The solver does not count what it takes for each two of them, which is most of it where there are hundreds."""
    spent = []
    for presolve in (False, True):
        budget = Budget()
        program = Program(budget)
        program._add_no_overlap([program._add_interval(program._variable(0, 1000), 1, 0, None) for _ in range(100)])
        assert program._run(1.0, presolve=presolve).outcome == "found"
        spent.append(budget.spent)
    assert spent[1] - spent[0] >= 9_000


def test_a_third_of_the_time_and_all_of_the_work() -> None:
    clock = iter((30.0, 30.0, 25.0, 20.0, 19.0))
    whole = Budget(7, lambda: next(clock))
    part = whole.split_third()
    assert [part.seconds_left() for _ in range(3)] == [10.0, 5.0, 0.0]
    assert part.is_over and not part.is_spent and part.left == 7
