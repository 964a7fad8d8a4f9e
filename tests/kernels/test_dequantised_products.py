"""Products of float16 and weights of four bits, of few rows: how many instructions of machine code a weight takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from harness import SAMPLES, agrees, built

from tilec.sass.cubin import read_functions
from tilec.sass.loops import find_loops

SIZES = {"M": 16, "N": 128, "K": 1024, "block_M": 16, "block_N": 64, "block_K": 128, "threads": 128, "num_stages": 4}
WEIGHTS = 64
"""Of a thread in an iteration."""


def count_loop(sample: str) -> Counter[str]:
    """The instructions of the loop that multiplies, by their names."""
    _, made = built(SAMPLES / f"gemm/{sample}.tl", "sm_90a", **SIZES)
    loops = [loop for function in read_functions(made.cubin) for loop in find_loops(function)]
    counts = [Counter(each.name for each in loop.body) for loop in loops]
    return min((c for c in counts if c["HMMA"] + c["HGMMA"]), key=Counter.total)


@pytest.mark.parametrize(("sample", "most", "logic"), [("dequant_int4", 4, 1.5), ("dequant_fp4", 5, 2.2)])
def test_instructions_a_weight(sample: str, most: float, logic: float) -> None:
    """All, with products and addresses; and shifts, masks and permutations, which half of the lanes do at once."""
    found = count_loop(sample)
    assert found.total() < most * WEIGHTS
    assert sum(found[name] for name in ("LOP3", "SHF", "PRMT", "LEA")) < logic * WEIGHTS


def test_neighbours_are_loaded_at_once() -> None:
    """The bytes of 16 weights, eight halves of the other operand, which has 16 rows, and a scale of each group."""
    assert count_loop("dequant_fp4")["LDS"] == WEIGHTS // 16 + 2 * WEIGHTS // 16 + WEIGHTS // 16


def test_products_of_few_blocks_do_not_wait_for_each_other() -> None:
    """Two blocks of a warp have two sums each: four elements of each in a thread are added in an iteration."""
    assert count_loop("dequant_int4")["FADD"] == 2 * 4


@pytest.mark.parametrize("sizes", [{}, {"K": 128}, {"M": 13, "N": 72, "K": 384}, {"M": 24, "block_M": 32, "K": 640}])
@pytest.mark.parametrize("sample", ["dequant_int4", "dequant_fp4"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_few_rows_agree(sample: str, sizes: dict[str, int], target: str) -> None:
    agrees(SAMPLES / f"gemm/{sample}.tl", target, **{**SIZES, "N": 64, "K": 256, **sizes})


UNPACKED_B = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((16, {K}), "float16"), B: T.Tensor((64, {K} // 2), "uint8"), C: T.Tensor((16, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((16, {K}), "float16")
        packed = T.alloc_shared((64, {K} // 2), "uint8")
        b = T.alloc_fragment((64, {K}), "float16")
        c = T.alloc_fragment((16, 64), "float32")
        T.copy(A, a)
        T.copy(B, packed)
        for i, j in T.Parallel(64, {K}):
            b[i, j] = T.cast(T.int32(packed[i, j // 2]) >> (j % 2 * 4) & 15, "float16")
        T.gemm(a, b, c, transpose_B=True, clear_accum=True)
        T.copy(c, C)
"""


@pytest.mark.parametrize(("K", "wide"), [(96, False), (64, True), (192, True)])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_an_unpacked_second_operand_has_runs_where_they_fit(K: int, wide: bool, target: str, tmp_path: Path) -> None:
    path = tmp_path / "unpacked.tl"
    path.write_text(UNPACKED_B.format(K=K), encoding="utf-8")
    made = agrees(path, target, strict=False)
    assert ("ld.shared.v2.b32" in made.ptx) == wide == ("ldmatrix" not in made.ptx)
