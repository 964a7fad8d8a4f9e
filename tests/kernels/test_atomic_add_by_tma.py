"""T.atomic_add(…, use_tma=True) where the place of the tile is known only at run time, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import tilec

TEXT = """
import tilelang.language as T


@T.prim_func
def add_rows(at: T.Tensor((3,), "int32"), A: T.Tensor((48, 32), "float32"), B: T.Tensor((64, 32), "float32")):
    with T.Kernel(3, threads=128) as bx:
        s = T.alloc_shared((16, 32), "float32")
        T.copy(A[bx * 16, 0], s)
        start = at[bx]
        PROMISE
        T.atomic_add(B[start : start + 16, :], s, memory_order="relaxed", use_tma=True)
"""


@pytest.mark.parametrize(("promise", "by_tma"), [("pass", False), ("T.assume(start >= 0)", True)])
def test_rows_that_may_begin_below_the_tensor_are_added_by_threads(promise: str, by_tma: bool) -> None:
    """Compare sums with numpy's, and check that TMA adds only where T.assume promises a start of 0 or more."""
    kernel = tilec.compile(TEXT.replace("PROMISE", promise), target="sm_90a", device="emulator")
    assert ("cp.reduce.async.bulk.tensor" in kernel.ptx) == by_tma
    rng = np.random.default_rng(5)
    at = np.array([0 if by_tma else -5, 30, 56], np.int32)
    a, b = (rng.standard_normal((rows, 32)).astype(np.float32) for rows in (48, 64))
    expected = b.copy()
    for block, start in enumerate(at):
        inside = np.arange(max(start, 0), min(start + 16, 64))
        expected[inside] += a[block * 16 + inside - start]
    kernel(at, a, b)
    np.testing.assert_allclose(b, expected, rtol=1e-6)
