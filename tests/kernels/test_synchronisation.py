"""What a person says about waiting: `sync` and `group` of T.Pipelined, and explicit barriers, waits and commits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import HERE, agrees, built

from tilec.driver.build import Observer, build_kernel
from tilec.ir import warp
from tilec.support.files import read_source
from tilec.support.options import CompileOptions, Strategy, Value

FORMS: list[tuple[str, Strategy]] = [
    ("sm_80", "auto"),
    ("sm_90a", "auto"),
    ("sm_90a", "unspecialize"),
    ("sm_90a", "none"),
]
forms = pytest.mark.parametrize(("target", "strategy"), FORMS, ids=str)

trip_counts = pytest.mark.parametrize("trips", [0, 1, 2, 3, 4], ids=lambda trips: f"{trips}trips")  # three versions


def steady(program: warp.Program, role: int = 0) -> list[str]:
    """The kinds of operations in the steady state of a role's only pipeline."""
    loops = [
        op for op in warp.walk_operations(program.roles[role].body) if isinstance(op, warp.Loop) and op.part == "steady"
    ]
    (loop,) = loops
    return [type(op).__name__ for op in loop.body if not isinstance(op, warp.Advance | warp.Await)]


# ---- sync= and group= ------------------------------------------------------------------------------------------------


@forms
@trip_counts
@pytest.mark.parametrize("said", ["all", "loads"])
def test_waits_that_are_asked_for(target: str, strategy: Strategy, trips: int, said: str) -> None:
    agrees(HERE / "waits.tl", target, strategy, strict=False, trips=trips, sync=said)


@forms
@trip_counts
@pytest.mark.parametrize("said", ["one", "two"])
def test_groups_that_are_asked_for(target: str, strategy: Strategy, trips: int, said: str) -> None:
    agrees(HERE / "waits.tl", target, strategy, strict=False, trips=trips, group=said)


def test_a_product_waits_for_a_copy_that_it_does_not_read() -> None:
    _, plain = built(HERE / "waits.tl", "sm_80", late=1)
    _, asked = built(HERE / "waits.tl", "sm_80", late=1, sync="loads")
    copy = ["CpAsync", "CpAsyncCommit"]
    assert steady(plain.program) == ["CpAsyncWait", "BarSync", *copy, *copy, "Mma", "Elementwise"]
    assert steady(asked.program) == ["BarSync", *copy, "CpAsyncWait", "BarSync", *copy, "Mma", "Elementwise"]


def test_a_store_waits_for_a_product_that_it_does_not_read() -> None:
    source = read_source(str(HERE / "waits.tl"))
    options = CompileOptions(target="sm_90a", epilogue_warp=False)
    plain = build_kernel(source, options, Observer())
    asked = build_kernel(source, replace(options, defines=(("sync", "all"),)), Observer())
    orders = [steady(made.program) for made in (plain, asked)]
    assert [ops.index("WgmmaWait") < ops.index("TmaStore") for ops in orders] == [False, True]


def test_a_copy_that_waits_is_no_producer_warps() -> None:
    """What it waits for is known to the warps that compute."""
    _, made = built(HERE / "waits.tl", "sm_90a", sync="loads")
    assert [role.name for role in made.program.roles] == ["all"]


@pytest.mark.parametrize(
    ("said", "rings", "commits"), [(None, ["a", "b"], 2), ("one", ["a+b"], 1), ("two", ["a", "b"], 2)]
)
def test_a_group_is_one_ring_and_one_commit(said: Value, rings: list[str], commits: int) -> None:
    _, made = built(HERE / "waits.tl", "sm_80", group=said)
    assert [ring.name for ring in made.program.rings] == rings
    assert steady(made.program).count("CpAsyncCommit") == commits
    _, made = built(HERE / "waits.tl", "sm_90a", group=said)
    assert [(ring.name, ring.bytes) for ring in made.program.rings] == [(r, 8192 * (1 + ("+" in r))) for r in rings]


# ---- explicit statements ---------------------------------------------------------------------------------------------

