"""Statements under conditions on the thread, against numpy: the threads that meet them do the work of whole tiles."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import HEAD, kernel

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import KernelArguments
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile


def run(text: str, target: str = "sm_80") -> tuple[KernelArguments, KernelArguments]:
    """The arguments before and behind a launch."""
    made = build_kernel(SourceFile("kernel.tl", text), CompileOptions(target=target), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 0)
    found = given.copy()
    emulate.emulate_build(made, found)
    return given, found


WORK_OF_SOME = f"""{HEAD}
@T.prim_func
def kernel(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32"), S: T.Tensor((64,), "float32")):
    with T.Kernel(2, threads=128) as bx:
        tx = T.get_thread_binding()
        s = T.alloc_shared((32, 64), "float32")
        sums = T.alloc_shared((32,), "float32")
        if tx < 48:
            T.copy(A[bx * 32, 0], s)
            f = T.alloc_fragment((32, 64), "float32")
            r = T.alloc_fragment((32,), "float32")
            T.copy(s, f)
            T.reduce_sum(f, r, dim=1)
            T.copy(r, sums)
            first = sums[0]
            count = T.alloc_var("int32", 0)
            while count < 2:
                count += 1
            T.sync_threads()
            for i in T.Parallel(32):
                sums[i] = sums[i] - first + count
        elif tx >= 100 and bx == 0:
            for i in T.Parallel(32):
                S[i] = 3.0
        for i, j in T.Parallel(32, 64):
            B[bx * 32 + i, j] = s[i, j]
        if tx < 32 and bx == 1:
            S[32 + tx] = sums[tx]
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_known_threads_work_on_whole_tiles(target: str) -> None:
    given, found = run(WORK_OF_SOME, target)
    a = given.tensors["A"]
    sums = a[32:].sum(axis=1)
    np.testing.assert_array_equal(found.tensors["B"], a)
    np.testing.assert_array_equal(found.tensors["S"][:32], 3)
    np.testing.assert_allclose(found.tensors["S"][32:], sums - sums[0] + 2, rtol=1e-5, atol=1e-4)


def test_barriers_count_the_threads_that_reach_them() -> None:
    body = """
tx = T.get_thread_binding()
s = T.alloc_shared((64,), "int32")
value = T.alloc_var("int32")
if tx < 48:
    s[tx] = tx
    for i in T.serial(3):
        T.sync_threads(2, 64)
        if tx < 47 - i:
            value = s[tx + 1]
        T.sync_threads(2, 64)
        if tx < 47 - i:
            s[tx] += value
    B[tx] = s[tx]
"""
    _, found = run(kernel('B: T.Tensor((48,), "int32")', body))
    s = np.arange(48)
    for i in range(3):
        s[: 47 - i] += s[1 : 48 - i]
    np.testing.assert_array_equal(found.tensors["B"], s)


def test_a_condition_that_no_thread_meets_leaves_tiles_alone() -> None:
    body = """
s = T.alloc_shared((64,), "float32")
T.fill(s, 1)
if T.get_thread_binding() >= 128:
    T.fill(s, 2)
T.copy(s, B)
"""
    _, found = run(kernel('B: T.Tensor((64,), "float32")', body))
    np.testing.assert_array_equal(found.tensors["B"], 1)


def test_variables_that_some_threads_set_stay_their_own() -> None:
    body = """
tx = T.get_thread_binding()
x = T.alloc_var("int32", 1)
s = T.alloc_shared((64,), "int32")
if tx < 64:
    x = 5
    T.fill(s, 2)
    x += s[0]
B[tx] = x
"""
    _, found = run(kernel('B: T.Tensor((128,), "int32")', body))
    np.testing.assert_array_equal(found.tensors["B"], np.where(np.arange(128) < 64, 7, 1))


def test_a_grid_without_extents_has_one_block() -> None:
    text = f"""{HEAD}
@T.prim_func
def kernel(A: T.Tensor((16,), "float32"), B: T.Tensor((16,), "float32")):
    with T.Kernel(threads=16):
        t = T.get_thread_binding()
        B[t] = A[t] + 1
"""
    given, found = run(text)
    np.testing.assert_array_equal(found.tensors["B"], given.tensors["A"] + np.float32(1))


def test_numbers_before_the_launch_are_computed_from_parameters() -> None:
    text = f"""{HEAD}
@T.prim_func
def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), first: T.int32):
    start = first - 60
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = A[(start + i + 128) % 64]
"""
    made = build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_80"), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    expected = found.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(made.kernel, expected)
    np.testing.assert_array_equal(found.tensors["B"], expected.tensors["B"])
    start = int(found.scalars["first"]) - 60
    np.testing.assert_array_equal(found.tensors["B"], found.tensors["A"][(start + np.arange(64) + 128) % 64])


def test_threads_add_slices_of_their_own() -> None:
    text = f"""{HEAD}
@T.prim_func
def kernel(I: T.Tensor((32,), "int32"), A: T.Tensor((32, 4), "float32"), B: T.Tensor((8, 4), "float32"),
           C: T.Tensor((2, 2), "float32")):
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding()
        T.atomic_addx4(B[I[t], 0:4], A[t, 0:4])
        for i in T.Parallel(2):
            T.atomic_addx2(C[i, 0:2], A[i, 2:4])
"""
    made = build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    found.tensors["I"][...] = np.arange(32) % 7
    b, c, a = found.tensors["B"].copy(), found.tensors["C"].copy(), found.tensors["A"]
    np.add.at(b, np.arange(32) % 7, a)
    emulate.emulate_build(made, found)
    np.testing.assert_allclose(found.tensors["B"], b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.tensors["C"], c + a[:2, 2:], rtol=1e-6)
