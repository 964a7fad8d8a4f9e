"""Tiles of one dimension, and of more than two, of every width, on their way between shared memory and registers."""

from __future__ import annotations

import pytest
from snippets import TARGETS, kernel, runs

DTYPES = ("uint8", "float16", "bfloat16", "int32", "float64")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["(96,)", "(1, 96)", "(2, 4, 16)"])
def test_through_registers(shape: str, dtype: str, target: str) -> None:
    text = kernel(
        f'A: T.Tensor({shape}, "{dtype}"), B: T.Tensor({shape}, "{dtype}")',
        f's = T.alloc_shared({shape}, "{dtype}")\nf = T.alloc_fragment({shape}, "{dtype}")\n'
        f'g = T.alloc_shared({shape}, "{dtype}")\nT.copy(A, s)\nT.copy(s, f)\nT.copy(f, g)\nT.copy(g, B)',
        32,
    )
    runs(text, target)


@pytest.mark.parametrize("target", TARGETS)
def test_safe_values_of_tensors_whose_shape_comes_with_the_launch(target: str) -> None:
    text = kernel(
        'm: T.int32, A: T.Tensor((m, 24), "float32"), B: T.Tensor((32, 24), "float32")',
        's = T.alloc_shared((16, 24), "float32")\nT.annotate_safe_value({A: 5})\nT.copy(A[m - 4, 0], s)\n'
        "T.copy(s, B[0, 0])\nfor i, j in T.Parallel(16, 24):\n    B[16 + i, j] = A[m - 2 + i, j]",
    )
    text = text.replace("m: T.int32, ", "").replace("@T.prim_func", 'm = T.dynamic("m")\n\n\n@T.prim_func')
    runs(text, target, sizes={"m": 20})
