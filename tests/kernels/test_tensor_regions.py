"""Loops that read and write one tensor, in places that iterations share or do not, scheduled by hand and solved."""

from __future__ import annotations

import random

import pytest

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TARGETS = ["sm_80", "sm_90a", "sm_100a"]
KERNEL = """import tilelang.language as T

@T.prim_func
def shift(C: T.Tensor((2048,), "float32"), n: T.int32):
    with T.Kernel(1, threads=128) as bx:
        S = T.alloc_shared((128,), "float32")
        for k in T.Pipelined({trips}{lists}):
            T.copy(C[{source}], S)
            for j in T.Parallel(128):
                C[{place}] = S[j] * 0.5 + 1.0
"""


def made(target: str, source: str, place: str, lists: str = "", trips: str = "6") -> Build:
    text = KERNEL.format(source=source, place=place, lists=lists, trips=trips)
    return build_kernel(SourceFile("shift.tl", text), CompileOptions(target=target), Observer())


def check(built: Build, n: int = 5) -> None:
    given = emulate.draw_arguments(built.kernel, built.manifest, 3)
    given.scalars.update({"n": n} if "n" in given.scalars else {})
    found, expected = given.copy(), given.copy()
    emulate.emulate_build(built, found, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(built.kernel, expected)
    for r in emulate.compare_arguments(built.kernel, built.manifest, found, expected):
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lists", ["", ", stage=[0, 1], order=[0, 1]", ", stage=[0, 3], order=[0, 1]"])
def test_each_iteration_has_its_own_part(lists: str, target: str) -> None:
    built = made(target, "k * 128", "k * 128 + j", lists)
    check(built)
    (schedule,) = built.schedules
    assert lists or schedule.ii < schedule.start[1]  # nothing waits for the load of the iteration before


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("trips", "n"), [("n", 0), ("n", 1), ("n", 6), ("1, n", 5)])
def test_trip_counts_known_at_launch(trips: str, n: int, target: str) -> None:
    for lists in ("", ", stage=[0, 2], order=[1, 0]"):
        check(made(target, "n + k * 128", "n + k * 128 + j", lists, trips), n)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("(k + 1) * 128", "k * 128 + 1 + j"),  # by one element
        ("k * 128", "k * 128 + 1 + j"),
        ("k * 128", "(k + 1) * 128 + j"),
        ("640 - k * 128", "640 - k * 128 - 1 + j + 0"),
        ("(k % 2) * 128", "(k % 2) * 128 + j"),
        ("k * n", "k * n + j"),
    ],
)
def test_a_part_of_the_iteration_before(source: str, place: str, target: str) -> None:
    """No list may let it run ahead: that is refused, or right."""
    check(made(target, source, place))
    for lists in (", stage=[0, 1], order=[0, 1]", ", stage=[0, 1], order=[1, 0]", ", stage=[0, 2], order=[0, 1]"):
        try:
            built = made(target, source, place, lists)
        except CompileError as error:
            assert {d.code for d in error.diagnostics} == {"schedule-order"}
        else:
            check(built)


def test_what_comes_two_iterations_later_is_one_stage_ahead() -> None:
    """The part that is written is read again two iterations later: one stage of the load is allowed, three are not."""
    check(made("sm_80", "k * 128", "(k + 2) * 128 + j", ", stage=[0, 1], order=[0, 1]"))
    with pytest.raises(CompileError) as raised:
        made("sm_80", "k * 128", "(k + 2) * 128 + j", ", stage=[0, 3], order=[0, 1]")
    (found,) = raised.value.diagnostics
    assert found.code == "schedule-order" and "of the iteration 2 before" in found.title


@pytest.mark.parametrize("seed", range(12))
def test_drawn_accesses(seed: int) -> None:
    draw = random.Random(seed)
    scale, other = draw.choice((64, 96, 128, 160)), draw.choice((0, 1, 31, 32, 64, 128, 256))
    source = f"k * {scale} + {draw.choice((0, other))}"
    place = f"k * {draw.choice((scale, scale, 128))} + {other} + j"
    target, trips = draw.choice(TARGETS), draw.choice(("3", "6", "n"))
    check(made(target, source, place, trips=trips))
    for stage in (1, 2):
        try:
            built = made(target, source, place, f", stage=[0, {stage}], order={draw.choice(([0, 1], [1, 0]))}", trips)
        except CompileError as error:
            assert {d.code for d in error.diagnostics} == {"schedule-order"}
        else:
            check(built)
