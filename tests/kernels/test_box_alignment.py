"""Tiles whose rows or panels would begin anywhere: what TMA and matrix descriptors reach of them is aligned all the
same, or something else reaches it."""

from __future__ import annotations

import pytest
from snippets import TARGETS, kernel, runs

from tilec.driver.build import Build
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations

HOPPER = ("sm_90a", "sm_100a")


def stored_by_tma(made: Build) -> bool:
    return any(isinstance(op, warp.TmaStore) for op in made.program.operations())


def through(rows: int, columns: int, dtype: str, layout: str = "") -> str:
    """Loads a tile, reads a column of it, and stores it as it came."""
    shape = f"({rows}, {columns})"
    asked = f"T.annotate_layout({{tile: tilelang.layout.{layout}(tile)}})\n" if layout else ""
    return kernel(
        f'A: T.Tensor({shape}, "{dtype}"), B: T.Tensor({shape}, "{dtype}"), column: T.Tensor(({rows},), "{dtype}")',
        f'tile = T.alloc_shared({shape}, "{dtype}")\n{asked}'
        f"T.copy(A, tile)\nfor i in T.Parallel({rows}):\n    column[i] = tile[i, 5]\nT.copy(tile, B)",
    )


@pytest.mark.parametrize("target", HOPPER)
@pytest.mark.parametrize("layout", ["", "make_swizzled_layout", "make_linear_layout"])
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"), [(9, 48, "float16"), (21, 24, "float32"), (5, 304, "bfloat16"), (11, 96, "int8")]
)
def test_tiles_of_odd_rows(rows: int, columns: int, dtype: str, layout: str, target: str) -> None:
    runs(through(rows, columns, dtype, layout), target)


def test_one_panel_is_enough() -> None:
    """What lies in one piece begins where the tile does."""
    assert stored_by_tma(runs(through(9, 48, "float16"), "sm_90a"))
    assert not stored_by_tma(runs(through(5, 304, "float16"), "sm_90a"))


@pytest.mark.parametrize("target", HOPPER)
def test_versions_of_a_small_swizzled_tile(target: str) -> None:
    """TMA permutes by the address: each version begins where the swizzle does."""
    text = kernel(
        'A: T.Tensor((12, 16), "float32"), B: T.Tensor((12, 16), "float32")',
        'tile = T.alloc_shared((2, 16), "float32")\n'
        "T.annotate_layout({tile: tilelang.layout.make_swizzled_layout(tile)})\n"
        "for k in T.Pipelined(6, num_stages=3):\n"
        "    T.copy(A[k * 2, 0], tile)\n"
        "    for i, j in T.Parallel(2, 16):\n        B[k * 2 + i, j] = tile[i, 15 - j]\n",
    )
    for strategy in ("auto", "warp-specialize"):
        runs(text, target, strategy)


@pytest.mark.parametrize("target", HOPPER)
@pytest.mark.parametrize("rows", [100, 104])
def test_products_of_parts_of_odd_tiles(rows: int, target: str) -> None:
    """wgmma takes those whose panels each begin a pattern of eight rows."""
    text = kernel(
        f'A: T.Tensor(({rows}, 128), "float16"), B: T.Tensor((64, 128), "float16"), C: T.Tensor((64, 64), "float32")',
        f'a = T.alloc_shared(({rows}, 128), "float16")\nb = T.alloc_shared((64, 128), "float16")\n'
        'c = T.alloc_fragment((64, 64), "float32")\nT.copy(A, a)\nT.copy(B, b)\nT.clear(c)\n'
        "T.gemm(a[32:96, :], b, c, transpose_B=True)\nT.copy(c, C)",
    )
    made = runs(text, target)
    if target == "sm_90a":
        assert any(isinstance(op, warp.Wgmma) for op in made.program.operations()) == (rows % 8 == 0)
    assert not list(program_violations(made.program))


@pytest.mark.parametrize("dtype", ["int4", "float4_e2m1fn", "bool", "float8_e8m0fnu"])
@pytest.mark.parametrize("columns", [64, 128, 320])
def test_swizzles_are_of_bytes(columns: int, dtype: str) -> None:
    """Two elements of four bits share one, and a bool has one."""
    shape = f"(24, {columns})"
    text = kernel(
        f'A: T.Tensor({shape}, "{dtype}"), B: T.Tensor({shape}, "{dtype}")',
        f's = T.alloc_shared({shape}, "{dtype}")\nT.annotate_layout({{s: tilelang.layout.make_swizzled_layout(s)}})\n'
        "T.copy(A, s)\nT.copy(s, B)",
    )
    for target in TARGETS:
        runs(text, target)
