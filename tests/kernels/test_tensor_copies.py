"""Tiles in tensor memory that threads alone fill and read: every width of element, in a kernel of one role."""

from __future__ import annotations

import pytest
from snippets import kernel, runs


@pytest.mark.parametrize("dtype", ["int8", "float8_e5m2", "float16", "bfloat16", "uint16", "int32", "float32"])
@pytest.mark.parametrize("rows", [64, 128])
def test_there_and_back(rows: int, dtype: str) -> None:
    """All warps wait until the first one has allocated."""
    shape = f'({rows}, 48), "{dtype}"'
    text = kernel(
        f"A: T.Tensor({shape}), B: T.Tensor({shape})",
        f"held = T.alloc_tmem({shape})\nf = T.alloc_fragment({shape})\ng = T.alloc_fragment({shape})\n"
        "T.copy(A, f)\nT.copy(f, held)\nT.copy(held, g)\nT.copy(g, B)",
    )
    runs(text, "sm_100a")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_factor_of_a_product_goes_there_too(dtype: str) -> None:
    """Tensor cores take it two elements to a register, tensor memory one by one, as it is no factor there."""
    square, wide = f'(64, 64), "{dtype}"', '(64, 64), "float32"'
    text = kernel(
        f"A: T.Tensor({wide}), B: T.Tensor({square}), O: T.Tensor({wide}), C: T.Tensor({square})",
        f"held = T.alloc_tmem({square})\nf = T.alloc_fragment({square})\ng = T.alloc_fragment({square})\n"
        f"w = T.alloc_fragment({wide})\nb = T.alloc_shared({square})\nc = T.alloc_fragment({wide})\n"
        "T.copy(B, b)\nT.copy(A, w)\nT.copy(w, f)\nT.clear(c)\nT.gemm(f, b, c)\nT.copy(f, held)\nT.copy(c, O)\n"
        "T.copy(held, g)\nT.copy(g, C)",
    )
    runs(text, "sm_100a")
