"""Waits for a barrier in one thread of a role, against numpy: all threads of the role wait."""

from __future__ import annotations

import pytest
from snippets import HEAD, runs

from tilec.driver.build import Observer, build_kernel
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

HANDED = f"""{HEAD}
@T.prim_func
def kernel(A: T.Tensor((8, 32), "int32"), B: T.Tensor((8, 32), "int32")):
    with T.Kernel(2, threads=96) as bx:
        rows = T.alloc_shared((2, 32), "int32")
        full = T.alloc_barrier([32] * 2)
        empty = T.alloc_barrier([32] * 2)
        tx = T.get_thread_binding()
        if tx < 32:
            for k in T.serial(8):
                if tx == 5 and bx == 0:
                    T.barrier_wait(empty[k % 2], (k // 2 + 1) % 2)
                if bx == 1 and tx == 0:
                    T.barrier_wait(empty[k % 2], (k // 2 + 1) % 2)
                rows[k % 2, tx] = A[k, tx] + k
                T.barrier_arrive(full[k % 2])
        elif tx < 64:
            for k in T.serial(8):
                if tx == 32:
                    T.barrier_wait(full[k % 2], k // 2 % 2)
                if bx == 0:
                    B[k, tx - 32] = rows[k % 2, tx - 32]
                T.barrier_arrive(empty[k % 2])
"""


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_role_waits_where_one_of_its_threads_does(target: str) -> None:
    """Check two hand-overs, with conditions on the block beside those on the thread."""
    runs(HANDED, target)


def test_a_wait_that_others_of_the_role_would_end_is_refused() -> None:
    """Check that an arrival of the threads which do not wait is named: on the machine they would go on."""
    text = HANDED.replace(
        "T.barrier_arrive(full[k % 2])", "if tx != 5:\n                    T.barrier_arrive(full[k % 2])"
    )
    with pytest.raises(CompileError, match="though only some ask for it, and others arrive by themselves"):
        build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())


def test_a_wait_that_depends_on_data_of_the_thread_is_refused() -> None:
    text = HANDED.replace("if tx == 32:", "if A[0, tx - 32] > 0:")
    with pytest.raises(CompileError, match="is under a condition on the thread"):
        build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())
