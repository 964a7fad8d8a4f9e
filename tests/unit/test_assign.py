"""Layouts spread from where they are fixed: what each tile of a kernel gets, and demands that cannot both be met."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import stages

from tilec.ir.layout import (
    Fragment,
    mma_accumulator,
    row_major_fragment,
    swizzled_layout,
    unswizzled_layout,
    wgmma_accumulator,
)
from tilec.ir.tile import For, Kernel, Parallel, TileOp, walk_statements
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.diagnostics import CompileError
from tilec.support.options import Strategy

Make = Callable[..., Kernel]

ROOT = Path(__file__).parents[2]
ATTENTION = (ROOT / "tests/kernels/attention.tl").read_text(encoding="utf-8")
BIAS = (ROOT / "samples/gemm_bias_relu.tl").read_text(encoding="utf-8")


def assignment(kernel: Kernel, target: str = "sm_90a", strategy: Strategy = "auto") -> LayoutAssignment:
    return stages.assignment(kernel, target, strategy).assignment


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_everything_follows_the_accumulators(kernel: Make, target: str) -> None:
    """In attention, the products fix the two big tiles and the row vectors live where the rows are."""
    found = assignment(kernel(ATTENTION), target)
    big = wgmma_accumulator((64, 64), 1, 1) if target == "sm_90a" else mma_accumulator((64, 64), 2, 2)
    assert found.fragments["acc_s"] == found.fragments["acc_o"] == big
    for name in ("m_prev", "m_cur", "alpha", "row", "l"):
        assert found.fragments[name].to_canonical() == big.project((0,)).to_canonical()


def test_a_nest_sweeps_the_registers_of_its_fragment(kernel: Make) -> None:
    found = assignment(kernel(BIAS))
    (nest,) = (s for s in walk_statements(found.kernel.body) if isinstance(s, Parallel))
    assert found.nest_layout(nest) == found.fragments["C_local"] == wgmma_accumulator((128, 128), 2, 1)


def test_what_nothing_fixes_is_coalesced(body: Make) -> None:
    """Runs of 16 bytes of what is copied, though the fragment's own elements are wider."""
    text = 'x = T.alloc_fragment((8, 256), "float32")\nr = T.alloc_fragment((8,), "float32")\n'
    copied = assignment(body(text + "T.copy(X[0, 0], x)\nT.reduce_sum(x, r)", 'X: T.Tensor((8, 256), "float16")'))
    assert copied.fragments["x"] == row_major_fragment((8, 256), 128, 8, 16)
    assert copied.fragments["r"].to_canonical() == row_major_fragment((8, 256), 128, 8, 16).project((0,)).to_canonical()
    alone = assignment(body(text + "T.clear(x)\nT.reduce_sum(x, r)"))
    assert alone.fragments["x"] == row_major_fragment((8, 256), 128, 4, 16)


def test_a_nest_without_fragments_is_coalesced(body: Make) -> None:
    text = "for i, j in T.Parallel(4, 64):\n    Y[i, j] = T.cast(X[i, j], 'float32')"
    found = assignment(body(text, 'X: T.Tensor((4, 64), "float16"), Y: T.Tensor((4, 64), "float32")'))
    (nest,) = found.kernel.body
    assert isinstance(nest, Parallel)
    assert found.nest_layout(nest) == row_major_fragment((4, 64), 128, 4)


def test_a_reduced_dimension_that_is_kept(body: Make) -> None:
    """With extent 1, the column vector still lives where the rows are."""
    text = 'x = T.alloc_fragment((8, 64), "float32")\nr = T.alloc_fragment((8, 1), "float32")\nT.clear(x)\n'
    found = assignment(
        body(text + "T.reduce_max(x, r, dim=1)\nfor i, j in T.Parallel(8, 64):\n    x[i, j] = x[i, j] - r[i, 0]")
    )
    rows = found.fragments["x"].project((0,))
    assert found.fragments["r"].shape == (8, 1)
    assert found.fragments["r"].to_canonical() == Fragment((8, 1), rows.threads, rows.registers).to_canonical()


def test_a_copy_between_fragments_keeps_the_layout(body: Make) -> None:
    """In either direction: the copy is a move of registers."""
    text = 'x = T.alloc_fragment((8, 64), "float32")\ny = T.alloc_fragment((8, 64), "float16")\n'
    copy = "T.copy(X[0, 0], y)\n"
    for move in ("T.copy(x, y)", "T.copy(y, x)"):
        found = assignment(body(text + copy + move, 'X: T.Tensor((8, 64), "float16")'))
        assert found.fragments["x"] == found.fragments["y"]


def test_shared_tiles(kernel: Make) -> None:
    """What the tensor cores, TMA or stmatrix touch is swizzled, everything else is plain."""
    bias = assignment(kernel(BIAS)).shared
    assert bias == {
        "A_shared": swizzled_layout((128, 64), 2),
        "B_shared": swizzled_layout((64, 128), 2),
        "bias_shared": unswizzled_layout((128,), 2),
        "C_local.staging": swizzled_layout((128, 64), 2),  # in chunks
        "C_local.staging.1": swizzled_layout((128, 64), 2),
    }
    assert (bias["A_shared"].swizzle, bias["B_shared"].panels) == (128, 2)
    assert assignment(kernel(BIAS), "sm_80").shared.keys() == {"A_shared", "B_shared", "bias_shared"}


