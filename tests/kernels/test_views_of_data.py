"""T.Tensor(shape, dtype, tile.data): the elements of a tensor or a tile in another shape, or as another type."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TEXT = """\
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((32, 48), "float32"), B: T.Tensor((1536,), "float32"), C: T.Tensor((32, 48), "int32")):
    with T.Kernel(1, threads=64) as bx:
        flat = T.Tensor((1536,), "float32", A.data)
        s = T.alloc_shared((16, 96), "float32")
        rows = T.Buffer((32, 48), dtype="float32", data=s.data)
        bits = T.Tensor((32, 48), "int32", s.data)
        T.copy(A, rows)
        for i in T.Parallel(1536):
            B[i] = flat[1535 - i] + s[i // 96, i % 96]
        for i, j in T.Parallel(32, 48):
            C[i, j] = bits[i, j]
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_elements_stay_where_they_are(target: str) -> None:
    made = build_kernel(SourceFile("kernel.tl", TEXT), CompileOptions(target=target), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 0)
    emulate.emulate_build(made, given)
    a = given.tensors["A"]
    np.testing.assert_allclose(given.tensors["B"], a.ravel()[::-1] + a.ravel(), rtol=1e-6)
    np.testing.assert_array_equal(given.tensors["C"], a.view(np.int32))
