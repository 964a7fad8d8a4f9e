"""T.gemm of integers of four bits, packed as they lie: mma.sync of s4 and u4 against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.emulation import emulate


def unpacked(octets: np.ndarray, dtype: str) -> np.ndarray:
    fields = np.stack((octets & 15, octets >> 4), axis=-1).reshape(len(octets), -1).astype(np.int64)
    return np.where(fields > 7, fields - 16, fields) if dtype == "int4" else fields


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("block_K", [64, 128])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_product(dtype: str, block_K: int, target: str) -> None:
    _, made = built(HERE / "gemm_nibbles.tl", target, dtype=dtype, block_K=block_K)
    arguments = emulate.draw_arguments(made.kernel, made.manifest, 3)
    reference = arguments.copy()
    emulate.emulate_build(made, arguments)
    emulate.run_reference(made.kernel, reference)
    a, b = (unpacked(arguments.tensors[name], dtype) for name in "AB")
    np.testing.assert_array_equal(arguments.tensors["C"], a @ b.T)
    np.testing.assert_array_equal(reference.tensors["C"], a @ b.T)
    kind = {"int4": "s4", "uint4": "u4"}[dtype]
    assert f"mma.sync.aligned.m16n8k64.row.col.s32.{kind}.{kind}.s32" in made.ptx