# ---- demands that differ ---------------------------------------------------------------------------------------------

FRAGMENTS = 'x = T.alloc_fragment((64, 64), "float32")\ny = T.alloc_fragment((64, 64), "float32")\n'
SHARED = 's = T.alloc_shared((64, 64), "float16")\n'


FULL_ROW = "T.gemm(s, s, x, policy=T.GemmWarpPolicy.FullRow)"
FULL_COLUMN = "T.gemm(s, s, x, policy=T.GemmWarpPolicy.FullCol)"


@pytest.mark.parametrize(
    ("text", "moved", "passes"),
    [
        (
            "z = T.alloc_fragment((64,), 'float32')\nT.clear(z)\nT.gemm(s, s, x)\nT.reduce_sum(x, z, dim=0)\n"
            "T.reduce_sum(x, z, dim=1)",
            "z",
            1,
        ),
        ("T.gemm(s, s, x)\nfor i, j in T.Parallel(64, 64):\n    x[i, j] = x[j, i]", "x", 1),
        ("T.clear(x)\nfor i, j in T.Parallel(64, 64):\n    y[i, j] = x[i, 63 - j]", "x", 1),
        ("T.clear(x)\nfor i, j in T.Parallel(32, 64):\n    x[i, j] = 1.0", "x", 2),
        ("w = T.alloc_fragment((32, 64), 'float32')\nT.clear(w)\nT.clear(x)\nT.copy(w, x[32:64, 0:64])", "x", 2),
        (f"{FULL_ROW}\n{FULL_COLUMN}", "x", 2),
        (f"{FULL_ROW}\n{FULL_COLUMN.replace('x', 'y')}\nT.copy(x, y)", "x", 1),
    ],
)
def test_conversions(body: Make, text: str, moved: str, passes: int) -> None:
    found = assignment(body(FRAGMENTS + SHARED + text), "sm_80")
    (made,) = found.conversions
    assert (made.buffer.name, made.passes, made.bytes) == (moved, passes, made.staging.bytes * passes)
    assert made.staging in found.kernel.buffers
    assert found.shared.keys() == {"s", made.staging.name}


def test_a_fragment_that_is_turned_needs_no_conversion(body: Make) -> None:
    """Its layout is turned with it."""
    found = assignment(
        body(FRAGMENTS + SHARED + "T.gemm(s, s, x)\nfor i, j in T.Parallel(64, 64):\n    y[j, i] = x[i, j]")
    )
    assert not found.conversions
    assert found.fragments["y"] == found.fragments["x"].project((1, 0))


def test_the_fewest_bytes_are_moved(body: Make) -> None:
    """Of a wide fragment and a narrow one that meet in a nest, the narrow one."""
    text = (
        'n = T.alloc_fragment((64, 64), "float16")\nT.gemm(s, s, x)\nT.gemm(n, s, y, policy=T.GemmWarpPolicy.FullRow)\n'
        "for i, j in T.Parallel(64, 64):\n    n[i, j] = x[i, j]"
    )
    (made,) = assignment(body(FRAGMENTS + SHARED + text.replace("T.gemm(s, s, x)", FULL_COLUMN)), "sm_80").conversions
    assert made.buffer.name == "n" and made.bytes == 64 * 64 * 2


def test_conversions_of_one_shape_share_a_tile(body: Make) -> None:
    text = "T.clear(x)\n" + "for i, j in T.Parallel(64, 64):\n    y[i, j] = x[i, 63 - j]\n" * 3
    found = assignment(body(FRAGMENTS + SHARED + text))
    assert len(found.conversions) == 3
    assert [b.name for b in found.kernel.buffers if b.scope == "shared"] == ["s", "conversion.0"]


def test_a_statement_leaves_its_conversions_in_its_place_of_a_schedule(body: Make) -> None:
    """They have its stage, and the places next to it in the order."""
    text = (
        "T.clear(x)\nT.clear(y)\nfor k in T.Pipelined(4, order=[0, 2, 1], stage=[0, 0, 1]):\n"
        f"    T.copy(A[0, k * 64], s)\n    {FULL_ROW}\n    {FULL_COLUMN}"
    )
    found = assignment(body(FRAGMENTS + SHARED + text, 'A: T.Tensor((64, 256), "float16")'), "sm_80")
    (loop,) = (s for s in found.kernel.body if isinstance(s, For))
    assert [s.name for s in loop.body if isinstance(s, TileOp)] == [
        "copy",
        "gemm",
        "copy",
        "copy",
        "gemm",
        "copy",
        "copy",
    ]
    assert loop.stage == (0, 0, 1, 1, 1, 1, 1)
    assert loop.order == (0, 6, 1, 2, 3, 4, 5)


def test_a_fragment_set_and_read_elsewhere_in_one_nest_is_refused(body: Make) -> None:
    text = "T.clear(x)\nfor i, j in T.Parallel(64, 64):\n    x[i, j] = 1.0\n    y[i, j] = x[j, i]"
    with pytest.raises(CompileError) as raised:
        assignment(body(FRAGMENTS + SHARED + text))
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "fragment-index" and diagnostic.primary is not None
