"""Arrays of T.alloc_local that hold the same values in all threads, where all threads work together: against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import HEAD, kernel, runs

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

PARAMETERS = 'A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")'


def run(body: str) -> tuple[np.ndarray, np.ndarray]:
    """What A was, and what the kernel left in B."""
    made = build_kernel(SourceFile("kernel.tl", kernel(PARAMETERS, body)), CompileOptions(target="sm_80"), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    a = found.tensors["A"].copy()
    emulate.emulate_build(made, found)
    return a, found.tensors["B"]


def test_a_nest_reads_them() -> None:
    body = """
factors = T.alloc_local((4,), "float32")
for i in T.serial(4):
    factors[i] = A[i] + 1
for i in T.Parallel(64):
    B[i] = A[i] * factors[1] + factors[i % 4]
"""
    a, b = run(body)
    np.testing.assert_allclose(b, a * (a[1] + 1) + np.tile(a[:4] + 1, 16), rtol=1e-5)


def test_a_condition_on_them_is_that_of_the_block() -> None:
    body = """
flags = T.alloc_local((2,), "bool")
s = T.alloc_shared((64,), "float32")
T.fill(s, 7)
for k in T.serial(4):
    for i in T.serial(2):
        flags[i] = A[2 * k + i] > 0
    if T.all_of(flags):
        T.copy(A, s)
    else:
        for i in T.Parallel(64):
            s[i] = s[i] + 1
T.copy(s, B)
"""
    a, b = run(body)
    s = np.full(64, 7, np.float32)
    for k in range(4):
        s = a if (a[2 * k : 2 * k + 2] > 0).all() else s + np.float32(1)
    np.testing.assert_array_equal(b, s)


PRODUCT = f"""{HEAD}
@T.prim_func
def kernel(A: T.Tensor((128, 32), "float16"), B: T.Tensor((32, 64), "float16"), M: T.Tensor((4,), "bool"),
           C: T.Tensor((32, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((32, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((32, 64), "float32")
        m = T.alloc_local((1,), "bool")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            m[0] = M[k]
            if m[0]:
                T.copy(A[k * 32, 0], a)
                T.copy(B, b)
                T.gemm(a, b, c)
        T.copy(c, C)
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_pipeline_skips_products(target: str) -> None:
    runs(PRODUCT, target)


@pytest.mark.parametrize("line", ["x[0] = A[T.get_thread_binding() % 64]", "x[T.get_thread_binding() % 2] = 1"])
def test_values_of_each_thread_are_refused(line: str) -> None:
    body = f"""
x = T.alloc_local((2,), "float32")
{line}
for i in T.Parallel(64):
    B[i] = A[i] * x[0]
"""
    with pytest.raises(CompileError) as refused:
        run(body)
    assert [d.code for d in refused.value.diagnostics] == ["thread-dependent"]


def test_values_under_a_condition_are_refused() -> None:
    body = """
x = T.alloc_local((1,), "float32")
x[0] = 1
if A[T.get_thread_binding() % 64] > 0:
    x[0] = 2
for i in T.Parallel(64):
    B[i] = A[i] * x[0]
"""
    with pytest.raises(CompileError) as refused:
        run(body)
    assert [d.code for d in refused.value.diagnostics] == ["thread-dependent"]


def test_atomic_operations_on_an_array_of_each_thread_are_refused() -> None:
    body = 'm = T.alloc_local((1,), "float32")\nm[0] = A[0]\nT.atomic_add(m[0], 1.0)\nB[0] = m[0]\n'
    with pytest.raises(CompileError, match="works on tensors and shared tiles"):
        run(body)
