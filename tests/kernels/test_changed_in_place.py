"""Tiles of a pipelined loop that threads change in place between or behind the products that read them: right, on the
machine with tensor memory by tcgen05, whoever is early or late."""

from __future__ import annotations

from typing import Any

import pytest

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.support.options import CompileOptions, Scheduler
from tilec.support.source import SourceFile

TARGET = "sm_100a"

SCALE_A = "for i, j in T.Parallel(M, bK): A_s[i, j] = A_s[i, j] * {type}(2)"
SHIFT_A = "for i, j in T.Parallel(M, bK): A_s[i, j] = A_s[i, j] + {type}(1)"
SOME_OF_A = "for i, j in T.Parallel(M // 2, bK): A_s[i + M // 2, j] = A_s[i, j] + {type}(1)"
SCALE_B = "for i, j in T.Parallel(N, bK): B_s[i, j] = B_s[i, j] + B_s[i, j]"
THROUGH_REGISTERS = """T.copy(A_s, A_l)
            for i, j in T.Parallel(M, bK): A_l[i, j] = A_l[i, j] - {type}(1)
            T.copy(A_l, A_s)"""
PRODUCT = "T.gemm(A_s, B_s, C_l, transpose_B=True)"


def text(*steps: str, dtype: str = "float16", total: str = "float32", trips: str = "ko in T.Pipelined(K // bK") -> str:
    body = "\n            ".join(step.format(type=f"T.{dtype}") for step in steps)
    return f"""
import tilelang.language as T

M, N, K, bK, num_stages, threads = 64, 32, 128, 32, 2, 128

@T.prim_func
def kernel(A: T.Tensor((M, K), "{dtype}"), B: T.Tensor((N, K), "{dtype}"), C: T.Tensor((M, N), "{total}")):
    with T.Kernel(1, threads=threads) as bx:
        A_s = T.alloc_shared((M, bK), "{dtype}")
        B_s = T.alloc_shared((N, bK), "{dtype}")
        A_l = T.alloc_fragment((M, bK), "{dtype}")
        C_l = T.alloc_fragment((M, N), "{total}")
        T.clear(C_l)
        for {trips}, num_stages=num_stages):
            T.copy(A[0, ko * bK], A_s)
            T.copy(B[0, ko * bK], B_s)
            {body}
        T.copy(C_l, C)
"""


def compiled(source: str, target: str = TARGET, **sizes: int) -> Build:
    options = CompileOptions(target=target, defines=tuple(sizes.items()))
    return build_kernel(SourceFile("changed.tl", source), options, Observer())


def is_right(made: Build, *adversaries: int | None, sizes: dict[str, int] | None = None) -> None:
    for adversary in adversaries:
        found = emulate.draw_arguments(made.kernel, made.manifest, 1, sizes)
        expected = found.copy()
        emulate.emulate_build(made, found, options=RunOptions(adversary=adversary))
        emulate.run_reference(made.kernel, expected)
        for result in emulate.compare_arguments(made.kernel, made.manifest, found, expected):
            assert result.matches, (adversary, result)


