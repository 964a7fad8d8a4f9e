"""T.gemm on tiles made by T.alloc_tmem in kernels that tilec orders, in every type, equals the reference."""

from __future__ import annotations

import re

import pytest
from harness import HERE, agrees, built
from test_adversary import compute
from test_tensor_gemm import check, goes_by_tcgen05

from tilec.driver.build import Build, Observer, build_kernel
from tilec.emu import Fault
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNELS, GEMM = HERE / "tensor_sums.tl", HERE / "tensor_gemm.tl"
TARGET = "sm_100a"
KINDS = {
    "float16": ("float16", "float32", "f16", 64),
    "bfloat16": ("bfloat16", "float32", "f16", 64),
    "float32": ("float32", "float32", "tf32", 32),
    "float8_e4m3fn": ("float8_e4m3fn", "float32", "f8f6f4", 128),
    "float8_e5m2": ("float8_e5m2", "float32", "f8f6f4", 64),
    "int8": ("int8", "int32", "i8", 128),
}


@pytest.mark.parametrize("path", [KERNELS, GEMM], ids=["asked for", "by itself"])
@pytest.mark.parametrize("dtype", KINDS)
def test_every_type(dtype: str, path: str) -> None:
    """Of a sum that the kernel puts in tensor memory, and of one that tilec does."""
    other, accumulator, kind, depth = KINDS[dtype]
    out = {"out": accumulator} if path == GEMM else {}
    sizes = {"K": 3 * depth, "bK": depth, "dtype": dtype, "other": other, "accumulator": accumulator, **out}
    made = agrees(path, TARGET, entry="gemm", **sizes)
    goes_by_tcgen05(made)
    assert set(re.findall(r"tcgen05\.mma\.cta_group::1\.kind::(\w+)", made.ptx)) == {kind}
    check(made, adversary=1)


@pytest.mark.parametrize("trip_count", [1, 2, 3, 5])
@pytest.mark.parametrize(("rows", "columns", "threads"), [(64, 32, 128), (128, 128, 256), (256, 64, 256)])
def test_shapes(trip_count: int, rows: int, columns: int, threads: int) -> None:
    _, made = built(
        KERNELS, TARGET, entry="gemm", M=2 * rows, N=columns, K=64 * trip_count, bM=rows, bN=columns, threads=threads
    )
    goes_by_tcgen05(made)
    for adversary in (1, 2):
        check(made, adversary)


@pytest.mark.parametrize("trip_count", [0, 1, 2, 4])
def test_two_sums(trip_count: int) -> None:
    """Of no iteration at all, too."""
    _, made = built(KERNELS, TARGET, entry="two_sums")
    goes_by_tcgen05(made)
    for adversary in (1, 2):
        check(made, adversary, {"k": 64 * trip_count})


def test_a_kernel_that_waits_itself() -> None:
    _, made = built(KERNELS, TARGET, entry="waiting")
    goes_by_tcgen05(made)
    for adversary in (1, 2):
        check(made, adversary)


def test_a_sum_is_loaded_where_it_is_used() -> None:
    """The fragment that it is copied to is no second one."""
    _, made = built(KERNELS, TARGET, entry="gemm")
    assert [b.name for b, _ in made.program.fragments] == ["C_l"]
    assert [t.buffer.name for t in made.program.tensor] == ["C_l.tmem"]


@pytest.mark.parametrize("pattern", [r"tcgen05\.commit", r"tcgen05\.wait::ld", r"mbarrier\.try_wait", r"tcgen05\.mma"])
def test_each_piece_is_needed(pattern: str) -> None:
    _, made = built(KERNELS, TARGET, entry="gemm", M=128, N=64, K=320)
    lines = made.ptx.split("\n")
    places = [i for i, line in enumerate(lines) if re.search(pattern, line)]
    assert places
    for place in places:
        assert _is_faulty(made, "\n".join([*lines[:place], *lines[place + 1 :]])), lines[place]


def _is_faulty(made: Build, ptx: str) -> bool:
    try:
        return not all(compute(made, ptx, adversary) for adversary in (None, 1, 2))
    except Fault:
        return True


def test_the_second_product_of_an_iteration_keeps_the_first() -> None:
    """Only what touches a sum first clears it."""
    text = KERNELS.read_text(encoding="utf-8")
    again = "            T.gemm(A_s, B_s, C_t, transpose_B=True)\n        T.copy(C_t, C_l)\n"
    text = text.replace("        T.copy(C_t, C_l)\n", again, 1)
    made = build_kernel(SourceFile("k.tl", text), CompileOptions(target=TARGET, entry="gemm"), Observer())
    goes_by_tcgen05(made)
    check(made, adversary=1)
