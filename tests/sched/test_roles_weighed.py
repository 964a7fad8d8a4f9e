"""The roles by rule against all others: kept unless others make the interval smaller, and never where a register ties
a statement to its role."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib.resources import files
from itertools import product

import jsonschema
import pytest
from loops import has_schedule

from tilec.sched.model.roles import choose_roles_by_rule, resolve_roles, solve_with_best_roles
from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Role, Slot, Use
from tilec.sched.solution import Attempt, Solution
from tilec.sched.solve import solve_problem
from tilec.sched.trace import build_trace, dump_trace, read_schedules
from tilec.sched.verify import find_violations


def streaming(compute: int = 9, wait: int = 3, hand_over: int = 4, stores: int = 1, memory: int = 4) -> Problem:
    """Load, compute from tile to tile, store: by the consumers, or by a role of its own."""
    slots = (Slot("memory"), Slot("consumer"), Slot("store"), Slot("producer"))
    ops = (
        Op("load", (Use(0, memory), Use(3, 1)), 1, 8),
        Op("compute", (), compute, compute + 1, roles=(0,)),
        *(Op(f"store {i}", (Use(0, memory),), 2, 6, roles=(0, 1), wait=wait) for i in range(stores)),
    )
    edges = (
        Edge(0, 1, 8, why="data x"),
        *(Edge(1, 2 + i, compute + 1, why="data y", hand_over=hand_over) for i in range(stores)),
    )
    rings = (Ring("x", (0,), (1,), 1, 0), Ring("y", (1,), tuple(range(2, 2 + stores)), 1, 0))
    roles = (Role("consumer", 1), Role("store", 2, 1))
    tied = (tuple(range(2, 2 + stores)),) if stores > 1 else ()
    return Problem("streaming", ops, edges, slots, (Pool("smem", 32),), rings, roles=roles, tied=tied)


def divided(problem: Problem) -> Solution:
    return solve_with_best_roles(problem, solve_problem)


def test_a_role_of_its_own_where_the_consumers_are_the_bottleneck() -> None:
    problem = streaming()
    solution = divided(problem)
    assert (solution.schedule.ii, solution.ii_by_rule) == (9, 14)
    assert solution.schedule.role == (None, 0, 1)
    assert solution.schedule.status == "optimal"
    assert not list(find_violations(problem, solution.schedule))


@pytest.mark.parametrize("memory", [7, 8])
def test_the_rule_where_nothing_is_gained(memory: int) -> None:
    """Memory is the bottleneck, whoever stores."""
    problem = streaming(memory=memory)
    solution = divided(problem)
    assert (solution.schedule.ii, solution.ii_by_rule) == (2 * memory, 2 * memory)
    assert solution.schedule.role == choose_roles_by_rule(problem) == (None, 0, 0)
    assert (
        solution.schedule.start == solve_problem(resolve_roles(problem, choose_roles_by_rule(problem))).schedule.start
    )


@pytest.mark.parametrize(
    ("compute", "wait", "stores", "memory"), [*product((1, 5, 9), (0, 3), (1, 2), (1, 2, 5))], ids=str
)
def test_against_every_division(compute: int, wait: int, stores: int, memory: int) -> None:
    problem = streaming(compute, wait, 4, stores, memory)
    problem = replace(problem, rings=tuple(replace(ring, max_depth=4) for ring in problem.rings))
    by = {role: resolve_roles(problem, (None, 0, *(role,) * stores)) for role in (0, 1)}
    least = {role: next(ii for ii in range(1, 99) if has_schedule(plain, ii)) for role, plain in by.items()}
    schedule = divided(problem).schedule
    assert schedule.ii == min(least.values())
    assert schedule.role[2:] == (int(least[1] < least[0]),) * stores


def test_those_of_one_ring_go_together() -> None:
    problem = streaming(stores=2, memory=1)
    schedule = divided(problem).schedule
    assert len({*schedule.role[2:]}) == 1
    torn = replace(schedule, role=(None, 0, 0, 1))
    assert any("so one role must run both" in text for text in find_violations(problem, torn))


def test_a_value_in_registers_ties_the_store_to_its_role() -> None:
    """Where it goes is known to who computed it alone: no schedule may have it elsewhere, though it were faster."""
    problem = replace(streaming(), tied=((1, 2),))
    solution = divided(problem)
    assert solution.schedule.role == (None, 0, 0)
    assert solution.schedule.ii == solution.ii_by_rule == 14
    elsewhere = divided(streaming()).schedule
    assert "ops compute and store 0 carry a value in registers between iterations, so one role must run both" in list(
        find_violations(problem, elsewhere)
    )
    computed_elsewhere = replace(elsewhere, role=(None, 1, 1))
    assert "op compute has role store, it may have consumer" in list(find_violations(problem, computed_elsewhere))


def test_without_a_choice_nothing_is_weighed() -> None:
    problem = streaming()
    ruled = replace(problem, ops=tuple(replace(op, roles=op.roles[:1]) for op in problem.ops))
    for solution in (divided(ruled), solve_with_best_roles(problem, solve_problem, only_by_rule=True)):
        assert (solution.schedule.ii, solution.schedule.role, solution.ii_by_rule) == (14, (None, 0, 0), None)


def test_by_heuristics() -> None:
    """Others than by rule are taken only where they are found to be better."""
    heuristic = partial(solve_problem, scheduler="heuristic")
    serial = replace(streaming(), force_serial=True)
    assert solve_with_best_roles(serial, heuristic).schedule.role == (None, 0, 0)
    # Enough ops, or cycles, not to be generated serially.
    problem = streaming(compute=90, wait=30)
    solution = solve_with_best_roles(problem, heuristic)
    assert solution.schedule.role == (None, 0, 1)
    assert solution.ii_by_rule is not None and solution.schedule.ii < solution.ii_by_rule
    assert not list(find_violations(problem, solution.schedule))


def test_what_is_not_proven_of_all_roles_is_not_proven() -> None:
    """The search among other roles gives up, with nothing better than the rule has."""

    def hurried(problem: Problem) -> Solution:
        solution = solve_problem(problem)
        if not problem.roles:
            return solution
        unsure = Attempt(12, "unknown", "solver", "neither found nor refuted with this effort")
        schedule = replace(solution.schedule, ii=40, status="feasible")
        return replace(solution, schedule=schedule, attempts=(unsure,))

    solution = solve_with_best_roles(streaming(), hurried)
    assert (solution.schedule.ii, solution.schedule.status, solution.schedule.role) == (14, "feasible", (None, 0, 0))
    assert solution.warning is not None and "none below 12 is possible" in solution.warning


def test_the_hand_over_takes_its_time() -> None:
    problem = streaming(hand_over=40)
    schedule = divided(problem).schedule
    assert schedule.start[2] >= schedule.start[1] + 10 + 40
    early = replace(schedule, start=(*schedule.start[:2], schedule.start[1] + 10))
    assert any("passed to another role" in text for text in find_violations(problem, early))


def test_the_trace_says_what_was_weighed() -> None:
    problem = streaming()
    solution = divided(problem)
    text = dump_trace(build_trace([(problem, solution)]))
    jsonschema.validate(
        json.loads(text), json.loads((files("tilec.sched") / "trace.schema.json").read_text(encoding="utf-8"))
    )
    (loop,) = json.loads(text)["tilec"]["loops"]
    assert (loop["ii"], loop["ii_by_rule"], loop["roles"]) == (9, 14, [None, 0, 1])
    assert [op["role"] for op in loop["ops"]] == ["all", "consumer", "store"]
    assert read_schedules(text) == [replace(solution.schedule, status="given")]
    assert dump_trace(build_trace([(problem, divided(problem))])) == text
