"""Indices in 64 bits, of every kind of access: what 32 bits do not hold lies outside of every tensor."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import TARGETS, kernel, runs

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

WIDE = ("int64", "uint64")
PARAMS = 'P: T.Tensor((16,), "{dtype}"), A: T.Tensor((96, 32), "float32"), B: T.Tensor((96, 32), "float32")'
USES = {
    "gather": "for i, j in T.Parallel(16, 32):\n    B[i, j] = A[P[i] + 2 * i, j]",
    "quotient": "for i, j in T.Parallel(16, 32):\n    B[i, j] = A[P[i] // 3 + P[i] % 5, j]",
    "last": "for i, j in T.Parallel(96, 16):\n    B[i, j] = A[i, P[j]]",
    "scatter": "for j in T.Parallel(32):\n    B[P[7], j] = A[P[3], j]",
    "atomic": "for i in T.Parallel(16):\n    T.atomic_add(B[P[i], 1], 1.0)",
    "name": "row = P[2] * 2\nfor j in T.Parallel(32):\n    B[row, j] = A[row + 1, j]",
    "tile": "s = T.alloc_shared((8, 32), 'float32')\nT.copy(A[P[1], 0], s)\nT.copy(s, B[P[4] + 8, 0])",
    "slice": "s = T.alloc_shared((8, 32), 'float32')\nT.copy(A[P[1] : P[1] + 8, :], s)\nT.copy(s, B[0, 0])",
    "cast": "for i, j in T.Parallel(16, 32):\n"
    "    B[T.cast(i, '{dtype}') * 2, j] = A[T.cast(i, '{dtype}') * 3 + 1, T.cast(j, '{dtype}')]",
    "loop": "f = T.alloc_fragment((32,), 'float32')\nT.clear(f)\nfor k in T.serial(P[0], P[0] + 3):\n"
    "    for j in T.Parallel(32):\n        f[j] += A[k, j]\nT.copy(f, B[0, 0])",
    "on chip": "s = T.alloc_shared((16,), '{dtype}')\nT.copy(P, s)\n"
    "for i, j in T.Parallel(16, 32):\n    B[i, j] = A[s[i], j]",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("use", USES)
def test_indices(use: str, dtype: str, target: str) -> None:
    runs(kernel(PARAMS.format(dtype=dtype), USES[use].format(dtype=dtype), threads=64), target)


@pytest.mark.parametrize("dtype", WIDE)
def test_far_outside(dtype: str) -> None:
    """What would be inside modulo 2³² reads as 0 and is not written."""
    text = kernel(
        f'P: T.Tensor((8,), "{dtype}"), A: T.Tensor((8,), "float32"), B: T.Tensor((16,), "float32")',
        "for i in T.Parallel(8):\n    B[P[i] + 8] = A[i] + A[P[i]]",
        threads=32,
    )
    made = build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    far = [2**32 + 2, 1, 2**31, 2**40 + 5, 0, 3, 2**63 - 8, 2**32]
    found.tensors["P"][:] = np.array(far, found.tensors["P"].dtype)
    found.tensors["B"][:] = 7.0
    expected = np.full(16, 7.0, np.float32)
    for i, place in enumerate(far):
        if place < 8:
            expected[place + 8] = found.tensors["A"][i] + found.tensors["A"][place]
    emulate.emulate_build(made, found)
    assert np.array_equal(found.tensors["B"], expected)
