"""Reductions across warps share one scratch tile in a kernel that does not fit otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TEXT = """@T.prim_func
def kernel(A: T.Tensor((ROWS, 1024), "float16"), X: T.Tensor((2, 1024), "float32"), B: T.Tensor((2, 1024), "float32")):
    with T.Kernel(1, threads=256) as bx:
        large = T.alloc_shared((ROWS, 1024), "float16")
        x = T.alloc_fragment((2, 1024), "float32")
        top = T.alloc_fragment((2,), "float32")
        total = T.alloc_fragment((2,), "float32")
        T.copy(A, large)
        T.copy(X, x)
        for _ in T.serial(2):
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(2, 1024):
                x[i, j] = T.exp2(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(2, 1024):
                x[i, j] = x[i, j] / total[i] + large[ROWS - 1 - i, j]
        T.copy(x, B)
"""


def test_two_reductions_share_their_scratch() -> None:
    """Check the result and the size of a kernel of which only one reduction's scratch fits beside its tile."""
    source = SourceFile("kernel.tl", TEXT.replace("ROWS", "112"))
    made = build_kernel(source, CompileOptions(target="sm_90a"), Observer())
    assert [t.buffer.name for t in made.program.shared if t.buffer.name.startswith("scratch")] == ["scratch.0"]
    given = emulate.draw_arguments(made.kernel, made.manifest, 3)
    emulate.emulate_build(made, given)
    expected, large = given.tensors["X"].astype(np.float64), given.tensors["A"].astype(np.float64)
    for _ in range(2):
        powers = np.exp2(expected - expected.max(axis=1, keepdims=True))
        expected = powers / powers.sum(axis=1, keepdims=True) + large[[111, 110]]
    np.testing.assert_allclose(given.tensors["B"], expected, rtol=1e-4, atol=1e-5)


def test_scratch_is_not_shared_where_all_fits() -> None:
    source = SourceFile("kernel.tl", TEXT.replace("ROWS", "16"))
    made = build_kernel(source, CompileOptions(target="sm_90a"), Observer())
    assert sum(t.buffer.name.startswith("scratch") for t in made.program.shared) == 2


def test_a_kernel_that_does_not_fit_all_the_same_is_refused() -> None:
    source = SourceFile("kernel.tl", TEXT.replace("ROWS", "113"))
    with pytest.raises(CompileError, match="shared-memory-overflow"):
        build_kernel(source, CompileOptions(target="sm_90a"), Observer())
