"""Clusters: tiles that blocks load together are right for any trip count, on hostile machines too, and each barrier
that makes them so is noticed when it is taken away."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from harness import HERE, SAMPLES

from tilec.driver.build import Build, Observer, build_kernel, plan_kernel
from tilec.driver.emulation import emulate
from tilec.emu import Fault, launch
from tilec.ir.warp import TmaLoad
from tilec.ir.warp_text import show_program
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

GEMM = SAMPLES / "gemm" / "cluster.tl"
STEPS = HERE / "cluster_gemm.tl"
SMALL: dict[str, Value] = {"M": 256, "N": 256, "block_M": 128, "block_N": 128, "dtype": "float16", "num_stages": 3}


def made(path: Path, *, multicast: bool = True, target: str = "sm_90a", **defines: Value) -> Build:
    source = SourceFile(str(path), path.read_text(encoding="utf-8"))
    options = CompileOptions(target=target, defines=tuple(defines.items()), multicast=multicast)
    return build_kernel(source, options, Observer())


def is_right(built: Build, ptx: str, adversary: int | None = None, steps: int | None = None) -> bool:
    found = emulate.draw_arguments(built.kernel, built.manifest, 0)
    if steps is not None:
        found.scalars["steps"] = steps
    expected = found.copy()
    manifest = built.manifest
    launch(
        ptx,
        manifest.entry,
        manifest.blocks({}),
        manifest.block,
        emulate.build_launch_arguments(manifest, found),
        cluster=manifest.cluster,
        dynamic_smem=manifest.dynamic_smem,
        adversary=adversary,
    )
    emulate.run_reference(built.kernel, expected)
    return all(result.matches for result in emulate.compare_arguments(built.kernel, manifest, found, expected))


@pytest.mark.weekly
@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2)])
def test_any_trip_count(cluster: tuple[int, int]) -> None:
    """None, one, two, and around the depth of the ring."""
    x, y = cluster
    built = made(STEPS, cluster_x=x, cluster_y=y)
    (ring,) = built.program.rings
    assert built.manifest.cluster == (x, y, 1) and ring.shared
    for steps in sorted({0, 1, 2, ring.depth - 1, ring.depth, ring.depth + 1}):
        assert is_right(built, built.ptx, adversary=steps, steps=steps), steps


@pytest.mark.parametrize(
    "pattern",
    [
        r"barrier\.cluster\.arrive",
        r"barrier\.cluster\.wait",
        r"fence\.mbarrier_init",
        r"mbarrier\.arrive\.shared::cluster",
        r"mbarrier\.arrive\.expect_tx",
        r"mapa",
    ],
)
def test_each_barrier_is_needed(pattern: str) -> None:
    built = made(STEPS)
    lines = built.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    assert places
    for place in places:
        mutant = "\n".join([*lines[:place], "", *lines[place + 1 :]])
        with pytest.raises(Fault):
            assert not any(is_right(built, mutant, adversary, steps=5) for adversary in (None, 1, 2, 3))


def test_nobody_leaves_while_others_signal_it() -> None:
    built = made(STEPS)
    assert "drain" in show_program(built.program)
    lines = built.ptx.split("\n")
    (ring,) = built.program.rings
    waits = [n for n, line in enumerate(lines) if "try_wait.parity" in line]
    without = {n + k for n in waits[-ring.depth :] for k in range(2)}
    mutant = "\n".join(line for n, line in enumerate(lines) if n not in without)
    with pytest.raises(Fault):
        for adversary in (None, *range(8)):
            is_right(built, mutant, adversary, steps=5)


def test_the_sample_is_right_and_the_switch_takes_the_sharing_away() -> None:
    for defines in ({"K": 64}, {"K": 320}, {"K": 320, "cluster_x": 2, "cluster_y": 1}):
        built = made(GEMM, **{**SMALL, **defines})
        assert built.warnings == ()
        assert "multicast along" in built.trace
        assert is_right(built, built.ptx, adversary=1)
    alone = made(GEMM, multicast=False, **SMALL, K=320)
    assert "multicast" not in alone.ptx and alone.manifest.cluster == (1, 2, 1)
    assert is_right(alone, alone.ptx)


@pytest.mark.parametrize(("rows", "shared"), [(384, ["x"]), (130, ["x"])])
def test_persistent_blocks_share_too(rows: int, shared: list[str]) -> None:
    """Six tiles in two waves of four blocks: the second has one cluster too many."""
    path = SAMPLES / "gemm" / "persistent.tl"
    built = made(path, M=rows, N=256, K=192, blocks=4, cluster=2, block_N=128)
    (ring,) = built.program.rings
    assert list(ring.shared) == shared
    for adversary in (None, 1, 2):
        assert is_right(built, built.ptx, adversary)


def test_the_command_line_chooses_for_kernels_that_do_not_say() -> None:
    def cluster(path: Path, entry: str | None = None, **options: Any) -> tuple[int, int, int]:
        source = SourceFile(str(path), path.read_text(encoding="utf-8"))
        return build_kernel(source, CompileOptions(entry=entry, **options), Observer()).manifest.cluster

    plain, says, needs = SAMPLES / "gemm.tl", GEMM, HERE / "grid.tl"
    assert cluster(plain) == (1, 1, 1)
    assert cluster(plain, cluster=(2, 2, 1)) == (2, 2, 1)
    assert cluster(says, cluster=(4, 1, 1)) == (1, 2, 1)
    assert cluster(says, cluster=(1, 1, 1)) == (1, 1, 1)
    assert cluster(needs, "neighbours", cluster=(1, 1, 1)) == (4, 1, 1)


@pytest.mark.parametrize(
    ("sample", "defines", "chosen", "why"),
    [
        ("flash_attention", {}, "2x1", "adjacent blocks along x need the same K_shared, V_shared"),
        ("flash_attention", {"causal": True}, "none", "loops keep the L2 cache busy for"),  # no persistent grid
        ("flash_attention", {"causal": True, "D": 256, "block_N": 64}, "none", ""),  # other iterations
        ("flash_attention", {"S": 512}, "none", "loops keep the L2 cache busy for"),  # by 64 blocks
        ("gemm", {}, "none", "loops keep the L2 cache busy for"),
        ("gemm/swiglu", {}, "none", ""),
        ("gemm/bias_gelu", {}, "none", "loops keep the L2 cache busy for"),
        ("models/mamba_chunk_scan", {}, "none", ""),
        ("attention/varlen", {}, "none", ""),
    ],
)
def test_pairs_where_the_cache_is_asked_for_much(sample: str, defines: dict[str, Any], chosen: str, why: str) -> None:
    path = SAMPLES / f"{sample}.tl"
    source = SourceFile(str(path), path.read_text(encoding="utf-8"))
    planned = plan_kernel(source, CompileOptions(defines=tuple(defines.items())), Observer())
    (found,) = (each for each in planned.decisions if each.what == "cluster")
    assert found.chosen == chosen
    assert found.why.startswith(why)


@pytest.mark.weekly
def test_keys_and_values_are_shared_by_blocks_of_queries() -> None:
    path = SAMPLES / "flash_attention.tl"
    source = SourceFile(str(path), path.read_text(encoding="utf-8"))
    defines = (("S", 256), ("heads", 1), ("causal", False))
    built = build_kernel(source, CompileOptions(defines=defines, cluster=(2, 1, 1)), Observer())
    shared = {op.destination.name: op.shared for op in built.program.operations() if isinstance(op, TmaLoad)}
    assert shared == {"K_shared": "x", "V_shared": "x", "Q_shared": ""}
    assert is_right(built, built.ptx, adversary=1)
    causal = build_kernel(
        source, CompileOptions(defines=(*defines[:2], ("causal", True)), cluster=(2, 1, 1)), Observer()
    )
    assert "multicast" not in causal.ptx, "blocks of queries have different numbers of keys"


SHARED = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((8, 128, 512), "float16"), B: T.Tensor((512, 128), "float16"), n: T.int32,
           C: T.Tensor((8, 128, 128), "float32")):
    with T.Kernel(8, threads=128, cluster_dims=2) as bx:
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((64, 128), "float16")
        c = T.alloc_fragment((128, 128), "float32")
        T.clear(c)
        {around}
            for k in T.Pipelined({trips}, num_stages=2):
                T.copy(A[{index}, 0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
        T.copy(c, C[bx, 0, 0])
"""


