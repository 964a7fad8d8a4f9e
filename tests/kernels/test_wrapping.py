"""Elements wrap around as the machine's integers do; nothing that holds of sums without end is done to them."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TEXT = """import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((256,), "int32"), B: T.Tensor((256,), "int32")):
    with T.Kernel(1, threads=128) as bx:
        for i in T.Parallel(256):
            B[i] = {}
"""
HERE = {
    "(A[i] * 3 + 2) % 3": lambda a: (a * np.int32(3) + np.int32(2)) % np.int32(3),
    "(A[i] * 6 + i) // 6": lambda a: (a * np.int32(6) + np.arange(256, dtype=np.int32)) // np.int32(6),
    "(A[i] * 4 + 1) // 4": lambda a: (a * np.int32(4) + np.int32(1)) // np.int32(4),
    "T.max(A[i], 0) * 3 // 5": lambda a: np.maximum(a, 0) * np.int32(3) // np.int32(5),
    "T.if_then_else(T.max(A[i], 0) * 3 < 0, 1, 2)": lambda a: np.where(np.maximum(a, 0) * np.int32(3) < 0, 1, 2),
    "(A[i] % 1024 * 4194304) // 4": lambda a: a % np.int32(1024) * np.int32(4194304) // np.int32(4),
    "T.min(T.max(A[i], 0) + 2147483647, 5)": lambda a: np.minimum(np.maximum(a, 0) + np.int32(2147483647), 5),
}


@pytest.mark.parametrize("expression", HERE)
def test_elements_wrap_around(expression: str) -> None:
    made = build_kernel(SourceFile("kernel.tl", TEXT.format(expression)), CompileOptions(target="sm_90a"), Observer())
    arguments = emulate.draw_arguments(made.kernel, made.manifest, 0, None)
    values = np.random.default_rng(1).integers(-(2**31), 2**31, 256, dtype=np.int64).astype(np.int32)
    values[:4] = (2**31 - 1, -(2**31), 0, 1)
    arguments.tensors["A"][:] = values
    emulate.emulate_build(made, arguments)
    with np.errstate(over="ignore"):
        assert (np.asarray(arguments.tensors["B"]) == HERE[expression](values)).all()
