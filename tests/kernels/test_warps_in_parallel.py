"""Shuffles, votes and reductions of a warp inside T.Parallel, and tensors of truth values, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from test_scalar_names import TARGETS, run

from tilec.driver.build import Observer, build_kernel
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

LANES = """
@T.prim_func
def k(A: T.Tensor((6, 96), "float32"), B: T.Tensor((6, 96), "float32"), C: T.Tensor((6, 96), "int32"),
      D: T.Tensor((6, 96), "uint64"), E: T.Tensor((6, 96), "float16"), H: T.Tensor((6, 96), "float16")):
    with T.Kernel(2, threads=THREADS) as bx:
        S = T.alloc_shared((3, 96), "float32")
        for i, j in T.Parallel(3, 96):
            S[i, j] = T.shfl_xor(A[bx * 3 + i, j], 5) + A[bx * 3 + i, j]
        for i, j in T.Parallel(3, 96):
            x = S[i, j]
            B[bx * 3 + i, j] = T.warp_reduce_max(x) - T.shfl_sync(x, 7)
            C[bx * 3 + i, j] = T.any_sync(x > 2.5) + 2 * T.all_sync(x > -3.0)
            D[bx * 3 + i, j] = T.ballot(x > 0)
            E[bx * 3 + i, j] = T.shfl_down(H[bx * 3 + i, j], 3, 8)
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [32, 64, 256])
def test_neighbours_are_the_lanes_of_a_warp(threads: int, target: str) -> None:
    found = run(LANES.replace("THREADS", str(threads)), target)
    a = found["A"].reshape(6, 3, 32)
    lane = np.arange(32)
    x = (a[..., lane ^ 5] + a).astype(np.float32)
    largest = np.repeat(x.max(-1, keepdims=True) - x[..., 7:8], 32, -1)
    np.testing.assert_array_equal(found["B"].reshape(x.shape), largest)
    votes = (x > 2.5).any(-1).astype(np.int32) + 2 * (x > -3.0).all(-1)
    np.testing.assert_array_equal(found["C"].reshape(x.shape), np.repeat(votes[..., None], 32, -1))
    bits = ((x > 0).astype(np.uint64) << lane.astype(np.uint64)).sum(-1)
    np.testing.assert_array_equal(found["D"].reshape(x.shape), np.repeat(bits[..., None], 32, -1))
    down = np.where(lane % 8 + 3 < 8, lane + 3, lane)
    np.testing.assert_array_equal(found["E"].reshape(x.shape), found["H"].reshape(x.shape)[..., down])


TRUTH = """
@T.prim_func
def k(M: T.Tensor((64, 8), "bool"), A: T.Tensor((64, 8), "float32"), B: T.Tensor((64, 8), "bool"),
      C: T.Tensor((64, 4), "int32"), D: T.Tensor((64, 8), "bool"), E: T.Tensor((64, 8), "float32")):
    with T.Kernel(2, threads=64) as bx:
        t = T.get_thread_binding()
        S = T.alloc_shared((32, 8), "bool")
        F = T.alloc_fragment((32, 8), "bool")
        L = T.alloc_local((8,), "bool")
        T.copy(M[bx * 32, 0], S)
        T.copy(S, F)
        for i, j in T.Parallel(32, 8):
            F[i, j] = F[i, j] != (A[bx * 32 + i, j] > 0)
            E[bx * 32 + i, j] = T.if_then_else(S[i, j], A[bx * 32 + i, j], 0.0)
        T.copy(F, B[bx * 32, 0])
        if t < 32:
            for j in T.serial(8):
                L[j] = S[t, j] and j % 2 == 0
                D[bx * 32 + t, j] = not L[j]
            C[bx * 32 + t, 0] = T.any_of(S[t, :])
            C[bx * 32 + t, 1] = T.all_of(M[bx * 32 + t, 2:4])
            C[bx * 32 + t, 2] = T.any_of(L)
            C[bx * 32 + t, 3] = T.cast(S[t, 0], "int32") + S[t, 1] + 4 * M[bx * 32 + t, 7]
"""


@pytest.mark.parametrize("target", TARGETS)
def test_truth_values_in_tensors_and_tiles(target: str) -> None:
    m = np.random.default_rng(2).random((64, 8)) < 0.3
    found = run(TRUTH, target, M=m)
    a = found["A"]
    np.testing.assert_array_equal(found["B"], m != (a > 0))
    np.testing.assert_array_equal(found["E"], np.where(m, a, 0))
    local = m & (np.arange(8) % 2 == 0)
    np.testing.assert_array_equal(found["D"], ~local)
    wanted = (m.any(1), m[:, 2:4].all(1), local.any(1), m[:, 0].astype(int) + m[:, 1] + 4 * m[:, 7])
    np.testing.assert_array_equal(found["C"], np.stack(wanted, 1).astype(np.int32))


def test_all_threads_meet_at_the_barrier_of_the_block() -> None:
    """The others belong to roles and to the kernel."""
    text = """
import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding()
        A[t] = T.syncthreads_or(t > 62) + T.syncthreads_count(t > 3)
"""
    made = build_kernel(SourceFile("k.tl", text), CompileOptions(), Observer())
    barriers = [line.split(",")[1].strip() for line in made.ptx.splitlines() if "bar.red" in line]
    assert barriers == ["0", "0"]
