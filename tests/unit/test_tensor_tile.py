"""How many elements of a tile in tensor memory share a column."""

from __future__ import annotations

import pytest

from tilec.ir import warp
from tilec.ir.tile import Buffer
from tilec.ir.types import TYPES_BY_NAME
from tilec.passes.layout.mechanisms.tensor_memory import count_columns


@pytest.mark.parametrize(
    ("shape", "dtype", "is_factor", "taken", "shared"),
    [
        ((128, 64), "float32", False, 64, 1),
        ((256, 64), "float32", False, 128, 1),
        ((128, 64), "float16", True, 32, 2),
        ((128, 64), "float8_e4m3fn", True, 16, 4),
        ((2, 128, 64), "float32", False, 128, 1),
        ((2, 128, 64), "float16", True, 64, 2),
        ((8, 16, 2), "int16", False, 16, 1),
        ((2, 3, 128, 32), "float16", True, 96, 2),
    ],
)
def test_dimensions_before_the_last_two_number_versions(
    shape: tuple[int, ...], dtype: str, is_factor: bool, taken: int, shared: int
) -> None:
    tile = Buffer("t", shape, TYPES_BY_NAME[dtype], "tmem")
    assert count_columns(tile, is_factor) == taken
    assert warp.TensorTile(tile, taken).per_column == shared
