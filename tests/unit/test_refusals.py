"""A refused placement says what binds it, at which II, with its footprint, its window and its line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tilec.cli.main import main
from tilec.passes.scheduling import refusals
from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds
from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Slot, Use, Value
from tilec.sched.schedule import Schedule
from tilec.sched.verify import find_violations
from tilec.support import resources
from tilec.target import table as targets
from tilec.target.table import Limit, Source

GEMM = str(Path(__file__).parents[2] / "samples" / "gemm.tl")
LOOP = Problem(
    "loop",
    (
        Op("load", (Use(0, 4),), 1, 10, line=3),
        Op("product", (Use(1, 8),), 1, 8, line=4),
        Op("store", (Use(0, 4, 2),), 1, 6, line=5),
    ),
    (Edge(0, 1, 10, 0, "data A"), Edge(1, 2, 8, 0, "data C"), Edge(2, 1, 6, 1, "anti C")),
    (Slot("tma"), Slot("tc")),
    (Pool("smem", 64),),
    (Ring("A", (0,), (1,), 16, 0, 4),),
)
GOOD = Schedule(14, (0, 10, 18), (0, 2, 1), (2,), "given")


def found(schedule: Schedule, problem: Problem = LOOP) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(r.constraint, r.name, r.ops) for r in refusals.find_refusals(problem, schedule)]


def test_a_schedule_that_holds_is_not_refused() -> None:
    assert not list(find_violations(LOOP, GOOD))
    assert found(GOOD) == []


@pytest.mark.parametrize(
    ("schedule", "refusal"),
    [
        (replace(GOOD, start=(0, 9, 18)), ("dependence", "data A", (1, 0))),
        (replace(GOOD, start=(0, 10, 19)), ("dependence", "anti C", (1, 2))),
        (replace(GOOD, start=(0, 10, 28)), ("slot", "tma", (2, 0))),
        (replace(GOOD, depth=(1,)), ("ring", "A", (1, 0))),
        (replace(GOOD, depth=(5,)), ("pool", "smem", (0, 1))),
    ],
)
def test_what_binds(schedule: Schedule, refusal: tuple[str, str, tuple[int, ...]]) -> None:
    assert list(find_violations(LOOP, schedule))
    assert refusal in found(schedule)


def test_values_that_ask_too_much_of_a_pool() -> None:
    """At once and across the end of an interval; with the other things that the pool holds."""
    values = (Value("C", (1,), (2,), 5, 1), Value("mark", (0,), (2,), 1, 2))
    pools = (*LOOP.pools, Pool("registers", 8, 4), Pool("banks", 4, 0, 0))
    problem = replace(LOOP, values=values, pools=pools)
    assert len(list(find_violations(problem, GOOD))) == 2
    assert [(r.name, r.ops, r.text) for r in refusals.find_refusals(problem, GOOD)] == [
        ("registers", (1, 2), "pool registers would hold 9 of 8 at once: 5 C beside 4 others"),
        ("banks", (0, 2), "pool banks would carry 1 of 0 from one interval to the next: 1 mark"),
    ]


def test_an_op_that_outlasts_the_interval_meets_itself() -> None:
    assert ("slot", "tc", (1,)) in found(replace(GOOD, ii=7))


def test_every_mutation_that_the_verifier_refuses_is_explained() -> None:
    for op in range(3):
        for by in range(-12, 13):
            start = tuple(at + by * (i == op) for i, at in enumerate(GOOD.start))
            order = tuple(at for _, at in sorted((begin % 14, at) for at, begin in enumerate(start)))
            moved = replace(GOOD, start=start, order=order)
            if min(start) >= 0:
                assert bool(list(find_violations(LOOP, moved))) == bool(found(moved)), start


def test_the_placement_in_words() -> None:
    assert refusals.describe_placement(LOOP, GOOD, 2) == (
        "line 5: store starts in cycle 18 at II 14; it holds tma for 4 from 2 on; its dependences allow cycles [18, 18]"
    )
    assert refusals.find_window(LOOP, GOOD, 0) == (None, 0)


def test_no_schedule_at_all() -> None:
    narrow = replace(LOOP, pools=(Pool("smem", 8),))
    with pytest.raises(Unschedulable) as caught:
        compute_bounds(narrow)
    assert caught.value.name == "smem"
    notes = refusals.describe_binding(narrow, caught.value)
    assert notes[0] == "binding: pool smem, at every II"
    assert "line 3: load holds tma for 4, its result is ready after 10 cycles, 16 bytes a version of A" in notes


def test_a_ceiling() -> None:
    source = Source("guess", "made for this test")
    low, high = Limit("far_memory", 23, source), Limit("cross_cluster", 50, source)
    assert refusals.find_exceeded_ceiling(LOOP, (Limit("far_memory", 24, source), high)) is None
    refusal = refusals.find_exceeded_ceiling(LOOP, (high, low))
    assert refusal is not None and (refusal.name, refusal.ops) == ("far_memory", (0, 1, 2))
    assert (
        refusal.text
        == "ceiling far_memory allows 23 cycles for a chain of dependences, and load → product → store takes 24"
    )


# ---- on the command line ---------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))


def test_an_edited_schedule_is_refused_by_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([GEMM, "--schedule-trace-file", "t.json", "-o", "a.cubin"]) == 0
    trace = json.loads((tmp_path / "t.json").read_text())
    trace["tilec"]["loops"][0]["ops"][2]["start"] -= 100
    (tmp_path / "t.json").write_text(json.dumps(trace))
    assert main([GEMM, "--schedule", "t.json", "-o", "b.cubin"]) == 1
    said = capfd.readouterr().err
    assert "error[bad-schedule]" in said
    assert "gemm.tl:28:" in said or "28 |" in said, "the line of the product"
    assert "at II 512; it holds tp_smem_rd for 384, tc_and_mma for 512" in said
    assert "its dependences allow cycles [1312, " in said
    assert "dependence data B_shared needs 1184 cycles" in said


def test_a_ceiling_of_a_target_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = resources.target_text("sm_90a").replace("far_memory = { value = 5000", "far_memory = { value = 20")
    low = targets.parse_target(text, "low.toml", "book")
    monkeypatch.setattr(targets, "load_target", lambda *_: low)
    assert main([GEMM, "--calibration", "book", "-o", "a.cubin"]) == 1
    said = capfd.readouterr().err
    assert (
        "error[unschedulable]: no schedule exists: ceiling far_memory allows 20 cycles for a chain of dependences"
        in said
    )
    assert "line 28: gemm A_shared, B_shared, C_local holds tc_and_mma for 8, tp_mma for 8" in said
