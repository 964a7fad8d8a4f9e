"""Pipelines at two levels: fragments with stages inside of loops whose shared tiles have some."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import Array, KernelArguments
from tilec.ir import warp
from tilec.support.options import Value

KERNEL = HERE / "register_stages.tl"
DEPTH, MOST = 3, 6


@cache
def made(target: str, **defines: Value) -> Build:
    return built(KERNEL, target, **defines)[1]


def runs(build: Build, trips: Iterable[int], tB: bool = False, size: int = 64) -> None:
    """The emulated PTX computes what numpy does, for each number of iterations."""
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape).astype(np.float16) for shape in ((64, size * MOST), (size * MOST, 64)))
    for n in trips:
        given: dict[str, Array] = {"A": a, "B": np.ascontiguousarray(b.T) if tB else b}
        arguments = KernelArguments({**given, "C": np.full((64, 64), np.nan, np.float32)}, {"n": n})
        emulate.emulate_build(build, arguments)
        wanted = a[:, : size * n].astype(np.float32) @ b[: size * n].astype(np.float32)
        np.testing.assert_allclose(arguments.tensors["C"], wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_trip_counts_known_at_launch(target: str) -> None:
    runs(made(target), range(DEPTH + 2))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_trip_counts_known_at_compile_time(target: str, trips: int) -> None:
    runs(made(target, trips=trips), [trips])


@pytest.mark.parametrize(
    "defines",
    [
        {"a_stages": 4},
        {"a_stages": 1},
        {"b_stages": 1, "a_stages": 1},
        {"KI": 32},
        {"KI": 64, "a_stages": 1, "b_stages": 1},
    ],
)
def test_stages_of_each_fragment(defines: dict[str, Value]) -> None:
    runs(made("sm_80", trips=5, **defines), [5])


@pytest.mark.weekly
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "defines",
    [
        {"a_stages": 3},
        {"a_stages": 3, "b_stages": 3},
        {"b_stages": 3, "a_stages": 1},
        {"a_stages": 2, "b_stages": 3, "BK": 80},
        {"a_stages": 3, "b_stages": 3, "BK": 80},
        {"a_stages": 4, "b_stages": 3, "BK": 80, "tB": True},
    ],
)
def test_stages_that_do_not_divide_the_steps(defines: dict[str, Value], target: str) -> None:
    size = int(defines.get("BK", 64))
    runs(made(target, **defines), (0, 1, 2, 4), bool(defines.get("tB")), size)


def test_a_peeled_step_has_registers_of_its_own() -> None:
    names = {buffer.name for buffer, _ in made("sm_80", a_stages=3, b_stages=2).program.fragments}
    assert {name for name in names if "stage" in name} == {
        *(f"A_reg.stage{n}" for n in range(4)),
        *(f"B_reg.stage{n}" for n in range(2)),
    }


def test_columns_of_b_along_k() -> None:
    runs(made("sm_80", trips=4, tB=True), [4], tB=True)


@pytest.mark.parametrize(("target", "role"), [("sm_80", "all"), ("sm_90a", "consumer")])
def test_the_next_iteration_is_waited_for_before_the_last_step_of_this_one(target: str, role: str) -> None:
    """One wait an iteration, where the index around advances; behind it the first fragments of the next iteration, then
    the last product of this one."""
    program = made(target).program
    body = next(r.body for r in program.roles if r.name == role)
    (loop,) = (op for op in warp.walk_operations(body) if isinstance(op, warp.Loop) and op.part == "steady")
    kinds = (warp.LoadMatrix, warp.Mma, warp.RingWait, warp.BarSync)
    ops = [op for op in loop.body if isinstance(op, kinds)]
    assert [type(op).__name__ for op in ops] == [
        *("LoadMatrix", "LoadMatrix", "Mma") * 3,
        "BarSync" if target == "sm_80" else "RingWait",
        *("LoadMatrix", "LoadMatrix", "Mma"),
    ]
    steps = [op.a.buffer.name for op in ops if isinstance(op, warp.Mma)]
    assert steps == [*("A_reg.stage0", "A_reg.stage1") * 2]
    rings = [{c.name for c in op.cursors} for op in ops if isinstance(op, warp.LoadMatrix)]
    assert rings[:6] == [rings[0]] * 6 and rings[6:] == [rings[6]] * 2 and rings[0] != rings[6]


def test_each_step_has_variables_of_its_own() -> None:
    """Those of nests, of inner loops, and names."""
    build = built(HERE / "register_nests.tl", "sm_80")[1]
    a = np.random.default_rng(0).integers(-3, 4, (64, 192)).astype(np.float16)
    for n in (0, 1, 3):
        arguments = KernelArguments({"A": a, "C": np.full((64, 16), np.nan, np.float32)}, {"n": n})
        emulate.emulate_build(build, arguments)
        parts = ((4 * k + step, 2 * (k + step) + 1) for k in range(n) for step in range(4))
        wanted = sum((a[:, 16 * at : 16 * at + 16] * float(weight) for at, weight in parts), np.zeros((64, 16)))
        np.testing.assert_array_equal(arguments.tensors["C"], wanted)
