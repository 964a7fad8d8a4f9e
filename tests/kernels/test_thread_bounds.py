"""Serial loops whose bounds each thread reads for itself, which only T.min and T.max limit, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """import tilelang.language as T

@T.prim_func
def kernel(P: T.Tensor((32, 3), "int32"), O: T.Tensor((32, 4, 6), "int32"), S: T.Tensor((32,), "int32")):
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding()
        s = T.alloc_local((1,), "int32")
        for y in T.serial(T.max(T.min(P[t, 0], 4), 0)):
            for x in T.serial(T.max(P[t, 1], 0), T.min(P[t, 2], 6)):
                O[t, y, x] = t * 100 + y * 10 + x
        last = T.min(P[t, 2] & 7, 5)
        s[0] = 0
        for y in T.serial(P[t, 0] % 3, last):
            s[0] += y
        S[t] = s[0]
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_bounds_that_each_thread_reads(target: str) -> None:
    made = build_kernel(SourceFile("kernel.tl", KERNEL), CompileOptions(target=target), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 0)
    bounds = np.random.default_rng(5).integers(-3, 9, (32, 3)).astype(np.int32)
    bounds[0], bounds[1] = (2**31 - 1, -(2**31), 2**31 - 1), -(2**31)
    given.tensors["P"][...] = bounds
    given.tensors["O"][...] = -1
    emulate.emulate_build(made, given)
    expected, sums = np.full((32, 4, 6), -1), np.zeros(32)
    for t, (first, second, third) in enumerate(bounds.tolist()):
        for y in range(max(min(first, 4), 0)):
            for x in range(max(second, 0), min(third, 6)):
                expected[t, y, x] = t * 100 + y * 10 + x
        sums[t] = sum(range(first % 3, min(third & 7, 5)))
    np.testing.assert_array_equal(given.tensors["O"], expected)
    np.testing.assert_array_equal(given.tensors["S"], sums)
