"""Rows that an epilogue reads, which the producer warp loads ahead: right, and without a barrier of the whole block."""

from __future__ import annotations

import pytest
from harness import HERE, SAMPLES, built

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

KERNEL = HERE / "staged_store.tl"
SMALL: dict[str, Value] = {"M": 128, "N": 256, "K": 256}


def check(made: Build, adversary: int | None) -> Build:
    assert list(program_violations(made.program)) == []
    found = emulate.draw_arguments(made.kernel, made.manifest, seed=1)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=adversary))
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))
    return made


def ring(made: Build, tile: str) -> warp.Ring | None:
    return next((r for r in made.program.rings if r.buffers == (tile,)), None)


@pytest.mark.parametrize("adversary", [None, 1, 2])
@pytest.mark.parametrize("n", [512, 440])
@pytest.mark.parametrize("epilogue", ["row", "row behind"])
def test_equals_the_reference(epilogue: str, n: int, adversary: int | None) -> None:
    """Two tiles in each block, the last one hanging over; the row stands before the loop or behind it."""
    made = check(built(KERNEL, "sm_90a", epilogue=epilogue, N=n)[1], adversary)
    row = ring(made, "row")
    assert row is not None and row.depth == 2
    consumer, producer = (list(warp.walk_operations(role.body)) for role in made.program.roles)
    assert not any(isinstance(op, warp.BarSync | warp.CpAsync) for op in consumer)
    assert sum(isinstance(op, warp.TmaLoad) and op.destination.name == "row" for op in producer) == 1
    released = [at for at, op in enumerate(consumer) if isinstance(op, warp.RingRelease) and op.cursor.ring == "row"]
    swept = [at for at, op in enumerate(consumer) if isinstance(op, warp.Elementwise)]
    assert len(released) == 1 and released[0] == max(swept) + 1  # behind the last of those that read it


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("gemm_bias_relu", "bias_shared"),
        ("gemm/bias_gelu", "bias_shared"),
        ("gemm/fp8_row_scaled", "columns"),
        ("gemm/int8", "factor_shared"),
    ],
)
def test_samples_finish_without_meeting(name: str, tile: str) -> None:
    made = check(built(SAMPLES / f"{name}.tl", "sm_90a", **SMALL)[1], 1)
    assert ring(made, tile) is not None
    consumer = list(warp.walk_operations(made.program.roles[0].body))
    assert not any(isinstance(op, warp.BarSync) for op in consumer)
    assert any(isinstance(op, warp.WarpgroupSync) for op in consumer)


@pytest.mark.weekly
@pytest.mark.parametrize("adversary", [None, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_of_attention(causal: bool, adversary: int | None) -> None:
    """What every iteration of a loop reads: waited for once, in front of the loop, and given back behind it."""
    small: dict[str, Value] = {"batch": 1, "D": 64, "heads": 2, "S": 200, "keys": 300, "causal": causal}
    made = check(built(SAMPLES / "flash_attention.tl", "sm_90a", **small)[1], adversary)
    assert ring(made, "Q_shared") is not None
    assert "cp.async.ca" not in made.ptx and "cp.async.cg" not in made.ptx
    for role in made.program.roles:
        waits = [
            op
            for op in warp.walk_operations(role.body)
            if isinstance(op, warp.RingWait) and op.cursor.ring == "Q_shared"
        ]
        assert len(waits) == (role.name != "producer")


@pytest.mark.parametrize(("defines", "depth"), [({}, 2), ({"num_stages": 3}, None), ({"heads": 1, "batch": 1}, 1)])
def test_versions_of_queries(defines: dict[str, Value], depth: int | None) -> None:
    """Two in a persistent grid, one of the next block; none beside three versions of keys and values of 64 KiB."""
    _, made = built(SAMPLES / "flash_attention.tl", "sm_90a", **defines)
    queries = ring(made, "Q_shared")
    assert (None if queries is None else queries.depth) == depth


EPILOGUE = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((64, 256), "float16"), B: T.Tensor((64, 256), "float16"), bias: T.Tensor((64,), "float32"),
           where: T.Tensor((4,), "int32"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        A_s = T.alloc_shared((64, 64), "float16")
        B_s = T.alloc_shared((64, 64), "float16")
        row = T.alloc_shared((64,), "float32")
        C_l = T.alloc_fragment((64, 64), "float32")
        T.clear(C_l)
        {before}
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * 64], A_s)
            T.copy(B[0, k * 64], B_s)
            T.gemm(A_s, B_s, C_l, transpose_B=True)
        {behind}
        T.copy(C_l, C)
"""
ADD = "for i, j in T.Parallel(64, 64):\n            C_l[i, j] += row[j]"


@pytest.mark.parametrize(
    ("before", "behind", "is_prefetched"),
    [
        ("T.copy(bias, row)", ADD, True),
        ("", f"T.copy(bias, row)\n        {ADD}", True),
        ("T.copy(bias, row)", f"for i in T.Parallel(64):\n            row[i] += 1.0\n        {ADD}", False),
        (f"T.copy(bias, row)\n        {ADD}", "", False),  # read before the loop: there is nothing to run ahead of
        (f"T.copy(bias, row)\n        {ADD}", ADD, False),
        ("T.copy(bias, row, disable_tma=True)", ADD, False),
        ("T.copy(bias[where[0]], row)", ADD, False),  # the producer would have to read it
    ],
)
def test_which_copies_are_the_producers(before: str, behind: str, is_prefetched: bool) -> None:
    source = SourceFile("k.tl", EPILOGUE.format(before=before, behind=behind))
    made = build_kernel(source, CompileOptions(target="sm_90a"), Observer())
    assert (ring(made, "row") is not None) == is_prefetched
    if "where" not in before:
        check(made, 1)


LEFT = """for t in T.serial(3):
            T.copy(bias, row)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * 64], A_s)
                T.copy(B[0, k * 64], B_s)
                T.gemm(A_s, B_s, C_l, transpose_B=True)
            if t == 1:
                {leave}
            for i, j in T.Parallel(64, 64):
                C_l[i, j] += row[j]"""


@pytest.mark.parametrize(("leave", "is_prefetched"), [("break", False), ("continue", True)])
def test_a_tile_that_is_not_always_given_back_is_not_fetched(leave: str, is_prefetched: bool) -> None:
    source = SourceFile("k.tl", EPILOGUE.format(before="", behind=LEFT.format(leave=leave)))
    made = build_kernel(source, CompileOptions(target="sm_90a"), Observer())
    assert (ring(made, "row") is not None) == is_prefetched
    check(made, 1)


def test_blocks_of_a_cluster_fetch_each_for_themselves() -> None:
    source = SourceFile("k.tl", (SAMPLES / "gemm_bias_relu.tl").read_text(encoding="utf-8"))
    defines = (("M", 256), ("N", 256), ("K", 256))
    made = build_kernel(source, CompileOptions(target="sm_90a", cluster=(1, 2, 1), defines=defines), Observer())
    bias = ring(made, "bias_shared")
    assert bias is not None and bias.shared == ()
    check(made, 1)
