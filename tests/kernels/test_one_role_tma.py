"""Kernels without a producer warp whose loops load by TMA: one thread begins the copies, all wait for them."""

from __future__ import annotations

import json
import re
from functools import cache

import numpy as np
import pytest
from harness import SAMPLES

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir import warp
from tilec.support.options import CompileOptions, Strategy, Value
from tilec.support.source import SourceFile

ALONE: tuple[Strategy, ...] = ("none", "unspecialize")
TILES = {"block_M": 128, "block_N": 64, "block_K": 32}


def gemm(strategy: Strategy, trip_count: int, *, tma_loads: bool = True, **constants: Value) -> Build:
    path = SAMPLES / "gemm.tl"
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    defines = {"M": 256, "N": 64, "K": 32 * trip_count, "num_stages": 3, **TILES, **constants}
    asked = CompileOptions(defines=tuple(defines.items()), pipeline_strategy=strategy, tma_loads=tma_loads)
    return build_kernel(source, asked, Observer())


def agrees(made: Build, adversary: int | None) -> bool:
    found = emulate.draw_arguments(made.kernel, made.manifest, seed=1)
    expected = found.copy()
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=adversary))
    emulate.run_reference(made.kernel, expected)
    return all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize("strategy", ALONE)
def test_one_thread_begins_the_copies(strategy: Strategy) -> None:
    made = gemm(strategy, 8)
    (role,) = made.program.roles
    (loop,) = (op for op in role.body if isinstance(op, warp.Loop))
    kinds = {type(op) for op in warp.walk_operations(loop.body)}
    assert {warp.TmaLoad, warp.RingAcquire, warp.RingWait, warp.RingRelease, warp.Wgmma} <= kinds
    assert not kinds & {warp.CpAsync, warp.BarSync}
    assert "cp.async.bulk.tensor.2d.shared" in made.ptx and not re.search(r"cp\.async\.c[ag]", made.ptx)
    said = {d["what"]: d["chosen"] for d in json.loads(made.trace)["tilec"]["decisions"]}
    assert said["programmatic dependent launch"] == "yes" and made.program.begins_early  # it has barriers to make ready


def test_a_product_stays_in_flight() -> None:
    """The version of the product before is given back while this one runs, as in a role of its own."""
    made = gemm("unspecialize", 16, block_N=128, N=128, block_K=64, K=1024, num_stages=4)
    (role,) = made.program.roles
    loop = next(op for op in warp.walk_operations(role.body) if isinstance(op, warp.Loop))
    waits = [op.pending for op in warp.walk_operations(loop.body) if isinstance(op, warp.WgmmaWait)]
    assert waits == [1]


@pytest.mark.parametrize("strategy", ALONE)
@pytest.mark.parametrize("trip_count", range(1, 8))
def test_every_trip_count(strategy: Strategy, trip_count: int) -> None:
    made = gemm(strategy, trip_count)
    assert max(ring.depth for ring in made.program.rings) < 7
    for adversary in (None, 1, 2):
        assert agrees(made, adversary)


AT_RUN_TIME = """import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((256, 512), "float16"), B: T.Tensor((512, 64), "float16"), n: T.int32, m: T.int32,
      C: T.Tensor((256, 64), "float32")):
    with T.Kernel(2, threads=256) as bx:
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        T.clear(c)
        for again in T.serial(m):
            for ko in T.Pipelined(n, num_stages=3):
                T.copy(A[bx * 128, ko * 64], a)
                T.copy(B[ko * 64, 0], b)
                T.gemm(a, b, c)
        T.copy(c, C[bx * 128, 0])
"""


@cache
def at_run_time(strategy: Strategy) -> Build:
    made = build_kernel(SourceFile("k.tl", AT_RUN_TIME), CompileOptions(pipeline_strategy=strategy), Observer())
    assert "cp.async.bulk.tensor.2d.shared" in made.ptx and len(made.program.roles) == 1
    return made


@pytest.mark.parametrize("strategy", ALONE)
@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("trip_count", range(8))
def test_iterations_known_at_run_time(strategy: Strategy, trip_count: int, again: int) -> None:
    """None too; and where the loop is run twice, its versions go on where they were."""
    made = at_run_time(strategy)
    random = np.random.default_rng(trip_count)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((256, 512), (512, 64)))
    expected = again * a[:, : 64 * trip_count].astype(np.float32) @ b[: 64 * trip_count].astype(np.float32)
    for adversary in (None, 1):
        arguments = emulate.KernelArguments(
            {"A": a, "B": b, "C": np.full((256, 64), np.nan, np.float32)}, {"n": trip_count, "m": again}
        )
        emulate.emulate_build(made, arguments, options=emulate.RunOptions(adversary=adversary))
        np.testing.assert_allclose(arguments.tensors["C"], expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("strategy", ALONE)
def test_the_switch(strategy: Strategy) -> None:
    made = gemm(strategy, 3, tma_loads=False)
    assert '"by all threads"' in made.trace and '"by TMA"' in gemm(strategy, 3).trace
    assert re.search(r"cp\.async\.cg", made.ptx) and not any(ring.has_barriers for ring in made.program.rings)
    assert agrees(made, 1)


@pytest.mark.parametrize("strategy", ALONE)
@pytest.mark.parametrize(("ordered", "by_tma"), [(False, True), (True, False)])
def test_loops_that_fill_the_same_tiles_agree(strategy: Strategy, ordered: bool, by_tma: bool) -> None:
    """What the kernel itself has written is not read by TMA; then neither loop's tile is filled by it."""
    source = SourceFile("k.tl", TWICE.format(source="C" if ordered else "A"))
    made = build_kernel(source, CompileOptions(pipeline_strategy=strategy), Observer())
    assert ("cp.async.bulk.tensor.2d.shared" in made.ptx) == by_tma
    for adversary in (None, 1):
        assert agrees(made, adversary)


TWICE = """import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((64, 256), "float16"), B: T.Tensor((256, 64), "float16"), C: T.Tensor((64, 256), "float16"),
      D: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for ko in T.Pipelined(3, num_stages=2):
            T.copy(A[0, ko * 64], a)
            T.copy(B[ko * 64, 0], b)
            T.gemm(a, b, c)
        for i, j in T.Parallel(64, 256):
            C[i, j] = T.cast(i - j, "float16") * T.cast(0.01, "float16")
        for ko in T.Pipelined(4, num_stages=2):
            T.copy({source}[0, ko * 64], a)
            T.copy(B[ko * 64, 0], b)
            T.gemm(a, b, c)
        T.copy(c, D)
"""
