"""Macros that return from branches, decided at compile time or at run time."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TEXT = """\
import tilelang.language as T

@T.macro
def scaled(x, how):
    if how == "twice":
        return x * 2.0
    elif how == "shifted":
        y = x + 1.0
        return y
    return x * x

@T.macro
def clipped(x, low, high):
    if x < low:
        return low
    wide = x * 3.0
    if wide > high:
        return high
    return wide

@T.macro
def both(x, swapped):
    if swapped:
        return x + 1.0, x
    else:
        return x, x + 1.0

@T.macro
def nested(x, i):
    if i % 2 == 0:
        if i % 3 == 0:
            return scaled(x, "twice")
        return clipped(x, -0.5, 0.5)
    return x

@T.macro
def put(tile, i, x, k):
    if k == 3:
        return
    if i < 8:
        tile[i] = x
        return
    tile[i] = -x

@T.prim_func
def kernel(X: T.Tensor((64,), "float32"), Y: T.Tensor((8, 64), "float32")):
    with T.Kernel(1, threads=64) as bx:
        s = T.alloc_shared((64,), "float32")
        T.clear(s)
        for i in T.Parallel(64):
            put(s, i, X[i], 1)
        for i in T.Parallel(64):
            put(s, i, X[i], 3)
        for i in T.Parallel(64):
            Y[0, i] = scaled(X[i], "twice")
            Y[1, i] = scaled(X[i], "shifted")
            Y[2, i] = scaled(X[i], "else")
            Y[3, i] = clipped(X[i], -0.5, 0.5)
            a, b = both(X[i], True)
            c, d = both(X[i], i < 5)
            Y[4, i] = a - b
            Y[5, i] = c - d
            Y[6, i] = nested(X[i], i)
            Y[7, i] = s[i]
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_each_branch_returns_its_value(target: str) -> None:
    made = build_kernel(SourceFile("kernel.tl", TEXT), CompileOptions(target=target), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 0)
    emulate.emulate_build(made, given)
    x, i = given.tensors["X"], np.arange(64)
    clipped = np.where(x < -0.5, -0.5, np.minimum(x * 3, 0.5))
    expected = [
        x * 2, x + 1, x * x, clipped, x + 1 - x, np.where(i < 5, x + 1 - x, x - (x + 1)),
        np.where(i % 2 == 0, np.where(i % 3 == 0, x * 2, clipped), x), np.where(i < 8, x, -x),
    ]  # fmt: skip
    np.testing.assert_allclose(given.tensors["Y"], np.stack(expected), rtol=1e-6)