@pytest.mark.parametrize(
    ("around", "trips", "index", "shared"),
    [
        ("if n > 0:", "8", "bx", ["", "x"]),
        ("if n > 0:", "8", "bx // 2", ["x", "x"]),
        ("if n > 0:", "8", "bx // 4", ["x", "x"]),
        ("if n > 0:", "8", "bx // 3", ["", "x"]),
        ("if n > 0:", "8", "bx % 2", ["", "x"]),
        ("if n > 0:", "8", "(bx + 4) // 2", ["x", "x"]),
        ("if n > 0:", "8", "(bx + 3) // 2", ["", "x"]),
        ("if n > 0:", "n", "bx", ["", "x"]),
        ("if n > 0:", "bx + 1", "0", ["", ""]),
        ("if n > 0:", "bx // 2 + 1", "0", ["x", "x"]),
        ("if bx < 6:", "8", "0", ["x", "x"]),
        ("if bx < 5:", "8", "0", ["", ""]),
        ("if bx >= 2:", "8", "0", ["x", "x"]),
        ("if 3 >= bx:", "8", "0", ["x", "x"]),
        ("if bx > 2:", "8", "0", ["", ""]),
        ("for w in T.serial(2):", "8", "w * 2 + bx // 2 * 0", ["x", "x"]),
        ("for w in T.serial(2):", "8", "(w * 4 + bx) // 4", ["x", "x"]),
        ("for w in T.serial(2):", "8", "(w * 3 + bx) // 4", ["", "x"]),
    ],
)
def test_what_is_shared(around: str, trips: str, index: str, shared: list[str]) -> None:
    """Of the two copies, in a cluster of two along x."""
    text = SHARED.format(around=around, trips=trips, index=index)
    built = build_kernel(SourceFile("shared.tl", text), CompileOptions(), Observer())
    found = {op.destination.name: op.shared for op in built.program.operations() if isinstance(op, TmaLoad)}
    assert [found["a"], found["b"]] == shared


