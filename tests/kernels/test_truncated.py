"""T.truncdiv and T.truncmod at both ends of every integer type: the emulated code, and the tile-level reference."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TEXT = """import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((64,), "{0}"), Q: T.Tensor((64,), "{0}"), R: T.Tensor((64,), "{0}"), S: T.Tensor((64,), "{0}")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            Q[i] = T.truncdiv(A[i], {1})
            R[i] = T.truncmod(A[i], {1})
            S[i] = T.truncdiv(100, T.cast(A[i] % 7 + 1, "{0}"))
"""


@pytest.mark.parametrize("divisor", [3, 7, -5])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_the_smallest_integer_has_no_size_of_its_type(dtype: str, divisor: int) -> None:
    if dtype.startswith("u"):
        divisor = abs(divisor)
    source = SourceFile("kernel.tl", TEXT.format(dtype, f"T.cast({divisor}, '{dtype}')"))
    made = build_kernel(source, CompileOptions(target="sm_80"), Observer())
    found, limits = emulate.draw_arguments(made.kernel, made.manifest, 0), np.iinfo(dtype)
    ends = [limits.min + i for i in range(32)] + [limits.max - i for i in range(32)]
    found.tensors["A"][:] = ends
    by_reference = found.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(made.kernel, by_reference)
    quotients = [abs(a) // abs(divisor) * (1 if (a < 0) == (divisor < 0) else -1) for a in ends]
    for results in (found, by_reference):
        assert results.tensors["Q"].tolist() == quotients
        assert results.tensors["R"].tolist() == [a - q * divisor for a, q in zip(ends, quotients, strict=True)]
        assert results.tensors["S"].tolist() == [100 // (a % 7 + 1) for a in ends]