BODIES: dict[str, tuple[str, ...]] = {
    "before": (SCALE_A, PRODUCT),
    "behind": (PRODUCT, SCALE_A),
    "before and behind": (SCALE_A, PRODUCT, SHIFT_A),
    "between two": (PRODUCT, SHIFT_A, PRODUCT),
    "between three": (SCALE_A, PRODUCT, SHIFT_A, PRODUCT, SCALE_A, PRODUCT),
    "the other factor": (SCALE_B, PRODUCT),
    "both": (SCALE_B, SCALE_A, PRODUCT),
    "both in turns": (SCALE_A, PRODUCT, SCALE_B, PRODUCT, SHIFT_A, SCALE_B),
    "through registers": (THROUGH_REGISTERS, PRODUCT, THROUGH_REGISTERS, PRODUCT),
    "a part": (PRODUCT, SOME_OF_A, PRODUCT),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_loaded_tile_is_changed(body: str) -> None:
    made = compiled(text(*BODIES[body]))
    assert "tcgen05.mma" in made.ptx and "mma.sync" not in made.ptx
    is_right(made, None, 1, 2)


@pytest.mark.parametrize("trips", range(1, 7))
@pytest.mark.parametrize("stages", [1, 3])
def test_iterations(trips: int, stages: int) -> None:
    """One to two more than there are versions."""
    is_right(compiled(text(*BODIES["between three"]), K=32 * trips, num_stages=stages), None, 1)


@pytest.mark.parametrize("body", ["before and behind", "both in turns"])
def test_iterations_at_run_time(body: str) -> None:
    source = text(*BODIES[body])
    for fixed, dynamic in {
        "M, N, K, bK": "M, N, bK", "32, 128, 32, 2": "32, 32, 2", "@T.prim_func": 'K = T.dynamic("k")\n\n@T.prim_func',
        "(M, K)": "(K, M)", "(N, K)": "(K, N)", "(M, bK)": "(bK, M)", "(N, bK)": "(bK, N)",
        "[0, ko * bK]": "[ko * bK, 0]", "transpose_B": "transpose_A",
    }.items():  # fmt: skip
        assert fixed in source
        source = source.replace(fixed, dynamic)
    made = compiled(source, num_stages=3)
    assert "tcgen05.mma" in made.ptx
    for trips in range(6):
        is_right(made, 1, sizes={"k": 32 * trips})


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("dtype", "total", "depth"),
    [("bfloat16", "float32", 64), ("float32", "float32", 32), ("int8", "int32", 64), ("float16", "float16", 128)],
)
def test_types(dtype: str, total: str, depth: int) -> None:
    made = compiled(text(*BODIES["both in turns"], dtype=dtype, total=total), bK=depth, K=3 * depth)
    assert "tcgen05.mma" in made.ptx
    is_right(made, None, 1)


@pytest.mark.parametrize(("rows", "threads"), [(64, 256), (128, 128), (128, 256), (256, 256)])
def test_block_sizes(rows: int, threads: int) -> None:
    made = compiled(text(*BODIES["between three"]), M=rows, threads=threads)
    is_right(made, None, 1)


COMPUTED = """
import tilelang.language as T

M, N, K, num_stages = 64, 32, 128, 3

@T.prim_func
def kernel(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(1, threads=128) as bx:
        A_s = T.alloc_shared((M, 32), "float16")
        X_s = T.alloc_shared((M, 32), "float16")
        B_s = T.alloc_shared((N, 32), "float16")
        C_l = T.alloc_fragment((M, N), "float32")
        T.clear(C_l)
        for ko in T.Pipelined(K // 32, num_stages=num_stages):
            T.copy(A[0, ko * 32], A_s)
            T.copy(B[0, ko * 32], B_s)
            for i, j in T.Parallel(M, 32):
                X_s[i, j] = A_s[i, j] - T.float16(1)
            T.gemm(X_s, B_s, C_l, transpose_B=True)
            for i, j in T.Parallel(M, 32):
                X_s[i, j] = {second}
            T.gemm(X_s, B_s, C_l, transpose_B=True)
            {more}
        T.copy(C_l, C)
"""


@pytest.mark.parametrize("trips", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("second", "more"),
    [
        ("A_s[i, j] * T.float16(3)", "pass"),
        ("X_s[i, j] + A_s[i, j]", "pass"),
        ("X_s[i, j] * X_s[i, j]", "for i, j in T.Parallel(M, 32): X_s[i, j] = X_s[i, j] + T.float16(1)"),
    ],
)
def test_a_computed_tile_is_changed(second: str, more: str, trips: int) -> None:
    made = compiled(COMPUTED.format(second=second, more=more), K=32 * trips)
    assert "tcgen05.mma" in made.ptx
    is_right(made, None, 1)


