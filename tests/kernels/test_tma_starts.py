"""A box of TMA begins at a multiple of 16 bytes of a row, or the GPU stops at an illegal instruction, and the emulator
too: where that is not known of a column, something else copies."""

from __future__ import annotations

import pytest
from snippets import kernel, runs

from tilec.driver.build import Build
from tilec.ir import warp


def by_tma(made: Build) -> tuple[bool, bool]:
    """Whether TMA loads, and whether it stores."""
    operations = list(made.program.operations())
    loads, stores = (any(isinstance(op, kind) for op in operations) for kind in (warp.TmaLoad, warp.TmaStore))
    return loads, stores


@pytest.mark.parametrize(("column", "is_multiple"), [("8", True), ("4", False), ("at[0]", False), ("at[0] * 8", True)])
def test_columns(column: str, is_multiple: bool) -> None:
    """Of a pipelined loop with a product, and of what leaves it."""
    text = kernel(
        'A: T.Tensor((64, 256), "float16"), B: T.Tensor((128, 64), "float16"), at: T.Tensor((1,), "uint8"), '
        'C: T.Tensor((64, 512), "float16")',
        'a = T.alloc_shared((64, 64), "float16")\nb = T.alloc_shared((64, 64), "float16")\n'
        'c = T.alloc_fragment((64, 64), "float32")\n'
        f'column: T.int32 = T.Cast("int32", {column})\n'
        "T.clear(c)\nfor k in T.Pipelined(2, num_stages=2):\n"
        "    T.copy(A[0, k * 64 + column], a)\n    T.copy(B[k * 64, 0], b)\n    T.gemm(a, b, c)\n"
        "T.copy(c, C[0, column])",
    )
    made = runs(text, "sm_90a")
    assert by_tma(made) == (is_multiple, is_multiple)


ROLES = """import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((32, 128), "DTYPE"), C: T.Tensor((32, 128), "DTYPE")):
    with T.Kernel(2, threads=256) as bx:
        tile = T.alloc_shared((32, 32), "DTYPE")
        inputs = T.InputTilePipeline((tile,), stages=2)
        with T.ws(1):
            for k in T.serial(2):
                with inputs.producer().acquire() as into:
                    T.copy(A[0, bx * 64 + k * 32 + COLUMN], into.tile)
        with T.ws(0):
            for k in T.serial(2):
                stage = inputs.acquire_consumer()
                for i, j in T.Parallel(32, 32):
                    if bx * 64 + k * 32 + j < 128:
                        C[i, bx * 64 + k * 32 + j] = stage.tile[i, j]
                stage.release()
"""


@pytest.mark.parametrize(
    ("column", "dtype", "is_multiple"), [(4, "float32", True), (4, "float16", False), (-16, "int8", True)]
)
def test_pipelines_of_a_kernels_own(column: int, dtype: str, is_multiple: bool) -> None:
    made = runs(ROLES.replace("DTYPE", dtype).replace("COLUMN", str(column)), "sm_90a")
    assert by_tma(made)[0] == is_multiple


@pytest.mark.parametrize(("column", "is_multiple"), [(4, True), (2, False)])
def test_sums_in_memory(column: int, is_multiple: bool) -> None:
    text = kernel(
        'A: T.Tensor((32, 32), "float32"), C: T.Tensor((32, 64), "float32")',
        f's = T.alloc_shared((32, 32), "float32")\nT.copy(A, s)\nT.atomic_add(C[0, {column}], s)',
    )
    assert by_tma(runs(text, "sm_90a"))[1] == is_multiple
