"""Tiles in tensor memory that are multiplied: stored from registers, read back, and every wait and fence needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import built
from test_tensor_gemm import check
from test_tensor_roles import faulty

KERNEL = Path(__file__).parent / "tensor_factor.tl"
TARGET = "sm_100a"


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "threads"),
    [
        (128, 64, "float16", 128), (64, 96, "bfloat16", 128), (256, 64, "float16", 256), (128, 32, "bfloat16", 256),
        (128, 64, "float8_e4m3fn", 128),
    ],
)  # fmt: skip
def test_a_sum_becomes_a_factor(rows: int, columns: int, dtype: str, threads: int) -> None:
    """Of 16 and of 8 bits, among one warpgroup and among two, which share columns or rows."""
    sizes = {"M": rows, "N": columns, "dtype": dtype, "threads": threads}
    _, made = built(KERNEL, TARGET, entry="one_role", **sizes)
    assert re.search(r"tcgen05\.mma\S+ \[%r\d+\], \[%r\d+\]", made.ptx)
    columns_of = {tile.buffer.name: tile.columns for tile in made.program.tensor}
    assert columns_of["P_t"] == columns * max(rows // 128, 1) * (8 if "float8" in dtype else 16) // 32
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    for adversary in range(2):
        check(made, adversary)


@pytest.mark.parametrize(
    "pattern", [r"tcgen05\.wait::st", r"tcgen05\.wait::ld", r"tcgen05\.commit", r"tcgen05\.st", r"mbarrier\.try_wait"]
)
def test_each_piece_is_needed(pattern: str) -> None:
    """The last of each, as a wait is for all that came before it."""
    _, made = built(KERNEL, TARGET, entry="one_role")
    assert not faulty(made, made.ptx)
    lines = made.ptx.split("\n")
    place = max(place for place, line in enumerate(lines) if re.search(pattern, line))
    assert faulty(made, "\n".join([*lines[:place], "", *lines[place + 1 :]])), lines[place]


@pytest.mark.parametrize("fence", ["before", "after"])
def test_fences_stand_between_a_store_and_a_product(fence: str) -> None:
    _, made = built(KERNEL, TARGET, entry="one_role")
    text = made.ptx
    first = text.index("tcgen05.wait::st")
    at = text.index(f"tcgen05.fence::{fence}_thread_sync;", first)
    assert faulty(made, text[:at] + text[text.index(";", at) + 1 :])