@pytest.mark.parametrize("outer", ["T.serial(3)", "T.Pipelined(3, num_stages=1)"])
def test_a_loop_that_is_run_again(outer: str) -> None:
    """Rings and links go on where the run before has left them."""
    source = text(*BODIES["between three"])
    head, _, rest = source.partition("        T.clear(C_l)\n")
    loop = "        T.clear(C_l)\n" + rest
    again = "\n".join("    " + line if line.strip() else line for line in loop.splitlines())
    again = again.replace("T.copy(C_l, C)", "T.copy(C_l, C[o * M, 0])")
    source = f"{head}        for o in {outer}:\n{again}\n".replace("C: T.Tensor((M, N)", "C: T.Tensor((3 * M, N)")
    is_right(compiled(source), None, 1)


def test_two_loops_with_the_same_tiles() -> None:
    source = text(*BODIES["between two"])
    head, _, rest = source.partition("        T.clear(C_l)\n")
    loop, _, store = rest.partition("        T.copy(C_l, C)")
    other = loop.replace("T.float16(1)", "T.float16(3)")
    clear = "        T.clear(C_l)\n"
    both = (
        head + clear + loop + "        T.copy(C_l, C[0, 0])\n" + clear + other + "        T.copy(C_l, C[M, 0])" + store
    )
    is_right(compiled(both.replace("C: T.Tensor((M, N)", "C: T.Tensor((2 * M, N)"), K=160), None, 1)


@pytest.mark.weekly
@pytest.mark.parametrize("condition", ["ko > 1", "bx + ko < 2"])
def test_under_a_condition(condition: str) -> None:
    source = text(f"if {condition}:\n                {SHIFT_A}", PRODUCT)
    is_right(compiled(source, K=160), None, 1)


@pytest.mark.parametrize("body", ["before and behind", "both", "between three"])
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("strategy", ["auto", "warp-specialize"])
def test_by_wgmma(body: str, rows: int, strategy: Any) -> None:
    """One role changes the tiles and multiplies, with one warpgroup or two that share B."""
    options = CompileOptions(target="sm_90a", defines=(("M", rows), ("threads", 2 * rows)), pipeline_strategy=strategy)
    made = build_kernel(SourceFile("changed.tl", text(*BODIES[body])), options, Observer())
    assert "wgmma.mma_async" in made.ptx
    is_right(made, None, 1)


READ_AND_HANDED_ON = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((128, 320), "float8_e4m3fn"), B: T.Tensor((32, 320), "float8_e4m3fn"),
           C: T.Tensor((128, 32), "float32")):
    with T.Kernel(1, threads=256):
        A_s = T.alloc_shared((128, 64), "float8_e4m3fn")
        B_s = T.alloc_shared((32, 64), "float8_e4m3fn")
        A_l = T.alloc_fragment((128, 64), "float8_e4m3fn")
        C_l = T.alloc_fragment((128, 32), "float32")
        T.clear(C_l)
        for ko in T.Pipelined(5, num_stages=4):
            for i, j in T.Parallel(128, 64):
                A_s[i, j] = A[i, ko * 64 + j]
            T.copy(B[0, ko * 64], B_s)
            for i, j in T.Parallel(128, 64):
                A_s[i, j] = A_s[i, j] + A_s[i, j]
            for i, j in T.Parallel(32, 64):
                B_s[i, j] = B_s[i, j] + T.float8_e4m3fn(1)
            T.copy(A_s, A_l)
            for i, j in T.Parallel(128, 64):
                A_l[i, j] = A_l[i, j] * T.float8_e4m3fn(2)
            T.gemm(A_s, B_s, C_l, transpose_B=True)
        T.copy(C_l, C)
"""


@pytest.mark.parametrize("scheduler", ["heuristic", "exact"])
def test_a_product_waits_for_what_its_tile_is_read_for_before_it_is_handed_on(scheduler: Scheduler) -> None:
    """Both only read A_s, and the role that fills it hands it on when it has read it: the product's iteration must not
    be thought to end before that, or B_s has a version too few, and each role waits for the next one."""
    options = CompileOptions(target=TARGET, scheduler=scheduler, pipeline_strategy="warp-specialize")
    made = build_kernel(SourceFile("read.tl", READ_AND_HANDED_ON), options, Observer())
    assert "tcgen05.mma" in made.ptx
    is_right(made, None, 1, 2)
