"""What decides which tiles are copied is known to every role from the beginning, or there is one role."""

from __future__ import annotations

from tilec.driver.build import Observer, plan_kernel
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

COUNTED = """import tilelang.language as T


@T.prim_func
def kernel(N: T.Tensor((8,), "int32"), A: T.Tensor((64, 1024), "float16"), B: T.Tensor((1024, 64), "float16"),
           C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        counts = T.alloc_shared((8,), "int32")
        A_shared = T.alloc_shared((64, 64), "float16")
        B_shared = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        for i in T.Parallel(8):
            counts[i] = N[i] * 2
        T.clear(acc)
        for k in T.Pipelined(counts[3], num_stages=3):
            T.copy(A[0, k * 64], A_shared)
            T.copy(B[k * 64, 0], B_shared)
            T.gemm(A_shared, B_shared, acc)
        T.copy(acc, C)
"""


def test_a_count_that_the_kernel_computes_leaves_one_role() -> None:
    made = plan_kernel(SourceFile("k.tl", COUNTED), CompileOptions(target="sm_90a"), Observer())
    (roles,) = (decision for decision in made.decisions if decision.what == "roles")
    assert (roles.chosen, roles.why) == ("all warps alike", "the copies depend on counts, which the kernel computes")


def test_a_count_that_the_caller_gives_leaves_a_producer() -> None:
    given = COUNTED.replace("T.Pipelined(counts[3]", "T.Pipelined(N[3]")
    made = plan_kernel(SourceFile("k.tl", given), CompileOptions(target="sm_90a"), Observer())
    (roles,) = (decision for decision in made.decisions if decision.what == "roles")
    assert "producer" in roles.chosen
