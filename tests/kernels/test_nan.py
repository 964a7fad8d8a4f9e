"""What NaN does in each reduction, as docs/language/reductions.md says: max and min pass over it, sums do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.files import read_source
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = Path(__file__).parent / "reductions_nan.tl"
NAN = np.nan


@pytest.mark.parametrize("target", ["sm_80", "sm_100a"])
def test_reductions_of_rows_with_nan(target: str) -> None:
    x = np.ones((3, 64), np.float32)
    x[0, 1], x[1, 1], x[1, 2], x[2] = -3, NAN, 7, NAN
    made = build_kernel(read_source(str(KERNEL)), CompileOptions(target=target), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 0)
    given.tensors["X"][...] = x
    emulate.emulate_build(made, given)
    expected = [
        [60, NAN, NAN],  # sum
        [66, NAN, NAN],  # abssum
        [1, 7, NAN],  # max
        [-3, 1, NAN],  # min
        [3, 7, NAN],  # absmax
        [1, 7, -np.inf],  # a reducer of max, which is filled by the least number
        [-3, 1, np.inf],  # and of min
        [28, NAN, NAN],  # T.warp_reduce_sum, of the first 32
        [1, 7, NAN],
        [-3, 1, NAN],
    ]
    np.testing.assert_array_equal(given.tensors["Y"], np.array(expected, np.float32))


def test_reductions_that_propagate_nan() -> None:
    """Within threads, across lanes and across warps, with the old value included, and into another type."""
    body = """
        T.reduce_max(x, y, dim=1, nan_propagate=True)
        T.copy(y, Y[0, 0:4])
        T.reduce_absmax(x, z, dim=1, nan_propagate=True)
        T.copy(z, Z[0, 0:4])
        T.fill(y, -7)
        T.reduce_min(x, y, dim=1, clear=False, nan_propagate=True)
        T.copy(y, Y[1, 0:4])
        T.reduce_max(x, y, dim=1, nan_propagate=False)
        T.copy(y, Y[2, 0:4])
        T.reduce_max(X_s, w, dim=0, nan_propagate=True)
        T.copy(w, W)"""
    text = f"""import tilelang.language as T

@T.prim_func
def kernel(X: T.Tensor((4, 256), "float16"), Y: T.Tensor((3, 4), "float16"), Z: T.Tensor((1, 4), "float32"),
           W: T.Tensor((256,), "float16")):
    with T.Kernel(1, threads=128):
        X_s = T.alloc_shared((4, 256), "float16")
        x = T.alloc_fragment((4, 256), "float16")
        y = T.alloc_fragment((4,), "float16")
        z = T.alloc_fragment((4,), "float32")
        w = T.alloc_fragment((256,), "float16")
        T.copy(X, X_s)
        T.copy(X_s, x){body}
"""
    made = build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_80"), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 0)
    x = given.tensors["X"]
    x[1, 200], x[2] = NAN, NAN
    expected = given.copy()
    emulate.emulate_build(made, given)
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, given, expected))
    lowest = np.minimum(x.min(axis=1), np.float16(-7))
    rows = [x.max(axis=1), lowest, np.fmax.reduce(x, axis=1)]
    np.testing.assert_array_equal(given.tensors["Y"], np.array(rows, np.float16))
    np.testing.assert_array_equal(given.tensors["Z"][0], np.abs(x.astype(np.float32)).max(axis=1))
    np.testing.assert_array_equal(given.tensors["W"], x.max(axis=0))
    assert np.isnan(given.tensors["Y"][0]).tolist() == [False, True, True, False]
