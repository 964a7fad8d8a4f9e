"""Loops that load and use are pipelined without being said to be, and what speaks against it is said."""

from __future__ import annotations

import pytest
from harness import HERE, agrees

from tilec.driver import build as driver
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.passes.loop.stages.pipelined_buffers import LoadedTile, find_loaded_tiles
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = HERE / "load_use.tl"


def planned(entry: str, target: str = "sm_90a", **options: object) -> driver.Plan:
    source = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))
    return driver.plan_kernel(source, CompileOptions(target=target, entry=entry, **options), driver.Observer())


def tiles(plan: driver.Plan) -> list[LoadedTile]:
    schedules = [ScheduledLoop(p.loop, p.solution.schedule) for p in plan.loops]
    return [t for t in find_loaded_tiles(plan.assignment, schedules, plan.target) if t.memory == "global → shared"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("entry", ["plain", "nested", "between"])
def test_load_use_loops_are_pipelined(entry: str, target: str) -> None:
    made = agrees(KERNEL, target, entry=entry)
    (schedule,) = made.schedules
    assert min(schedule.depth) > 1
    for found in tiles(planned(entry, target)):
        by = "cp.async" if target == "sm_80" else "TMA"
        assert found.versions > 1 and found.why.startswith(f"asynchronous, by {by}; {found.versions} × 4,096 bytes")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("kept", "a is also used outside the loop"),
        ("once", "it runs 1 iteration"),
        ("left", "line 94 may leave the loop, so the loop keeps the order of the text"),
        ("chosen", "line 202 is conditional, so the loop keeps the order of the text"),
        ("endless", "a `while` has no trip count, and runs as written"),
        ("copied", "no product uses its tiles; only T.Pipelined pipelines such a loop"),
        ("rewritten", "the kernel also writes B"),
        ("large", "two versions of its tiles take 262,144 bytes, and 216,064 are free"),
    ],
)
def test_what_speaks_against_it(entry: str, why: str) -> None:
    plan = planned(entry)
    assert plan.loops == ()
    assert {(found.versions, found.why) for found in tiles(plan)} == {(1, why)}
    assert not any(decision.what.startswith("loop at line") for decision in plan.decisions)


@pytest.mark.parametrize("entry", ["kept", "once", "left", "copied", "rewritten", "converted"])
def test_loops_that_stay_serial_compute_the_same(entry: str) -> None:
    assert agrees(KERNEL, "sm_90a", entry=entry, strict=False).schedules == ()


@pytest.mark.parametrize(
    ("options", "by", "why"),
    [
        ({"auto_pipeline": False}, "the command line", "--no-auto-pipeline"),
        ({"opt_level": 2}, "the compiler", "not at -O2"),
        ({"pipeline_strategy": "none"}, "the command line", "--pipeline-strategy none"),
    ],
)
def test_the_text_can_be_followed_to_the_letter(options: dict[str, object], by: str, why: str) -> None:
    plan = planned("plain", **options)
    assert plan.loops == ()
    (decision,) = (d for d in plan.decisions if d.what.startswith("loop at line"))
    assert (decision.chosen, decision.by, decision.why) == ("as it is written", by, why)


def test_loads_that_are_not_asynchronous_gain_nothing() -> None:
    plan = planned("converted")
    assert plan.loops == ()
    (decision,) = (d for d in plan.decisions if d.what.startswith("loop at line"))
    assert decision.why == "no asynchronous copy can load its tiles"


# ---- stages that a person asks for -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("entry", ["asked", "asked_of_two_loops"])
def test_tiles_have_the_stages_that_are_asked_for(entry: str, stages: int, target: str) -> None:
    made = agrees(KERNEL, target, entry=entry, stages=stages)
    assert {depth for schedule in made.schedules for depth in schedule.depth} == {stages}
    source = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))
    options = CompileOptions(target=target, entry=entry, auto_pipeline=False, defines=(("stages", stages),))
    assert {t.versions for t in tiles(driver.plan_kernel(source, options, driver.Observer()))} == {stages}


def test_tiles_that_a_nest_fills_are_told_of_too() -> None:
    """And why there are fewer versions than were asked for."""
    by_nest, by_copy = tiles(planned("gathered", "sm_80"))
    assert (by_nest.tile, by_nest.source, by_nest.line) == ("a", "A, Rows", 235)
    assert by_nest.why.startswith(
        "by the threads, through registers: no asynchronous copy; 2 × 4,096 bytes of at most 8"
    )
    assert by_copy.why.endswith("of at most 8: another one would not make the loop faster")


def test_one_stage_is_the_loop_as_it_is_written() -> None:
    made = agrees(KERNEL, "sm_90a", entry="asked", stages=1)
    assert made.schedules == ()
