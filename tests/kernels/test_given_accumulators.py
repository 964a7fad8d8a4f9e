"""Sums of products whose layout a person gives: the products' own in other words, and quite another one."""

from __future__ import annotations

import pytest
from snippets import kernel, runs

OWN = "(i // 16 * 32 + i % 8 * 4 + j % 8 // 2, j % 2 + i % 16 // 8 * 2 + j // 8 * 4)"
ROWS = "((i * 64 + j) // 32, j % 32)"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("given", [OWN, ROWS])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_it_is_stored_as_it_lies(dtype: str, given: str, target: str) -> None:
    text = kernel(
        f'A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "{dtype}")',
        's = T.alloc_shared((64, 64), "float16")\nb = T.alloc_shared((64, 64), "float16")\n'
        'c = T.alloc_fragment((64, 64), "float32")\n'
        f"T.annotate_layout({{c: T.Fragment((64, 64), forward_fn=lambda i, j: {given})}})\n"
        "T.clear(c)\nT.copy(A, s)\nT.copy(B, b)\nT.gemm(s, b, c)\nT.copy(c, C)",
    )
    runs(text, target)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_nest_may_give_it(target: str) -> None:
    text = kernel(
        'A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")',
        's = T.alloc_shared((64, 64), "float16")\nf = T.alloc_fragment((64, 64), "float32")\n'
        'c = T.alloc_fragment((64, 64), "float32")\n'
        f"T.annotate_layout({{f: T.Fragment((64, 64), forward_fn=lambda i, j: {ROWS})}})\n"
        "T.copy(A, s)\nT.clear(c)\nT.gemm(s, s, c)\n"
        "for i, j in T.Parallel(64, 64):\n    f[i, j] = c[i, j] * 2\nT.copy(f, C)",
    )
    runs(text, target)