SCHEDULES: dict[str, dict[str, Value]] = {"solved": {"stages": 3}, "by_hand": {"late": 2}, "serial": {"stages": 0}}


@forms
@trip_counts
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_explicit_statements(target: str, strategy: Strategy, trips: int, schedule: str) -> None:
    agrees(HERE / "explicit.tl", target, strategy, trips=trips, **SCHEDULES[schedule])


@forms
@pytest.mark.parametrize("trips", [0, 1, 2, 5])
@pytest.mark.parametrize("stages", [0, 2])
@pytest.mark.parametrize("two", [False, True])
def test_copies_that_the_iteration_before_begins(
    target: str, strategy: Strategy, trips: int, stages: int, two: bool
) -> None:
    """Every barrier that a person writes is there, also where it costs more than the schedule allows for."""
    agrees(HERE / "carried_copy.tl", target, strategy, strict=False, trips=trips, stages=stages, two=two)


@forms
@pytest.mark.parametrize(
    ("outer", "inner", "listed"),
    [(3, 3, False), (1, 2, False), (2, 0, False), (2, 1, False), (3, 3, True), (1, 2, True), (2, 1, True)],
)
def test_nested_pipelines(target: str, strategy: Strategy, outer: int, inner: int, listed: bool) -> None:
    agrees(HERE / "nested_explicit.tl", target, strategy, strict=False, outer=outer, inner=inner, listed=listed)


def test_a_wait_stands_where_it_is_written_and_leaves_later_iterations_in_flight() -> None:
    """Of three groups an iteration, those of two later ones, and the commit behind the copies."""
    _, made = built(HERE / "explicit.tl", "sm_80", late=2)
    copies = ["CpAsync", "CpAsyncCommit", "CpAsync", "CpAsyncCommit", "CpAsyncCommit"]
    assert steady(made.program) == ["BarSync", *copies, "CpAsyncWait", "BarSync", "Mma", "Mma"]
    (wait,) = {
        op.pending
        for loop in warp.walk_operations(made.program.roles[0].body)
        if isinstance(loop, warp.Loop)
        for op in loop.body
        if isinstance(op, warp.CpAsyncWait)
    }
    assert wait == 2 * 3 + 1


def test_a_wait_leaves_as_many_groups_in_flight_as_it_says() -> None:
    _, made = built(HERE / "carried_copy.tl", "sm_80", stages=0, two=True)
    waits = [op for op in warp.walk_operations(made.program.roles[0].body) if isinstance(op, warp.CpAsyncWait)]
    assert [(op.span.line, op.pending) for op in waits] == [(17, 1), (22, 1), (34, 0)]


def test_a_barrier_that_is_written_is_not_there_twice() -> None:
    """Those that are derived, where a person has written none, stand in the same places."""
    _, made = built(HERE / "carried_copy.tl", "sm_80", stages=0, two=True)
    barriers = [op.span.line for op in warp.walk_operations(made.program.roles[0].body) if isinstance(op, warp.BarSync)]
    assert barriers == [18, 20, 23, 25]


def test_what_feeds_an_explicit_wait_may_come_by_tma() -> None:
    _, made = built(HERE / "explicit.tl", "sm_90a")
    consumer, producer = made.program.roles
    assert sum(isinstance(op, warp.TmaLoad) for op in warp.walk_operations(producer.body)) >= 2
    kinds = steady(made.program)
    assert kinds.index("RingWait") < kinds.index("ProxyFence") < kinds.index("BarSync") < kinds.index("Wgmma")
    assert {op.id for op in warp.walk_operations(consumer.body) if isinstance(op, warp.BarSync)} == {1}


def test_a_fence_is_nothing_without_an_asynchronous_proxy() -> None:
    fences = {
        target: sum(
            isinstance(op, warp.ProxyFence) for role in made.program.roles for op in warp.walk_operations(role.body)
        )
        for target in ("sm_80", "sm_90a")
        for _, made in [built(HERE / "explicit.tl", target)]
    }
    assert fences["sm_80"] == 0 < fences["sm_90a"]
