"""Rows that are scanned, reduced and rounded: the values, and the instructions and barriers that they take."""

from __future__ import annotations

import pytest
from snippets import kernel, runs

TILES = 'A: T.Tensor(({rows}, {columns}), "{dtype}"), B: T.Tensor(({rows}, {columns}), "{dtype}")'
SCAN = """
x = T.alloc_fragment(({rows}, {columns}), "{dtype}")
y = T.alloc_fragment(({rows}, {columns}), "{dtype}")
T.copy(A, x)
T.cum{kind}(x, y, dim={dim}, reverse={reverse})
T.copy(y, B)
"""


def scan(rows: int, columns: int, kind: str = "sum", dim: int = 1, reverse: bool = False, threads: int = 128) -> str:
    sizes = {"rows": rows, "columns": columns, "dtype": "int32"}
    return kernel(TILES.format(**sizes), SCAN.format(**sizes, kind=kind, dim=dim, reverse=reverse), threads)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    ("rows", "columns", "threads"),
    [(1, 1, 64), (3, 2, 32), (4, 512, 128), (1, 1000, 256), (2, 4096, 512), (3, 100, 48), (70, 6, 96), (130, 24, 128)],
)
def test_scans_agree(rows: int, columns: int, threads: int, dim: int, kind: str, reverse: bool, target: str) -> None:
    """Rows in a thread, in a warp and across warps; tiles that threads overhang."""
    runs(scan(rows, columns, kind, dim, reverse, threads), target)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_products_are_scanned_where_they_are(dim: int, target: str) -> None:
    params = 'A: T.Tensor((64, 32), "float16"), B: T.Tensor((32, 64), "float16"), C: T.Tensor((64, 64), "float32")'
    body = f"""
a = T.alloc_shared((64, 32), "float16")
b = T.alloc_shared((32, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
T.copy(A, a)
T.copy(B, b)
T.gemm(a, b, c, clear_accum=True)
T.cumsum(c, dim={dim})
T.copy(c, C)
"""
    runs(kernel(params, body), target)


def test_rows_in_warps_are_scanned_without_barriers() -> None:
    assert "bar.sync" not in runs(scan(4, 512), "sm_90a").ptx


def test_rows_across_warps_are_scanned_with_one_barrier() -> None:
    assert runs(scan(1, 512), "sm_90a").ptx.count("bar.sync") == 1


def test_reduced_rows_lie_in_few_threads() -> None:
    """Sixteen rows in 128 threads: eight threads a row, which meet in three shuffles."""
    text = kernel(
        'A: T.Tensor((16, 256), "float32"), B: T.Tensor((16,), "float32")',
        'x = T.alloc_fragment((16, 256), "float32")\ntotal = T.alloc_fragment((16,), "float32")\n'
        "T.copy(A, x)\nT.reduce_sum(x, total, dim=1)\nT.copy(total, B)",
    )
    ptx = runs(text, "sm_90a").ptx
    assert (ptx.count("shfl.sync.bfly"), ptx.count("bar.sync")) == (3, 0)


ROUND = """
for i in T.Parallel(1024):
    B[i] = T.cast(T.{fn}(A[i] * 300.0), "{dtype}")
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64"])
@pytest.mark.parametrize("fn", ["nearbyint", "floor", "ceil", "trunc", "float32"])
def test_rounded_floats_agree(fn: str, dtype: str, target: str) -> None:
    """Many are out of the small types' range, and take its ends."""
    params = f'A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "{dtype}")'
    runs(kernel(params, ROUND.format(fn=fn, dtype=dtype)), target)


def test_four_floats_are_rounded_and_packed_at_once() -> None:
    params = 'A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "int8")'
    ptx = runs(kernel(params, ROUND.format(fn="nearbyint", dtype="int8")), "sm_90a").ptx
    assert ptx.count("cvt.rni.s32.f32") == 2 * ptx.count("cvt.pack.sat.s8.s32.b32") == 8
    assert "min.s32" not in ptx and "cvt.rni.f32" not in ptx


@pytest.mark.parametrize(("apart", "barriers"), [(128, 1), (64, 3)])
def test_stores_of_threads_to_other_parts_of_a_tile_need_no_barrier(apart: int, barriers: int) -> None:
    """Before the loads, of other threads' elements, there is one; between the stores where they overlap."""
    text = kernel(
        'A: T.Tensor((512,), "float32"), B: T.Tensor((512,), "float32")',
        's = T.alloc_shared((512,), "float32")\nthread = T.get_thread_binding()\ns[384 + thread] = A[thread]\n'
        f"for r in T.unroll(3):\n    s[{apart} * r + thread] = A[{apart} * r + thread]\n"
        f"for r in T.unroll(3):\n    B[128 * r + thread] = s[{apart} * 2 - {apart} * r + thread]",
    )
    assert runs(text, "sm_90a").ptx.count("bar.sync") == barriers


COLUMNS = """
x = T.alloc_fragment(({rows}, {columns}), "{dtype}")
y = T.alloc_fragment(({columns},), "{dtype}")
T.copy(A, x)
T.reduce_{kind}(x, y, dim=0)
for i, j in T.Parallel({rows}, {columns}):
    x[i, j] = x[i, j] - y[j]
T.copy(x, B)
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("sum", "int32"), ("sum", "float32"), ("max", "float32"), ("min", "int64")]
)
@pytest.mark.parametrize(
    ("rows", "columns", "threads"), [(64, 512, 512), (32, 128, 256), (256, 32, 512), (48, 64, 384), (16, 1024, 256)]
)
def test_columns_across_warps_agree(rows: int, columns: int, threads: int, kind: str, dtype: str, target: str) -> None:
    """As many values as warps, more, or fewer."""
    sizes = {"rows": rows, "columns": columns, "dtype": dtype}
    runs(kernel(TILES.format(**sizes), COLUMNS.format(**sizes, kind=kind), threads), target)


def test_warps_divide_the_columns_that_they_add_up() -> None:
    """Of 4 columns in each thread and 4 warps of a column, a thread reads the parts of one, and the totals of all."""
    sizes = {"rows": 64, "columns": 512, "dtype": "float32"}
    ptx = runs(kernel(TILES.format(**sizes), COLUMNS.format(**sizes, kind="sum"), 512), "sm_90a").ptx
    assert ptx.count("ld.shared") == 4 + 4
