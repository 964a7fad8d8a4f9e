"""Indices of local arrays that are constant once a loop is unrolled: each names a register, and no code chooses one."""

from __future__ import annotations

import pytest
from snippets import kernel, runs

PARAMS = 'A: T.Tensor((64, 8), "float32"), B: T.Tensor((64, 8), "float32")'
BUTTERFLIES = """\
x = T.alloc_local((8,), "float32")
t = T.get_thread_binding()
for v in T.vectorized(8):
    x[v] = A[t, v]
for p in T.unroll(3):
    for i in T.unroll(4):
        first = {first}
        a = x[first]
        b = x[first {sign} (1 << p)]
        x[first] = a + b
        x[first {sign} (1 << p)] = a - b
for v in T.vectorized(8):
    B[t, v] = x[v]
"""


@pytest.mark.parametrize(
    "first", ["i // (1 << p) * (2 << p) + i % (1 << p)", "((i >> p) << (p + 1)) | (i & ((1 << p) - 1))"]
)
@pytest.mark.parametrize("sign", ["+", "|", "^"])
def test_a_computed_index_names_a_register(first: str, sign: str) -> None:
    made = runs(kernel(PARAMS, BUTTERFLIES.format(first=first, sign=sign), 64), "sm_90a")
    assert "setp" not in made.ptx and made.ptx.count("add.rn.f32") == made.ptx.count("sub.rn.f32") == 12
