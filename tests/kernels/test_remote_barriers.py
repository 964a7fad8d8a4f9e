"""T.copy_cluster that arrives at a barrier of the block it copies to, read there by TMA and by threads: emulator."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import HEAD

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TEXT = f"""{HEAD}@T.prim_func
def kernel(A: T.Tensor((2, 4, 64), "float32"), B: T.Tensor((2, 4, 64), "float32")):
    with T.Kernel(2, threads=128, cluster_dims=2) as bx:
        s = T.alloc_shared((4, 64), "float32")
        d = T.alloc_shared((2, 4, 64), "float32")
        arrived = T.alloc_cluster_barrier([1] * 2)
        T.cluster_sync()
        if bx == 0:
            for k in T.unroll(2):
                T.copy(A[k, 0:4, 0:64], s)
                T.copy_cluster(s, d[k, :, :], dst_block=1, remote_barrier=arrived[k])
        if bx == 1:
            T.mbarrier_wait_parity(arrived[0], 0)
            T.copy(d[0, :, :], B[0, 0:4, 0:64])
            T.mbarrier_wait_parity(arrived[1], 0)
            for i, j in T.Parallel(4, 64):
                B[1, i, j] = d[1, i, j] + 1
"""


def test_the_other_block_waits_for_the_copy() -> None:
    made = build_kernel(SourceFile("kernel.tl", TEXT), CompileOptions(target="sm_90a"), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    reference = given.copy()
    emulate.emulate_build(made, given)
    emulate.run_reference(made.kernel, reference)
    expected = given.tensors["A"] + np.array([0, 1], np.float32)[:, None, None]
    np.testing.assert_array_equal(given.tensors["B"], expected)
    np.testing.assert_array_equal(reference.tensors["B"], expected)


def test_a_load_for_several_blocks_has_no_remote_barrier() -> None:
    text = TEXT.replace(
        "T.copy_cluster(s, d[k, :, :], dst_block=1,", "T.copy_cluster(A[k, 0:4, 0:64], s, cluster_mask=3,"
    )
    with pytest.raises(CompileError, match="remote_barrier"):
        build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())
