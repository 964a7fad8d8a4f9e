"""Tiles of one dimension in a pipelined loop: TMA loads them too, so that a producer warp can feed the whole loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import agrees

from tilec.driver.build import Build
from tilec.ir import warp

KERNEL = """
import tilelang.language as T

K, block, parts, first = 200, 64, 1, 0


@T.prim_func
def weighted(
    A: T.Tensor((64, K), "float16"),
    B: T.Tensor((64, K), "float16"),
    w: T.Tensor({tensor}, "float32"),
    C: T.Tensor((64, 64), "float32"),
):
    with T.Kernel(1, threads=128) as bx:
        A_shared = T.alloc_shared((64, block), "float16")
        B_shared = T.alloc_shared((64, block), "float16")
        w_shared = T.alloc_shared((block // parts,), "float32")
        C_local = T.alloc_fragment((64, 64), "float32")
        product = T.alloc_fragment((64, 64), "float32")
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block), num_stages=2):
            T.copy(A[0, k * block], A_shared)
            T.copy(B[0, k * block], B_shared)
            T.copy(w[{row}k * block // parts + first], w_shared)
            T.gemm(A_shared, B_shared, product, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                C_local[i, j] += product[i, j] * w_shared[j % (block // parts)]
        T.copy(C_local, C)
"""
ALONE, FIRST_ROW, ODD_ROW = ("(K,)", ""), ("(2, K)", "1, "), ("(2, K - 1)", "1, ")


def written(folder: Path, tensor: str, row: str) -> Path:
    path = folder / "weighted.tl"
    path.write_text(KERNEL.format(tensor=tensor, row=row))
    return path


def by_tma(made: Build) -> set[str]:
    operations = (op for role in made.program.roles for op in warp.walk_operations(role.body))
    return {op.destination.name for op in operations if isinstance(op, warp.TmaLoad)}


@pytest.mark.parametrize("tensor", [ALONE, FIRST_ROW], ids=["alone", "a row"])
@pytest.mark.parametrize("first", [0, 4])
def test_a_producer_loads_them(tensor: tuple[str, str], first: int, tmp_path: Path) -> None:
    """Wherever they begin, and beyond the end of the tensor too."""
    made = agrees(written(tmp_path, *tensor), "sm_90a", first=first)
    assert by_tma(made) == {"A_shared", "B_shared", "w_shared"}
    assert [role.name for role in made.program.roles] == ["consumer", "producer"]


def test_where_tma_cannot_begin_threads_do(tmp_path: Path) -> None:
    """Three elements of four bytes are no multiple of 16."""
    assert by_tma(agrees(written(tmp_path, *ALONE), "sm_90a", first=3)) == set()


@pytest.mark.parametrize(
    ("tensor", "parts"), [(ODD_ROW, 1), (ALONE, 32)], ids=["rows of no 16 bytes", "a tile of no 16 bytes"]
)
def test_what_tma_cannot_load_threads_do(tensor: tuple[str, str], parts: int, tmp_path: Path) -> None:
    assert by_tma(agrees(written(tmp_path, *tensor), "sm_90a", parts=parts)) == set()
