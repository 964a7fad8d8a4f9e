"""The verifier accepts what holds and names what does not."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from loops import gemm, random_problem

from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Slot, Use, Value
from tilec.sched.schedule import Schedule
from tilec.sched.solve import solve_problem
from tilec.sched.verify import find_violations

GOOD = Schedule(512, (0, 256, 1440), (0, 1, 2), (4,), "given")


def test_good() -> None:
    assert list(find_violations(gemm(), GOOD)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"start": (0, 256, 1439)}, "op gemm issues in cycle 1439, 1 before op load B is ready (data B)"),
        (
            {"start": (0, 255, 1440)},
            "slot port of width 1 is held 2 times in cycle 255 of the interval, by load A, load B; cycles over: 1",
        ),
        ({"start": (-512, 256, 1440)}, "op load A starts in cycle -512, before its iteration does"),
        ({"start": (0, 256)}, "there are 2 start times for 3 ops"),
        ({"role": (None,)}, "there are 1 roles for 3 ops"),
        (
            {"depth": (3,)},
            "ring A+B has depth 3 but needs 4: a version lives 2024 cycles, from 0 to 2024, at II 512",
        ),
        (
            {"start": (0, 256, 1465)},
            "ring A+B has depth 4 but needs 5: a version lives 2049 cycles, from 0 to 2049, at II 512",
        ),
        ({"depth": (0,)}, "ring A+B has depth 0, it must be at least 1"),
        ({"depth": ()}, "there are 0 depths for 1 rings"),
        ({"depth": (8,)}, "pool smem holds 263168 of 232448: 1024 reserved + 8 × 32768 A+B"),
        ({"order": (0, 2, 1)}, "order puts op gemm (cycle 416 of the interval) before op load B (cycle 256)"),
        ({"order": (0, 1, 1)}, "order [0, 1, 1] does not list each of the 3 ops once"),
        ({"ii": 511}, "op gemm, 1 iteration later, issues in cycle 1951, 1 before op gemm is ready (output C)"),
        ({"ii": 0}, "II is 0, it must be at least 1"),
    ],
)
def test_each_violation_is_named(change: dict[str, Any], says: str) -> None:
    assert says in list(find_violations(gemm(), replace(GOOD, **change)))


def test_limits() -> None:
    assert list(find_violations(replace(gemm(3)), GOOD)) == ["ring A+B has depth 4, at most 3 is allowed"]
    stages = list(find_violations(replace(gemm(), max_stages=2), GOOD))
    assert stages == ["op gemm issues in stage 2, only 2 stages are allowed"]


def test_ops_that_must_share_a_stage() -> None:
    shared = replace(gemm(), same_stage=((0, 1), (1, 2)))
    assert list(find_violations(shared, GOOD)) == ["op gemm issues in stage 2, it must share stage 0 with op load B"]


def test_a_use_may_run_past_the_end_of_the_table() -> None:
    ops = (Op("a", (Use(0, 4),), 1, 4), Op("b", (Use(0, 4, 2),), 1, 6))
    problem = Problem("turn", ops, (Edge(0, 1, 0),), (Slot("unit"),), (Pool("p", 1),), (Ring("r", (0,), (1,), 1, 0),))
    assert list(find_violations(problem, Schedule(8, (6, 8), (1, 0), (1,), "given"))) == []
    over = list(find_violations(problem, Schedule(8, (7, 8), (1, 0), (1,), "given")))
    assert over == ["slot unit of width 1 is held 2 times in cycle 2 of the interval, by a, b; cycles over: 1"]


@pytest.mark.parametrize("seed", range(60))
def test_moving_one_start_by_one_is_named_or_harmless(seed: int) -> None:
    """Each start of a solved schedule moved by one cycle either way: what the constraints by their definition reject,
    the verifier rejects, and says why; all else it accepts."""
    problem = random_problem(seed)
    try:
        solved = solve_problem(problem).schedule
    except Unschedulable:
        return
    for op, by in itertools.product(range(len(problem.ops)), (-1, 1)):
        start = tuple(at + by * (at_op == op) for at_op, at in enumerate(solved.start))
        order = tuple(sorted(range(len(start)), key=lambda at: (start[at] % solved.ii, at)))
        said = list(find_violations(problem, replace(solved, start=start, order=order)))
        assert bool(said) == bool(broken(problem, solved, start)), (op, by, said)
        assert all(re.match(r"op |slot |ring |pool ", text) for text in said)


def broken(problem: Problem, schedule: Schedule, start: tuple[int, ...]) -> list[str]:
    """The kinds of constraints that these starts break, by the definition of each."""
    ii, found = schedule.ii, []
    if min(start) < 0:
        return ["start"]
    if any(start[e.dst] + e.distance * ii < start[e.src] + e.latency for e in problem.edges):
        found.append("edge")
    for slot, spec in enumerate(problem.slots):
        rows = [
            (start[op] + use.offset + cycle) % ii
            for op, of in enumerate(problem.ops)
            for use in of.uses
            for cycle in range(use.cycles)
            if use.slot == slot
        ]
        if any(rows.count(row) > spec.width for row in rows):
            found.append("slot")
    for ring, depth in zip(problem.rings, schedule.depth, strict=True):
        life = max(start[c] + problem.ops[c].latency for c in ring.consumers) - min(start[p] for p in ring.producers)
        if life > depth * ii:
            found.append("ring")
    if problem.max_stages is not None and max(start) // ii >= problem.max_stages:
        found.append("stages")
    return found


def test_every_start_of_a_tight_schedule_matters() -> None:
    solved = solve_problem(gemm(3))
    for op, by in ((0, 1), (1, -1), (2, -1)):
        start = tuple(at + by * (at_op == op) for at_op, at in enumerate(solved.schedule.start))
        said = list(find_violations(gemm(3), replace(solved.schedule, start=start)))
        assert any(text.startswith(("op ", "slot ", "ring ")) for text in said), (op, by)


def test_values_are_held_within_their_pools() -> None:
    ops = (Op("write", (), 1, 10), Op("read", (), 1, 5))
    banks = Problem("banks", ops, (Edge(0, 1, 10),), (), (Pool("tmem", 4),), values=(Value("acc", (0,), (1,), 2, 0),))
    assert list(find_violations(banks, Schedule(10, (0, 10), (0, 1), (), "given"))) == []
    over = list(find_violations(banks, Schedule(5, (0, 10), (0, 1), (), "given")))
    assert over == ["pool tmem would hold 6 of 4 as acc begins"]
    assert solve_problem(banks).schedule.ii == 8
    barriers = replace(banks, pools=(Pool("barriers", 16, 0, 3),))
    carried = list(find_violations(barriers, Schedule(5, (1, 11), (0, 1), (), "given")))
    assert carried == ["pool barriers carries 6 across the end of an interval, 3 are allowed"]
    assert not list(find_violations(barriers, solve_problem(barriers).schedule))
