"""Names of the language that give values while compiling, or arithmetic on what is known at run time only."""

from __future__ import annotations

from tilec.driver.build import Observer, load_kernel
from tilec.ir.text import print_kernel
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """import tilelang.language as T

def sizes(n, dtype: T.dtype = T.dtype("float16")):
    assert T.__tilelang_dialect__ == "cuda"
    assert T.align_up(n, 64) == 128 and T.align_up(128, 64) == 128 and T.align_up(0, 8) == 0
    assert T.index_to_coordinates(23, (2, 3, 4)) == (1, 2, 3)
    assert T.linear_index(5) == 5 and T.linear_index(1, 2, 3, 3, 4) == 23
    assert T.dtype("half") == dtype and T.dtype(dtype) == "float16"
    return T.align_up(n, 64)

@T.prim_func
def k(A: T.Tensor((sizes(100),), "int32"), n: T.int32):
    with T.Kernel(4, threads=32) as bx:
        i, j = T.index_to_coordinates(bx, [2, 2])
        A[T.linear_index(i, j, 2)] = T.align_up(n, 16)
"""


def test_they_compute_at_compile_time_and_at_run_time() -> None:
    source = SourceFile("k.tl", KERNEL)
    text = print_kernel(load_kernel(source, CompileOptions(), Observer()))
    assert "A: int32[128]" in text
    assert "i: int32 = bx // 2" in text and "j: int32 = bx % 2" in text
    assert "A[i * 2 + j] = (n + 15) // 16 * 16" in text