SENDS = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((4, 256), "float16"), B: T.Tensor((4, 256), "float16")):
    with T.ClusterKernel(4, cluster_dims=4, threads=128) as bx:
        mine = T.alloc_shared((1, 256), "float16")
        theirs = T.alloc_shared((1, 256), "float16")
        T.copy(A[bx, 0], mine)
        T.copy_cluster(mine, theirs, dst_block=(T.block_rank_in_cluster() + 1) % 4)
        T.cluster_sync()
        T.copy(theirs, B[bx, 0])
"""


def test_nobody_stores_to_a_block_that_has_not_begun() -> None:
    built = build_kernel(SourceFile("sends.tl", SENDS), CompileOptions(target="sm_90a"), Observer())
    first = built.ptx.index("st.shared::cluster")
    assert built.ptx.index("barrier.cluster.arrive") < built.ptx.index("barrier.cluster.wait") < first
    for adversary in (None, 1, 2, 3):
        assert is_right(built, built.ptx, adversary)


ROW = """
import tilelang.language as T


@T.prim_func
def row(A: T.Tensor((256,), "float16"), C: T.Tensor((256, 128), "float16")):
    with T.Kernel(2, threads=256) as bx:
        s = T.alloc_shared((128,), "float16")
        T.copy(A[bx * 128], s)
        for i, j in T.Parallel(128, 128):
            C[bx * 128 + i, j] = s[j]
"""


def test_a_run_that_several_threads_have_is_copied_once() -> None:
    """A short row, by more threads than it has runs: warps that are apart do not copy it over each other."""
    built = build_kernel(SourceFile("row.tl", ROW), CompileOptions(target="sm_90a", cluster=(2, 1, 1)), Observer())
    (copy,) = [line for line in built.ptx.split("\n") if "cp.async.cg" in line]
    assert copy.strip().startswith("@%p")
    assert is_right(built, built.ptx, adversary=1)
