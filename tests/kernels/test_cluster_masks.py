"""`cluster_mask=`: the blocks of a mask get the box of the first of them, whatever its place is computed from."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

BY_HAND = """@T.prim_func
def kernel(A: T.Tensor((8, 2, 16, 64), "float16"), B: T.Tensor((8, 2, 16, 64), "float16")):
    with T.Kernel(8, threads=128, cluster_dims=4) as bx:
        tile = T.alloc_shared((2, 16, 64), "float16")
        full = T.alloc_barrier([1, 1])
        for k in T.serial(2):
            if T.get_thread_binding() == 0:
                T.tma_copy(A[bx, k, :, :], tile[k, :, :], barrier=full[k], cluster_mask=0b0110)
                T.barrier_arrive(full[k])
            T.barrier_wait(full[k], 0)
            T.copy(tile[k, :, :], B[bx, k, :, :])
"""
LOADED = """@T.prim_func
def kernel(A: T.Tensor((8, 16, 64), "float16"), rows: T.Tensor((4,), "int32"), B: T.Tensor((4, 16, 64), "float16")):
    with T.Kernel(4, threads=128, cluster_dims=2) as bx:
        tile = T.alloc_shared((16, 64), "float16")
        row = rows[bx]
        T.copy_cluster(A[row, :, :], tile, cluster_mask=0b11)
        T.copy(tile, B[bx, :, :])
"""


def run_kernel(text: str, **tensors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compile and emulate a kernel; return its A and B, and B of the tile IR run by numpy."""
    made = build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    given.tensors.update(tensors)
    reference = given.copy()
    emulate.emulate_build(made, given)
    emulate.run_reference(made.kernel, reference)
    return given.tensors["A"], given.tensors["B"], reference.tensors["B"]


def test_a_copy_by_hand_loads_the_box_of_the_first_block_of_the_mask() -> None:
    a, found, reference = run_kernel(BY_HAND)
    expected = a[[0, 1, 1, 3, 4, 5, 5, 7]]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(reference, expected)


def test_the_place_of_the_box_may_be_loaded() -> None:
    rows = np.array([6, 1, 3, 7], np.int32)
    a, found, reference = run_kernel(LOADED, rows=rows)
    np.testing.assert_array_equal(found, a[[6, 6, 3, 3]])
    np.testing.assert_array_equal(reference, a[[6, 6, 3, 3]])


def test_a_place_that_the_other_blocks_cannot_compute_is_refused() -> None:
    text = LOADED.replace("row = rows[bx]", "row = T.alloc_var('int32')\n        row = bx")
    with pytest.raises(CompileError, match="the first block of the mask"):
        build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())


def test_a_counter_that_all_blocks_set_alike_gives_the_place() -> None:
    """Check that a variable of the kernel is accepted where no block sets it otherwise than the others."""
    text = LOADED.replace("row = rows[bx]", "row = T.alloc_var('int32')\n        row = rows[3] + 1")
    a, found, _ = run_kernel(text, rows=np.array([6, 1, 3, 4], np.int32))
    np.testing.assert_array_equal(found, a[[5, 5, 5, 5]])
