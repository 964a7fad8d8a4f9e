"""Roles decided together with the interval: against enumeration, and the overlap that experts write by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import jsonschema
import pytest
from loops import attention, divisions, has_schedule, joint_problem

from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds
from tilec.sched.model.roles import count_role_registers
from tilec.sched.problem import Edge, Op, Problem, Role, Slot, Use
from tilec.sched.solve import solve_problem
from tilec.sched.trace import build_trace, dump_trace, read_schedules
from tilec.sched.verify import find_violations


@pytest.mark.parametrize("seed", range(80))
def test_the_interval_against_every_division(seed: int) -> None:
    problem = joint_problem(seed)
    try:
        solution = solve_problem(problem)
    except Unschedulable as refusal:
        assert refusal.kind == "recurrence" or not list(divisions(problem))
        return
    schedule = solution.schedule
    assert not list(find_violations(problem, schedule))
    assert schedule.status == "optimal"
    for ii in range(1, min(schedule.ii, 12)):
        assert not any(has_schedule(plain, ii) for _, plain in divisions(problem))
    assert any(has_schedule(plain, schedule.ii) for _, plain in divisions(problem))


def test_attention_overlaps_as_experts_write_it() -> None:
    problem = attention()
    schedule = solve_problem(problem).schedule
    names = [op.name for op in problem.ops]
    start = dict(zip(names, schedule.start, strict=True))
    role = dict(zip(names, schedule.role, strict=True))
    # The tensor cores never rest.
    assert (schedule.ii, schedule.status) == (768, "optimal")
    for half in "ab":
        # The next tile's scores before this tile's output.
        assert start[f"scores {half}"] + schedule.ii < start[f"output {half}"]
        # What lives in registers stays with a warp group.
        assert len({role[f"{part} {half}"] for part in ("scores", "softmax", "output")}) == 1
    assert role["softmax a"] != role["softmax b"]
    # The softmax of one group runs under products of the other.
    for half, other in ("ab", "ba"):
        softmax = {(start[f"softmax {half}"] + cycle) % schedule.ii for cycle in range(480)}
        products = {(start[f"{p} {other}"] + c) % schedule.ii for p in ("scores", "output") for c in range(192)}
        assert len(softmax & products) >= 192


def test_the_trace_of_roles_fits_its_schema_and_is_read_back() -> None:
    problem = attention()
    solution = solve_problem(problem)
    text = dump_trace(build_trace([(problem, solution)]))
    schema = (files("tilec.sched") / "trace.schema.json").read_text(encoding="utf-8")
    jsonschema.validate(json.loads(text), json.loads(schema))
    loop = json.loads(text)["tilec"]["loops"][0]
    assert loop["roles"] == list(solution.schedule.role)
    assert "role" in {bound["kind"] for bound in loop["bounds"]}
    assert read_schedules(text) == [replace(solution.schedule, status="given")]


def test_one_warp_group_would_be_slower() -> None:
    """The bound says so before anything is solved, and which ops it is about."""
    problem = attention()
    alone = replace(problem, ops=tuple(replace(op, roles=op.roles[:1]) for op in problem.ops))
    bound = max((b for b in compute_bounds(alone).each if b.kind == "role"), key=lambda b: b.ii)
    assert (bound.ii, bound.name) == (2 * (32 + 480 + 32), "role first")
    assert solve_problem(alone, effort=0.01).schedule.ii >= bound.ii


def test_a_value_carried_in_registers_ties_its_ops() -> None:
    tied = replace(attention(), tied=((2, 3, 4, 5, 6, 7),))
    schedule = solve_problem(tied, effort=0.01).schedule
    assert len({*schedule.role[2:]}) == 1
    assert schedule.ii >= 2 * (32 + 480 + 32)


def test_handing_over_costs_time() -> None:
    ops = tuple(Op(name, (), 10, 10, roles=(0, 1)) for name in ("make", "use"))
    slots, roles = (Slot("left"), Slot("right")), (Role("left", 0), Role("right", 1))
    near = Problem("pair", ops, (Edge(0, 1, 10, hand_over=50), Edge(1, 0, 10, 1)), slots, roles=roles)
    together = solve_problem(near).schedule
    assert (together.ii, together.role) == (20, (0, 0))
    apart = replace(near, ops=(replace(ops[0], roles=(0,)), replace(ops[1], roles=(1,))))
    schedule = solve_problem(apart).schedule
    assert (schedule.ii, schedule.start) == (70, (0, 60))
    early = list(find_violations(apart, replace(schedule, start=(0, 59), order=(0, 1))))
    assert early == ["op use issues in cycle 59, 1 before op make is ready, passed to another role"]


def test_a_blocking_wait_keeps_its_role_busy() -> None:
    slots, roles = (Slot("one"),), (Role("one", 0),)
    ops = (Op("wait and add", (), 5, 5, roles=(0,), wait=20), Op("other", (), 5, 5, roles=(0,)))
    problem = Problem("waits", ops, (), slots, roles=roles)
    schedule = solve_problem(problem).schedule
    assert schedule.ii == 30
    moved = replace(schedule, start=(schedule.start[0], schedule.start[1] + 1))
    assert any("slot one" in text for text in find_violations(problem, moved))


def test_the_registers_of_the_roles_are_shared_in_steps_of_eight() -> None:
    # One warp with 24 registers a thread, and two groups of four warps with 24 + 160 each.
    needed = 32 * (24 + 4 * 184 + 4 * 184)
    problem = attention(needed)
    schedule = solve_problem(problem).schedule
    assert count_role_registers(problem, schedule.role) == (24, 184, 184)
    assert not list(find_violations(problem, schedule))
    too_small = attention(needed - 1)
    with pytest.raises(Unschedulable, match="fits the register file"):
        solve_problem(too_small)
    assert f"the roles need {needed} registers, there are {needed - 1}" in list(find_violations(too_small, schedule))


def test_what_the_verifier_says_of_roles() -> None:
    problem = attention()
    schedule = solve_problem(problem).schedule
    assert list(find_violations(problem, replace(schedule, role=()))) == ["there are 0 roles for 8 ops"]
    unknown = replace(schedule, role=(-9, *schedule.role[1:]))
    assert any(text.startswith(f"op {problem.ops[0].name} has role -9") for text in find_violations(problem, unknown))
    wrong = replace(schedule, role=(1, *schedule.role[1:]))
    assert "op load K has role first, it may have producer" in list(find_violations(problem, wrong))
    tied = replace(problem, tied=((2, 5),))
    said = "ops scores a and scores b carry a value in registers between iterations, so one role must run both"
    assert said in list(find_violations(tied, schedule))


def test_roles_in_the_trace_and_back() -> None:
    problem = attention()
    solution = solve_problem(problem)
    written = build_trace([(problem, solution)])
    loop = written["tilec"]["loops"][0]
    assert [op["role"] for op in loop["ops"]] == [problem.roles[role].name for role in solution.schedule.role]
    assert any(row["slot"] == "first" for op in loop["ops"] for row in op["rows"])
    assert read_schedules(dump_trace(written)) == [replace(solution.schedule, status="given")]


def test_heuristics_divide_ops_too() -> None:
    problem = attention()
    solution = solve_problem(problem, scheduler="heuristic")
    assert not list(find_violations(problem, solution.schedule))
    assert solution.schedule.ii >= solve_problem(problem).schedule.ii


def test_ops_without_candidates_have_no_role() -> None:
    ops = (Op("free", (Use(1, 5),), 5, 5), Op("bound", (), 5, 5, roles=(0,)))
    problem = Problem("mixed", ops, (), (Slot("role"), Slot("unit")), roles=(Role("role", 0),))
    assert solve_problem(problem).schedule.role == (None, 0)
