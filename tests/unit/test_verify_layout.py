"""Layouts that break a promise are found out, whichever pass might have made them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tilec.driver import build
from tilec.driver.verifiers import find_stage_violations
from tilec.ir.layout import Axis, Fragment, SharedLayout, row_major_fragment
from tilec.ir.tile import Binary, Placement, TileOp, Var, int32_const, walk_statements
from tilec.ir.tile_verify.layouts import layout_violations
from tilec.ir.types import INT32
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TEXT = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((128, 64), "float16"), B: T.Tensor((64, 128), "float16"), C: T.Tensor((128, 128), "float32")):
    with T.Kernel(1, threads=128) as bx:
        A_s = T.alloc_shared((128, 64), "float16")
        B_s = T.alloc_shared((64, 128), "float16")
        C_f = T.alloc_fragment((128, 128), "float32")
        row = T.alloc_fragment((128,), "float32")
        T.copy(A, A_s)
        T.copy(B, B_s)
        T.clear(C_f)
        T.gemm(A_s, B_s, C_f)
        T.reduce_max(C_f, row, dim=1)
        for i, j in T.Parallel(128, 128):
            C_f[i, j] = C_f[i, j] - row[i]
        T.copy(C_f, C)
"""


@pytest.fixture
def assignment() -> LayoutAssignment:
    return build.assign_kernel_layouts(SourceFile("kernel.tl", TEXT), CompileOptions(target="sm_90a"))[0]


def said(assignment: LayoutAssignment) -> str:
    return "\n".join(
        layout_violations(assignment.kernel, assignment.fragments, assignment.shared, assignment.nest_layout)
    )


def test_what_passes_choose_keeps_the_promises(assignment: LayoutAssignment) -> None:
    assert said(assignment) == ""
    assert list(find_stage_violations("layout", assignment)) == []


def _transposed(layout: Fragment) -> Fragment:
    """Its threads in another order."""
    return replace(layout, threads=(*layout.threads[1:], layout.threads[0]))


FRAGMENTS: dict[str, tuple[str, Callable[[Fragment], Fragment], str]] = {
    "another shape": ("C_f", lambda f: replace(f, shape=(128, 64)), "its layout (128, 64)"),
    "fewer threads": ("C_f", lambda f: replace(f, threads=f.threads[1:]), "there are 128"),
    "elements without a register": ("C_f", lambda f: replace(f, registers=f.registers[:-1]), "have a place"),
    "two places for one element": (
        "C_f",
        lambda f: replace(f, registers=(*f.registers, Axis(2, 1, 1))),
        "an element of dimension 1 has two places",
    ),
    "two registers for one element": (
        "row",
        lambda f: replace(f, registers=(*f.registers, Axis(2, -1, 0))),
        "several registers for one element",
    ),
    "rows of other threads": ("row", _transposed, "row is used in a thread that does not hold it"),
    "a dimension that is not there": ("row", lambda f: replace(f, registers=(Axis(2, 4, 1),)), "does not move along"),
}


@pytest.mark.parametrize("fault", FRAGMENTS)
def test_registers(fault: str, assignment: LayoutAssignment) -> None:
    name, planted, expected = FRAGMENTS[fault]
    fragments = {**assignment.fragments, name: planted(assignment.fragments[name])}
    found = "\n".join(layout_violations(assignment.kernel, fragments, assignment.shared, assignment.nest_layout))
    assert expected in found


SHARED: dict[str, tuple[Callable[[SharedLayout], SharedLayout], str]] = {
    "another shape": (lambda s: replace(s, shape=(64, 64)), "its layout 2 bytes × (64, 64)"),
    "smaller elements": (lambda s: replace(s, element_bytes=1), "its layout 1 bytes"),
    "panels that do not divide a row": (lambda s: replace(s, panel=48), "panels of 48"),
    "no such swizzle": (lambda s: replace(s, swizzle=48), "swizzled by 48 bytes"),
    "rows of odd chunks": (lambda s: replace(s, panel=4, swizzle=32), "leaves rows of 8"),
    "no copy": (lambda s: replace(s, copies=0), "has 0 copies"),
}


@pytest.mark.parametrize("fault", SHARED)
def test_shared_memory(fault: str, assignment: LayoutAssignment) -> None:
    planted, expected = SHARED[fault]
    assert expected in said(replace(assignment, shared={**assignment.shared, "A_s": planted(assignment.shared["A_s"])}))


def test_placements(assignment: LayoutAssignment) -> None:
    i, j = Var("i", INT32), Var("j", INT32)
    rows = Binary("add", Binary("mul", i, int32_const(64), INT32), j, INT32)

    def found(place: Binary, size: int) -> str:
        given = SharedLayout((128, 64), 2, 64, placement=Placement((128, 64), (i, j), place, size))
        return said(replace(assignment, shared={**assignment.shared, "A_s": given}))

    assert found(rows, 128 * 64) == ""
    assert "two elements have the same offset" in found(rows, 128 * 64 - 1)
    assert "two elements have the same offset" in found(Binary("floordiv", rows, int32_const(2), INT32), 128 * 64)


def test_tiles_without_a_layout(assignment: LayoutAssignment) -> None:
    without = {name: layout for name, layout in assignment.shared.items() if name != "B_s"}
    assert "B_s has no shared layout" in said(replace(assignment, shared=without))
    fragments = {name: layout for name, layout in assignment.fragments.items() if name != "row"}
    found = layout_violations(assignment.kernel, fragments, assignment.shared, assignment.nest_layout)
    assert "row has no register layout" in next(found)


def test_nests(assignment: LayoutAssignment) -> None:
    """Iterations left out, and iterations run by threads that have other elements."""
    whole = assignment.fragments["C_f"]

    def found(swept: Fragment) -> str:
        return "\n".join(layout_violations(assignment.kernel, assignment.fragments, assignment.shared, lambda _: swept))

    assert found(whole) == ""
    assert "have a place" in found(replace(whole, registers=whole.registers[:-1]))
    assert "is swept as" in found(replace(whole, shape=(64, 128)))
    assert "is used in a thread that does not hold it" in found(_transposed(whole))


def test_stmatrix_is_given_what_products_leave() -> None:
    text = TEXT.replace('C: T.Tensor((128, 128), "float32")', 'C: T.Tensor((128, 128), "float16")')
    assignment = build.assign_kernel_layouts(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"))[0]
    assert any(isinstance(s, TileOp) and s.via == "stmatrix" for s in walk_statements(assignment.kernel.body))
    assert said(assignment) == ""
    held = assignment.fragments["C_f"]
    low, high, columns, rows = held.registers
    for wrong in (
        row_major_fragment((128, 128), 128, 4),
        _transposed(held),
        replace(held, registers=(high, low, columns, rows)),
        replace(held, registers=(low, high, rows, columns)),
    ):
        broken = replace(assignment, fragments={**assignment.fragments, "C_f": wrong})
        assert "stmatrix stores C_f, which has another layout" in said(broken)
