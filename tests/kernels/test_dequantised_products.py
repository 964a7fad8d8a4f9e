"""Products of float16 and weights of four bits, of few rows: how many instructions of machine code a weight takes."""

from __future__ import annotations

from collections import Counter

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


@pytest.mark.parametrize("sizes", [{}, {"M": 13, "N": 72, "K": 384}])
@pytest.mark.parametrize("sample", ["dequant_int4", "dequant_fp4"])
def test_few_rows_agree(sample: str, sizes: dict[str, int]) -> None:
    agrees(SAMPLES / f"gemm/{sample}.tl", "sm_90a", **{**SIZES, "N": 64, "K": 256, **sizes})
