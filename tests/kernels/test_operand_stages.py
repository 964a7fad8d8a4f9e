"""A by way of registers with stages, multiplied by wgmma: fragments are loaded while the product before them runs, also
those of the next iteration."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import KernelArguments
from tilec.ir import warp
from tilec.support.options import Value

KERNEL = HERE / "gemm_of_parts.tl"
M, N, K, DEPTH, MOST = 128, 192, 64, 4, 6
"""Tiles whose products take longer than their loads, and what the kernel is given of them."""

FORMS: dict[str, dict[str, Any]] = {
    "two stages": {},
    "four stages": {"a_stages": 4},
    "two steps": {"KI": 32},
    "bfloat16": {"dtype": "bfloat16"},
    "unpacked": {"dtype_a": "int8"},
    "scaled": {"dtype_a": "int8", "factor": 3},
}


@cache
def made(target: str = "sm_90a", **defines: Value) -> Build:
    shape: dict[str, Value] = {"BM": M, "BN": N, "KI": 16, "threads": 256, "stages": DEPTH, "MOST": MOST}
    return built(KERNEL, target, **{**shape, **defines})[1]


def runs(build: Build, trips: int, adversary: int | None = None, factor: int = 1) -> None:
    """The emulated PTX computes what numpy does: whole numbers, so exactly."""
    generator = np.random.default_rng(trips)
    a, b = (generator.integers(-4, 5, shape).astype(np.float32) for shape in ((M, K * MOST), (K * MOST, N)))
    types = {p.name: p.dtype.name for p in build.kernel.params if p.name in ("A", "B")}
    given = {name: _stored(value, types[name]) for name, value in (("A", a), ("B", b))}
    arguments = KernelArguments({**given, "C": np.full((M, N), np.nan, np.float32)}, {"n": trips})
    emulate.emulate_build(build, arguments, options=emulate.RunOptions(adversary))
    np.testing.assert_array_equal(arguments.tensors["C"], factor * a[:, : K * trips] @ b[: K * trips])


def _stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """As an argument of this type; a bfloat16 as its bits."""
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values.astype(dtype)


def steady(build: Build) -> warp.Loop:
    body = next(role.body for role in build.program.roles if role.name in ("consumer", "all"))
    (loop,) = (op for op in warp.walk_operations(body) if isinstance(op, warp.Loop) and op.part == "steady")
    return loop


@pytest.mark.parametrize("trips", range(DEPTH + 2))
@pytest.mark.parametrize("form", FORMS)
def test_trip_counts_known_at_launch(form: str, trips: int) -> None:
    runs(made(**FORMS[form]), trips, factor=FORMS[form].get("factor", 1))


@pytest.mark.parametrize("trips", [0, 1, DEPTH + 1])
def test_trip_counts_known_at_compile_time(trips: int) -> None:
    runs(made(trips=trips), trips)


@pytest.mark.parametrize("adversary", [1, 2])
@pytest.mark.parametrize("form", ["two stages", "scaled"])
def test_what_is_slow_changes_nothing(form: str, adversary: int) -> None:
    """Products that read their registers late, for one."""
    runs(made(**FORMS[form]), DEPTH + 1, adversary, FORMS[form].get("factor", 1))


@pytest.mark.parametrize("form", FORMS)
def test_a_product_runs_while_the_first_fragment_of_the_next_iteration_is_loaded(form: str) -> None:
    """No wait of the loop is for all of them, and the assembler carries that out as it stands."""
    build = made(**FORMS[form])
    body = steady(build).body
    (tile,) = (at for at, op in enumerate(body) if isinstance(op, warp.RingWait))
    assert isinstance(body[0], warp.Wgmma)
    assert {op.pending for op in body if isinstance(op, warp.WgmmaWait)} == {1}
    after = [type(op) for op in body[tile + 1 :]][:2]
    assert after == [warp.WgmmaWait, warp.LoadMatrix if FORMS[form].get("dtype_a") is None else warp.Elementwise]
    assert not {w.code for w in build.warnings} & {"wgmma-serialised", "inserted-wait", "register-spill"}


def test_without_stages_each_product_is_waited_for() -> None:
    body = steady(made(a_stages=1)).body
    assert {op.pending for op in warp.walk_operations(body) if isinstance(op, warp.WgmmaWait)} == {0}


@cache
def unpacking(target: str = "sm_90a", **defines: Value) -> Build:
    return built(HERE / "unpacked_stages.tl", target, **defines)[1]


@pytest.mark.parametrize(("target", "trips"), [("sm_80", 3), *(("sm_90a", n) for n in (0, 1, 2, 5))])
@pytest.mark.parametrize("stages", [2, 4])
def test_what_is_unpacked_of_a_fragment_with_stages(target: str, trips: int, stages: int) -> None:
    build = unpacking(target, stages=stages, **({"BN": 64} if target == "sm_80" else {}))
    generator = np.random.default_rng(trips)
    columns = build.kernel.params[1].shape[1]
    a = generator.integers(0, 16, (M, K * MOST)).astype(np.uint8)
    b = generator.integers(-4, 5, (K * MOST, columns)).astype(np.float16)
    given = {"A": a[:, ::2] | a[:, 1::2] << 4, "B": b, "C": np.full((M, columns), np.nan, np.float32)}
    arguments = KernelArguments(given, {"n": trips})
    emulate.emulate_build(build, arguments, options=emulate.RunOptions(trips))
    wanted = a[:, : K * trips].astype(np.float32) @ b[: K * trips].astype(np.float32)
    np.testing.assert_array_equal(arguments.tensors["C"], wanted)


@pytest.mark.parametrize("stages", [2, 4])
def test_what_is_unpacked_has_stages_too(stages: int) -> None:
    """It is unpacked while the product before it runs, which is waited for nowhere else."""
    build = unpacking(stages=stages)
    body = steady(build).body
    assert isinstance(body[0], warp.Wgmma)
    products = [op.a.buffer.name for op in body if isinstance(op, warp.Wgmma)]
    assert sorted(products) == sorted(f"A_reg.stage{step % stages}" for step in range(4))
    assert min(op.pending for op in body if isinstance(op, warp.WgmmaWait)) >= 1
    assert not {w.code for w in build.warnings} & {"wgmma-serialised", "inserted-wait", "register-spill"}
