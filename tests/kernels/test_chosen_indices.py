"""Indices that choose between elements by conditions on others: these are loaded first, however deep they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec

HEAD = """import tilelang.language as T


@T.prim_func
def kernel(B: T.Tensor((8,), "int32"), C: T.Tensor((8,), "int32"), R: T.Tensor((8,), "int32")):
    with T.Kernel(1, threads=32) as bx:
        v = T.alloc_var("int32", 1)
"""
ONE = """
        for x in range(3):
            B[3] = R[(B[0] if x != R[v] else R[0]) % 8]
"""
NESTED = """
        for x in range(3):
            B[3] = R[(B[0] if C[0] > x and x != R[C[v] % 8] else (B[1] if C[R[v] % 8] > 2 else R[0])) % 8] + B[3]
"""
PARALLEL = """
        for i in T.Parallel(8):
            B[i] = R[(B[i] if i != R[(i + v) % 8] else R[C[i] % 8]) % 8]
"""


def one(B: Any, C: Any, R: Any) -> None:
    for x in range(3):
        B[3] = R[(B[0] if x != R[1] else R[0]) % 8]


def nested(B: Any, C: Any, R: Any) -> None:
    for x in range(3):
        chosen = B[0] if C[0] > x and x != R[C[1] % 8] else (B[1] if C[R[1] % 8] > 2 else R[0])
        B[3] = R[chosen % 8] + B[3]


def parallel(B: Any, C: Any, R: Any) -> None:
    B[:] = [R[(B[i] if i != R[(i + 1) % 8] else R[C[i] % 8]) % 8] for i in range(8)]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("body", "reference"), [(ONE, one), (NESTED, nested), (PARALLEL, parallel)])
def test_conditions_of_indices(body: str, reference: Any, target: str) -> None:
    kernel = tilec.compile(HEAD + body, target=target, device="emulator")
    for seed in range(6):
        B, C, R = np.random.default_rng(seed).integers(0, 5, (3, 8)).astype("int32")
        wanted = B.copy()
        reference(wanted, C, R)
        kernel(B, C, R)
        assert np.array_equal(B, wanted), seed
