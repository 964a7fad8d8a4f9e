"""The verifier accepts what holds and names what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loops import gemm

from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Slot, Use
from tilec.sched.schedule import Schedule
from tilec.sched.verify import violations

GOOD = Schedule(512, (0, 256, 1440), (0, 1, 2), (4,), "given")


def test_good() -> None:
    assert list(violations(gemm(), GOOD)) == []


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
        (
            {"depth": (3,)},
            "ring A+B has depth 3 but needs 4: a version lives 2024 cycles, from 0 to 2024, at II 512",
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
def test_each_violation_is_named(change: dict[str, object], says: str) -> None:
    assert says in list(violations(gemm(), replace(GOOD, **change)))  # type: ignore[arg-type]


def test_limits() -> None:
    assert list(violations(replace(gemm(3)), GOOD)) == ["ring A+B has depth 4, at most 3 is allowed"]
    stages = list(violations(replace(gemm(), max_stages=2), GOOD))
    assert stages == ["op gemm issues in stage 2, only 2 stages are allowed"]


def test_a_use_may_run_past_the_end_of_the_table() -> None:
    ops = (Op("a", (Use(0, 4),), 1, 4), Op("b", (Use(0, 4, 2),), 1, 6))
    problem = Problem("turn", ops, (Edge(0, 1, 0),), (Slot("unit"),), (Pool("p", 1),), (Ring("r", (0,), (1,), 1, 0),))
    assert list(violations(problem, Schedule(8, (6, 8), (1, 0), (1,), "given"))) == []
    over = list(violations(problem, Schedule(8, (7, 8), (1, 0), (1,), "given")))
    assert over == ["slot unit of width 1 is held 2 times in cycle 2 of the interval, by a, b; cycles over: 1"]
