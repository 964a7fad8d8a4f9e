from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tilec.ir import tile
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ir.tile import Bind, Kernel, MinBlocks, Raster, Var
from tilec.ir.tile_verify.verify import verify_tile
from tilec.ops.copies.copy import Copy
from tilec.passes.grid.rasterise import rasterise_blocks
from tilec.rewriting.fold_constants import compute_expr, fold_expr
from tilec.support.diagnostics import CompileError

X, Y, Z = Var("x"), Var("y"), Var("z")


def walk(grid: tuple[int, ...], panel: int, by_rows: bool) -> list[tuple[int, ...]]:
    """The blocks in the order of the hardware's numbers, as the kernel calls them."""
    block_vars = (X, Y, Z)[: len(grid)]
    made = rasterise_blocks(Kernel("k", (), grid, block_vars, 32, (), (), raster=Raster(panel, by_rows)))
    found = []
    for place in itertools.product(*(range(e) for e in reversed(grid))):
        values = dict(zip(made.block_vars, reversed(place), strict=True))
        for bind in made.body:
            assert isinstance(bind, Bind)
            value = compute_expr(fold_expr(bind.value), values)
            assert isinstance(value, int)
            values[bind.var] = value
        found.append(tuple(values[v] for v in block_vars))
    return found


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("grid", [(3, 5), (5, 3), (4, 4), (7, 2, 3), (1, 6), (6, 1), (9,)], ids=str)
@pytest.mark.parametrize("panel", [1, 2, 3, 10])
def test_every_block_comes_once(grid: tuple[int, ...], panel: int, by_rows: bool) -> None:
    assert sorted(walk(grid, panel, by_rows)) == sorted(itertools.product(*(range(e) for e in grid)))


def test_panels_are_walked_there_and_back() -> None:
    assert walk((3, 5), 2, True) == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3), (1, 2), (1, 3), (0, 2), (0, 3), (0, 4), (1, 4),
        (2, 4),
    ]  # fmt: skip
    assert walk((4, 2), 2, False) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (3, 1), (2, 0), (3, 0)]


TILES = """
s = T.alloc_shared((8, 64), "float16")
x = T.alloc_fragment((8, 16), "float32")
T.annotate_layout({s: T.Layout((8, 64), lambda i, j: (i, (j // 8 ^ i % 8) * 8 + j % 8)),
                   x: T.Fragment((8, 16), forward_fn=lambda i, j: (i * 16 + j, 0))})
T.clear(s)
T.clear(x)
"""


def test_layouts_are_part_of_the_text(body: Callable[..., Kernel]) -> None:
    made = body(TILES)
    text = print_kernel(made)
    assert "  layout s: swizzle(128)\n  layout x: fragment([8, 16], lambda %0, %1: (%0 * 16 + %1, 0))\n" in text
    assert list(verify_tile(made)) == []
    again = read_kernel(text)
    assert print_kernel(again) == text and again.layouts == made.layouts


@pytest.mark.parametrize(
    ("place", "swizzle"),
    [
        ("i * 64 + j", 0),
        ("(i, j)", 0),
        ("(j // 64, i, j % 64)", 0),
        ("i * 64 + (j // 8 ^ i % 8) * 8 + j % 8", 128),
        ("j // 32 * 256 + i * 32 + (j % 32 // 8 ^ i // 2 % 4) * 8 + j % 8", 64),
    ],
)
def test_a_layout_is_recognised_by_where_it_puts_elements(
    body: Callable[..., Kernel], place: str, swizzle: int
) -> None:
    text = f's = T.alloc_shared((8, 64), "float16")\nT.annotate_layout({{s: T.Layout((8, 64), lambda i, j: {place})}})'
    assert [p.layout for p in body(f"{text}\nT.clear(s)").layouts] == [swizzle]


def test_what_lies_outside_is_asked_for_only_where_a_read_may_leave(body: Callable[..., Kernel]) -> None:
    text = 's = T.alloc_shared((8, 8), "float16")\nT.annotate_safe_value({A: 2})\nT.copy(A[%s, 0], s)'
    params = 'A: T.Tensor((16, 8), "float16")'
    assert "copy A[8:+8, :]" in print_kernel(body(text % "8", params))
    assert "select" in print_kernel(body(text % "9", params)) and "float16(2.0)" in print_kernel(
        body(text % "9", params)
    )


@pytest.mark.parametrize(
    ("row", "column", "is_inside"),
    [
        ("bx * 16", "0", True),
        ("bx * 16 + 1", "0", False),
        ("bx * 16 - 1", "0", False),
        ("(3 - bx) * 16", "k * 8", True),
        ("first", "k * 8", True),
        ("first", "k * 8 + 8", False),
        ("bx * 16", "begin * 8", True),
        ("bx * 16", "T.max(n, 0) * 8", False),
        ("bx * 16", "T.min(T.max(n, 0), 2) * 8", True),
        ("bx * 16", "read", False),
        ("by * 16", "0", False),
    ],
)
def test_copies_that_cannot_leave_a_tensor_stay_copies(
    kernel: Callable[..., Kernel], row: str, column: str, is_inside: bool
) -> None:
    made = kernel(f"""import tilelang.language as T

@T.prim_func
def f(A: T.Tensor((64, 24), "float16"), at: T.Tensor((4,), "int32"), n: T.int32):
    with T.Kernel(4, n, threads=128) as (bx, by):
        T.annotate_safe_value({{A: 2}})
        s = T.alloc_shared((16, 8), "float16")
        first = bx * 16
        read = at[bx]
        for begin in range(2, 3):
            for k in T.Pipelined(3):
                T.copy(A[{row}, {column}], s)
""")
    assert any(isinstance(stmt, Copy) for stmt in tile.walk_statements(made.body)) == is_inside


@pytest.mark.parametrize("count", ["0", "17", "n", "2.0"])
def test_a_number_of_blocks_that_no_multiprocessor_holds_is_refused(body: Callable[..., Kernel], count: str) -> None:
    """Sixteen blocks of 128 threads are 2,048."""
    assert body("T.annotate_min_blocks_per_sm(16)").min_blocks == MinBlocks(16)
    with pytest.raises(CompileError, match=r"T.annotate_min_blocks_per_sm: `n` must be (from 1 to 16|an integer)"):
        body(f"n = 17.5\nT.annotate_min_blocks_per_sm({count})")


def test_a_number_of_blocks_is_given_once(body: Callable[..., Kernel]) -> None:
    with pytest.raises(CompileError, match="given twice"):
        body("T.annotate_min_blocks_per_sm(2)\nT.annotate_min_blocks_per_sm(2)")


def test_swizzle_of_a_line_of_blocks_changes_nothing(body: Callable[..., Kernel]) -> None:
    made = body('x = T.alloc_fragment((8,), "float32")\nT.use_swizzle(4)\nT.clear(x)')
    assert made.raster is not None and rasterise_blocks(made) is made


def test_the_order_is_part_of_the_text(body: Callable[..., Kernel]) -> None:
    ways = {"4": "panels(4, rows)", '4, order="column"': "panels(4, columns)", "4, enable=False": "none"}
    for said, written in ways.items():
        text = print_kernel(body(f'x = T.alloc_fragment((8,), "float32")\nT.use_swizzle({said})\nT.clear(x)'))
        assert f"\n  raster {written}\n" in text and print_kernel(read_kernel(text)) == text
