"""The family of T.gemm on Hopper: every type, stored either way on both sides, for one to three consumer warpgroups.

Each kernel is one block of 64 rows for each warpgroup and of up to 256 columns, three tiles deep. It goes by wgmma,
needs no local memory, and the assembler serialises nothing; what it computes is what the tile-level reference does.
"""

from __future__ import annotations

import pytest
from harness import HERE, agrees

TYPES = [
    ("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"), ("float32", "float32"),
    ("float8_e4m3fn", "float32"), ("float8_e4m3fn", "float16"), ("float8_e5m2", "float32"), ("float8_e5m2", "float16"),
    ("int8", "int32"),
]  # fmt: skip
DEPTH = {"float32": 32, "float16": 64, "bfloat16": 64}
"""Elements along K of a tile whose rows are 128 bytes; of the others there are 128."""


NARROWER = {("float32", "TN", 3): 192}
"""Columns where 256 of them, with both operands to turn, leave the consumers two registers too few."""


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("stored", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("dtype", "accumulator"), TYPES)
def test_family(dtype: str, accumulator: str, stored: str, groups: int) -> None:
    rows, depth = 64 * groups, DEPTH.get(dtype, 128)
    columns = NARROWER.get((dtype, stored, groups), 256)
    made = agrees(
        HERE / "gemm_types.tl", "sm_90a", dtype=dtype, other=dtype, accumulator=accumulator,
        out=accumulator, tA=stored[0] == "T", tB=stored[1] == "T", M=rows, N=columns, K=3 * depth, bM=rows, bN=columns,
        bK=depth, threads=128 * groups, num_stages=2,
    )  # fmt: skip
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    assert "wgmma.mma_async" in made.ptx and "mma.sync" not in made.ptx
