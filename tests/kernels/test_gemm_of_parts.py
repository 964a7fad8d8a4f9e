"""T.gemm of parts of shared tiles, a step along K in each iteration of an inner loop."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import KernelArguments
from tilec.ir import warp
from tilec.support.options import Value

KERNEL = HERE / "gemm_of_parts.tl"
MOST = 4


@cache
def made(target: str, **defines: Value) -> Build:
    return built(KERNEL, target, **defines)[1]


def runs(build: Build, trips: Iterable[int], tA: bool = False, tB: bool = False, adversary: int | None = None) -> None:
    """The emulated PTX computes what numpy does, for each number of iterations."""
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape).astype(np.float16) for shape in ((64, 64 * MOST), (64 * MOST, 64)))
    for n in trips:
        factors = {"A": np.ascontiguousarray(a.T if tA else a), "B": np.ascontiguousarray(b.T if tB else b)}
        arguments = KernelArguments({**factors, "C": np.full((64, 64), np.nan, np.float32)}, {"n": n})
        emulate.emulate_build(build, arguments, options=emulate.RunOptions(adversary))
        wanted = a[:, : 64 * n].astype(np.float32) @ b[: 64 * n].astype(np.float32)
        np.testing.assert_allclose(arguments.tensors["C"], wanted, rtol=1e-3, atol=1e-3)


def products(build: Build) -> set[type[warp.Operation]]:
    found = (op for role in build.program.roles for op in warp.walk_operations(role.body))
    return {type(op) for op in found if isinstance(op, warp.Mma | warp.Wgmma)}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("tA", "tB"), [(False, False), (True, True)])
def test_parts_along_k_that_are_known_at_run_time(target: str, tA: bool, tB: bool) -> None:
    build = made(target, in_registers=False, trips=3, tA=tA, tB=tB)
    assert products(build) == {warp.Wgmma if target == "sm_90a" else warp.Mma}
    runs(build, [3], tA, tB)


def test_a_by_way_of_registers() -> None:
    build = made("sm_90a")
    assert products(build) == {warp.Wgmma}
    runs(build, range(MOST + 1))


def test_a_step_is_loaded_while_the_product_before_it_runs() -> None:
    role = next(role for role in made("sm_90a").program.roles if role.name == "consumer")
    (loop,) = (op for op in warp.walk_operations(role.body) if isinstance(op, warp.Loop) and op.part == "steady")
    kinds = (warp.LoadMatrix, warp.Wgmma, warp.WgmmaWait, warp.RingWait)
    ops = [type(op).__name__ for op in loop.body if isinstance(op, kinds)]
    assert ops == ["Wgmma", "LoadMatrix", "Wgmma", "WgmmaWait", "RingWait", "LoadMatrix"]


@pytest.mark.parametrize("adversary", [1, 2])
def test_what_is_slow_changes_nothing(adversary: int) -> None:
    runs(made("sm_90a"), [3], adversary=adversary)


@pytest.mark.parametrize("defines", [{"KI": 16}, {"KI": 16, "a_stages": 4}])
def test_more_steps_and_stages(defines: dict[str, Value]) -> None:
    runs(made("sm_90a", trips=3, **defines), [3])


@pytest.mark.parametrize(("target", "tB"), [("sm_80", False), ("sm_90a", True)])
def test_b_as_it_is_stored(target: str, tB: bool) -> None:
    runs(made(target, trips=3, tB=tB), [3], tB=tB)
