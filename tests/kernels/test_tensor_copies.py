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
