"""Tiles behind pipelined loops, beside those that the loops leave: what shares memory never shares time."""

from __future__ import annotations

import pytest
from snippets import HEAD, runs

TARGETS = ("sm_90a", "sm_100a")
TILES = """
a = T.alloc_shared((64, 64), "float16")
b = T.alloc_shared((64, 64), "float16")
d = T.alloc_shared((64, 64), "float16")
e = T.alloc_shared((64, 64), "float16")
x = T.alloc_fragment((64, 64), "float32")
y = T.alloc_fragment((64, 64), "float32")
T.clear(x)
T.clear(y)
"""
LOOP = """
for k in T.Pipelined(3, num_stages=2):
    T.copy(B[k * 64, 0], b)
    {also}T.gemm(a, b, x)
"""
ONCE, EACH = "T.copy(A, a)\n", "T.copy(A, a)\n    "
ENDS = {
    "a again": ONCE + LOOP.format(also="") + "T.copy(B[0, 0], d)\nT.gemm(a, d, y)\nT.copy(x, O)\nT.copy(y, P)",
    "a last": ONCE + LOOP.format(also="") + "T.copy(x, d)\nT.copy(d, Q)\nT.copy(a, R)\nT.copy(x, O)",
    "b again": ONCE + LOOP.format(also="") + "T.copy(x, d)\nT.gemm(d, b, y)\nT.copy(y, P)\nT.copy(x, O)",
    "b first": LOOP.format(also=EACH) + "T.copy(b, R)\nT.copy(x, d)\nT.copy(d, Q)",
    "two stores": LOOP.format(also=EACH) + "T.copy(x, d)\nT.copy(d, Q)\nT.copy(x, e)\nT.copy(e, R)\nT.copy(x, O)",
    "two loops": LOOP.format(also=EACH)
    + LOOP.format(also=EACH).replace("k ", "l ").replace("k *", "l *").replace("x)", "y)")
    + "T.copy(x, d)\nT.gemm(d, b, y)\nT.copy(y, P)\nT.copy(d, Q)",
    "a after two": ONCE
    + LOOP.format(also="")
    + LOOP.format(also="").replace("k ", "l ").replace("k *", "l *").replace("x)", "y)")
    + "T.copy(B[64, 0], e)\nT.gemm(e, a, x)\nT.copy(x, O)\nT.copy(y, P)",
    "perhaps set": LOOP.format(also=EACH) + "T.clear(d)\nif n > 1:\n    T.copy(x, d)\nT.copy(d, Q)\nT.copy(x, O)",
    "in a branch": LOOP.format(also=EACH) + "if n > 1:\n    T.copy(x, d)\n    T.copy(d, Q)\nT.copy(x, O)",
    "by element": ONCE
    + LOOP.format(also="")
    + "T.copy(x, d)\nfor i, j in T.Parallel(64, 64):\n    R[i, j] = d[j, i] + a[i, j]\nT.copy(x, O)",
}
HALVES = ", ".join(f'{name}: T.Tensor((64, 64), "float16")' for name in "AQR")
SUMS = ", ".join(f'{name}: T.Tensor((64, 64), "float32")' for name in "OP")
PARAMS = f'n: T.int32, B: T.Tensor((192, 64), "float16"), {HALVES}, {SUMS}'


def text(end: str) -> str:
    lines = "".join(f"        {line}\n" for line in (TILES + ENDS[end]).split("\n") if line)
    return f"{HEAD}@T.prim_func\ndef kernel({PARAMS}):\n    with T.Kernel(1, threads=128) as bx:\n{lines}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("end", ENDS)
def test_ends(end: str, target: str) -> None:
    runs(text(end), target)


@pytest.mark.parametrize("end", ENDS)
def test_ends_without_roles(end: str) -> None:
    runs(text(end), "sm_90a", "unspecialize")
    runs(text(end), "sm_80")
