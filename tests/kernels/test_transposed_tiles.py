"""T.transpose by ldmatrix and stmatrix, for tiles of 8-bit and 16-bit elements: numbers and instructions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import HERE, SAMPLES, agrees, built
from sass import disassembled

KERNEL = HERE / "transposed.tl"
# Rows and columns of a tile, and threads: one to four matrices an instruction, one warp to eight, one block a warp and
# several, columns of blocks that a warp has alone and that warps share, and a width of three blocks.
TILES = [
    (32, 32, 32), (64, 64, 128), (128, 128, 128), (128, 64, 256), (32, 128, 256), (96, 48, 96), (16, 64, 128),
    (48, 32, 32), (16, 16, 32), (64, 16, 64), (96, 96, 64),
]  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["uint8", "float16"])
@pytest.mark.parametrize(("rows", "columns", "threads"), TILES)
def test_transposes_equal_numpy(rows: int, columns: int, threads: int, dtype: str, target: str) -> None:
    agrees(
        KERNEL, target, M=2 * rows, N=columns, block_M=rows, block_N=columns, threads=threads, dtype=dtype, strict=False
    )


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "threads", "is_possible"),
    [
        ("uint8", 64, 64, 128, True),
        ("float16", 64, 64, 128, True),
        ("float32", 64, 64, 128, False),  # ldmatrix moves units of 16 bits
        ("uint8", 8, 64, 32, False),  # a matrix of bytes makes rows of 8 bytes
        ("uint8", 16, 16, 64, False),  # one block for two warps
        ("uint8", 64, 24, 32, False),  # rows of 24 bytes
    ],
)
def test_matrices_transpose_where_they_can(
    dtype: str, rows: int, columns: int, threads: int, is_possible: bool
) -> None:
    _, made = built(KERNEL, "sm_90a", M=rows, N=columns, block_M=rows, block_N=columns, threads=threads, dtype=dtype)
    assert ("ldmatrix" in made.ptx and "stmatrix" in made.ptx) == is_possible


def test_attention_of_bytes_transposes_its_values_by_matrices(tmp_path: Path) -> None:
    """Each of eight warps loads and stores 512 bytes at once, 4 times for 128 × 128 values, and reaches no byte alone.
    Of the permutations, 4 a block separate bytes, and 16 pack the weights."""
    _, made = built(SAMPLES / "flash_attention.tl", "sm_90a", dtype="float8_e4m3fn", block_N=128)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(made.cubin)
    loop = [i.opcode for i in disassembled(cubin).around("QGMMA")]

    def count(pattern: str) -> int:
        return sum(re.match(pattern, opcode) is not None for opcode in loop)

    assert (count(r"LDSM\.16\.MT88\.4"), count(r"STSM\.16\.M88\.4"), count("PRMT")) == (4, 4, 16 + 16)
    assert count(r"(LDS|STS)\b") == 0


def test_stores_of_a_transposed_tile_share_an_address() -> None:
    """A warp's ten stores of 160 × 128 values differ by constants, since blocks begin where the swizzle repeats."""
    _, made = built(SAMPLES / "flash_attention.tl", "sm_90a", dtype="float8_e4m3fn", block_N=160)
    loop = made.ptx[made.ptx.index("_loop:") :]
    stores = re.findall(r"stmatrix\S* \[(%r\d+)\+\d+\]", loop)[:10]
    assert len(stores) == 10
    assert len(set(stores)) == 1
