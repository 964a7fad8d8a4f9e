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


FLAG = f"""{HEAD}
@T.prim_func
def kernel(B: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        flag = T.alloc_shared((1,), "int32")
        full = T.alloc_barrier([32])
        tx = T.get_thread_binding()
        if tx == 1:
            flag[0] = 0
        if tx < 32:
            BEFORE
            if tx == 0:
                T.barrier_wait(full, 0)
            BEHIND
            B[tx] = 3
        else:
            seen = T.alloc_var("int32", 0)
            while seen == 0:
                seen = T.atomic_load(flag[0], memory_order="acquire")
            T.barrier_arrive(full)
            B[tx] = seen
"""
"""Two roles: the second arrives when it has seen the first's flag."""
LOOP = """while seen == 0:
                seen = T.atomic_load(flag[0], memory_order="acquire")"""
SET = "if tx == 1:\n                T.atomic_store(flag[0], 1, memory_order='release')"


def test_a_flag_may_be_set_before_the_wait() -> None:
    runs(FLAG.replace("BEFORE", SET).replace("BEHIND", "pass"), "sm_90a")


def test_another_flag_of_the_same_array_does_not_matter() -> None:
    text = FLAG.replace('alloc_shared((1,), "int32")', 'alloc_shared((2,), "int32")').replace("BEFORE", SET)
    runs(text.replace("BEHIND", SET.replace("flag[0]", "flag[1]")), "sm_90a")


@pytest.mark.parametrize("loop", [LOOP, "while flag[0] == 0:\n                pass"], ids=["atomic", "plain"])
def test_a_wait_for_a_flag_that_another_thread_sets_behind_it_is_refused(loop: str) -> None:
    text = FLAG.replace(LOOP, loop).replace("BEFORE", "pass").replace("BEHIND", SET)
    with pytest.raises(CompileError, match="and others write what a loop reads by themselves"):
        build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())
