"""The heuristic arms against the proof, and when nothing is searched at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graphs import graph
from loops import KNOWN, gemm, random_problem

from tilec.sched.explain import explain_solution
from tilec.sched.heuristics.heuristic import ARMS, is_serial_by_rule, place_ops, schedule_by_heuristics
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.problem import Edge, Op, Problem, Slot, Use
from tilec.sched.solve import solve_problem
from tilec.sched.text import problem_from_neutral
from tilec.sched.verify import find_violations
from tilec.support.options import SCHEDULERS


@pytest.mark.parametrize("arm", ARMS)
def test_what_an_arm_finds_holds_and_is_no_better_than_the_proof(arm: str) -> None:
    reached = 0
    for seed in range(40):
        problem = random_problem(seed)
        try:
            proven = explain_solution(problem, solve_problem(problem))
        except Unschedulable:
            continue
        (trial,) = (trial for trial in proven.trials if trial.arm == arm)
        if trial.ii is not None:
            assert trial.ii >= proven.schedule.ii
            reached += trial.ii == proven.schedule.ii
    assert reached >= 15


def test_iterative_modulo_scheduling_takes_ops_out_again() -> None:
    """By height, the long op comes last, and finds its place only once another has made room."""
    found = [place_ops(problem_from_neutral(graph(seed, 40)), 40, "modulo") for seed in range(6)]
    assert all(start is not None for start in found)


@pytest.mark.parametrize("seed", range(30))
def test_the_heuristic_scheduler_answers_and_says_what_it_knows(seed: int) -> None:
    problem = random_problem(seed)
    try:
        solution = schedule_by_heuristics(problem)
    except Unschedulable:
        return
    assert not list(find_violations(problem, solution.schedule))
    is_optimal = solution.schedule.status == "optimal"
    assert is_optimal == (solution.schedule.ii == solution.bounds.mii)
    assert (solution.warning is None) == is_optimal
    assert solution.schedule.ii >= solve_problem(problem).schedule.ii


def test_the_same_answer_each_time() -> None:
    problem = problem_from_neutral(graph(3, 30))
    assert schedule_by_heuristics(problem) == schedule_by_heuristics(problem)
    assert len(explain_solution(problem, schedule_by_heuristics(problem)).trials) == len(ARMS) == 5


def test_small_bodies_and_those_without_anything_asynchronous_are_serial() -> None:
    assert not is_serial_by_rule(gemm())
    assert is_serial_by_rule(replace(gemm(), force_serial=True))
    few = Problem("few", tuple(Op(f"op{i}", (Use(0, 1),), 1, 9) for i in range(7)), (), (Slot("unit"),))
    assert is_serial_by_rule(few)
    assert not is_serial_by_rule(replace(few, ops=(*few.ops, Op("eighth", (Use(0, 1),), 1, 9))))
    assert is_serial_by_rule(replace(gemm(), ops=tuple(replace(op, issue=op.latency) for op in gemm().ops)))


def test_the_exact_scheduler_pipelines_small_bodies_too() -> None:
    problem, ii = KNOWN[0]
    assert is_serial_by_rule(problem) and solve_problem(problem).schedule.ii == ii


def test_forced_to_be_serial_nothing_overlaps() -> None:
    problem = replace(gemm(), force_serial=True)
    for scheduler in SCHEDULERS:
        solution = solve_problem(problem, scheduler=scheduler)
        schedule = solution.schedule
        assert schedule.stage == (0, 0, 0) and schedule.depth == (1,) and schedule.order == (0, 1, 2)
        assert solution.warning is None and not list(find_violations(problem, schedule))


def test_the_order_of_a_serial_body_is_that_of_its_edges() -> None:
    ops = tuple(Op(name, (), 1, 5) for name in "abc")
    problem = Problem("back", ops, (Edge(2, 0, 5), Edge(0, 1, 5)), (), force_serial=True)
    assert solve_problem(problem).schedule.order == (2, 0, 1)
