"""Layouts of loops as arguments of the function that makes the kernel: given by -D as in the language."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import agrees

KERNEL = """
import tilelang
import tilelang.language as T


@tilelang.jit
def scale(A, B, layout):
    M, N = T.const("M, N")
    A: T.Tensor[(M, N), T.float32]
    B: T.Tensor[(M, N), T.float32]
    with T.Kernel(1, threads=128):
        for i, j in T.Parallel(M, N, loop_layout=layout):
            B[i, j] = A[i, j] * 2.0
"""
BY_FOUR = (
    "T.Fragment((32, 32), forward_fn=lambda i, j: "
    "((i * 32 + j) // 4 % 128, (i * 32 + j) % 4 + (i * 32 + j) // 512 * 4))"
)
TWICE = (
    "T.Fragment((32, 32), forward_fn=lambda i, j, rep: "
    "((i * 32 + j) // 4 % 64 + rep * 64, (i * 32 + j) % 4 + (i * 32 + j) // 256 * 4), replicate=2)"
)


@pytest.mark.parametrize("layout", [BY_FOUR, TWICE])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_layout_is_given_by_define(layout: str, target: str, tmp_path: Path) -> None:
    path = tmp_path / "scale.tl"
    path.write_text(KERNEL, encoding="utf-8")
    made = agrees(path, target, M=32, N=32, layout=layout)
    assert "v4" in made.ptx
