"""Addresses as the code computes them, evaluated for every element, against formulas written out here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from evaluation import evaluate
from test_layout import SHARED, byte

from tilec.codegen.address import SHARED_BASE, Addresses, CursorPosition
from tilec.codegen.builder import Builder
from tilec.codegen.scalar.scalar import ReadElement, Scalars
from tilec.ir import warp
from tilec.ir.affine import Interval, add_exprs
from tilec.ir.layout import SharedLayout, swizzled_layout
from tilec.ir.tile import Binary, Buffer, Expr, Var, int32_const
from tilec.ir.types import FLOAT16, INT32
from tilec.ptx.module import Reg

ROW, COLUMN, OUTER = Var("row"), Var("column"), Var("outer")


class Symbolic(Scalars):
    """Keeps the expression of every register that is asked for, instead of code."""

    def __init__(self, ranges: dict[Var, Interval]) -> None:
        super().__init__(Builder())
        self.ranges = ranges
        self.expressions: dict[Reg, Expr] = {}

    def get_register(self, expr: Expr, read: ReadElement | None = None) -> Reg:
        made = self.builder.new_register("b32")
        self.expressions[made] = expr
        return made


def program(*, shared: tuple[warp.SharedTile, ...] = (), rings: tuple[warp.Ring, ...] = ()) -> warp.Program:
    return warp.Program("kernel", (), (), (1, 1, 1), (), (), shared, (), rings)


def offset(layout: SharedLayout, indices: tuple[Expr, ...], ranges: dict[Var, Interval], **values: int) -> int:
    """The byte offset that the code computes for these values of the variables."""
    scalars = Symbolic(ranges)
    register, constant = Addresses(scalars.builder, scalars, program(), {}).compute_tile_offset(layout, indices)
    return constant + (0 if register is None else int(evaluate(scalars.expressions[register], values)))


def elements(layout: SharedLayout) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every index, and where its element is."""
    for row, index in enumerate(itertools.product(*map(range, layout.shape[:-1]))):
        for column in range(layout.shape[-1]):
            yield (*index, column), byte(layout, row, column)


layouts = pytest.mark.parametrize("layout", SHARED, ids=lambda s: f"{s.shape}x{s.element_bytes}-{s.swizzle}")


@layouts
def test_constant_indices(layout: SharedLayout) -> None:
    for index, expected in elements(layout):
        assert offset(layout, tuple(int32_const(i) for i in index), {}) == expected


@layouts
@pytest.mark.parametrize("known", [True, False], ids=["ranges known", "ranges unknown"])
def test_variables(layout: SharedLayout, known: bool) -> None:
    """One expression serves all elements, whether or not anything is known about its variables."""
    variables = tuple(Var(f"v{d}") for d in range(len(layout.shape)))
    ranges: dict[Var, Interval] = {}
    if known:
        ranges = {v: (0, extent - 1) for v, extent in zip(variables, layout.shape, strict=True)}
    for index, expected in elements(layout):
        values = {v.name: i for v, i in zip(variables, index, strict=True)}
        assert offset(layout, variables, ranges, **values) == expected


@layouts
def test_constants_beside_variables(layout: SharedLayout) -> None:
    """What is split off as a constant must not carry through the bits that the swizzle permutes."""
    if len(layout.shape) != 2:
        return
    rows, columns = layout.shape
    for r, c in itertools.product((0, 1, 3, 8), (0, 1, 8, 16, columns // 2)):
        ranges: dict[Var, Interval] = {ROW: (0, rows - 1 - r), COLUMN: (0, columns - 1 - c)}
        indices = (Binary("add", ROW, int32_const(r), INT32), Binary("add", COLUMN, int32_const(c), INT32))
        for row, column in itertools.product(range(0, rows - r, 3), range(0, columns - c, 5)):
            found = offset(layout, indices, ranges, row=row, column=column)
            assert found == byte(layout, row + r, column + c)


@layouts
def test_negative_constants_beside_variables(layout: SharedLayout) -> None:
    if len(layout.shape) != 2:
        return
    rows, columns = layout.shape
    ranges: dict[Var, Interval] = {ROW: (2, rows + 1), COLUMN: (7, columns + 6)}
    indices = (Binary("sub", ROW, int32_const(2), INT32), Binary("sub", COLUMN, int32_const(7), INT32))
    for row, column in itertools.product(range(2, rows + 2, 3), range(7, columns + 7, 5)):
        assert offset(layout, indices, ranges, row=row, column=column) == byte(layout, row - 2, column - 7)


def test_a_constant_column_costs_no_division() -> None:
    """Neighbouring panels at constant columns differ by a constant: one register serves them all."""
    layout = swizzled_layout((64, 128), 2)
    scalars = Symbolic({ROW: (0, 63), COLUMN: (0, 7)})
    addresses = Addresses(scalars.builder, scalars, program(), {})
    found = [
        addresses.compute_tile_offset(layout, (ROW, Binary("add", COLUMN, int32_const(64 * p), INT32)))
        for p in range(2)
    ]
    (first, second) = (scalars.expressions[r] for r, _ in found if r is not None)
    assert first == second
    assert [constant for _, constant in found] == [0, layout.panel_bytes]


def test_versions_lie_a_stride_apart() -> None:
    """A tile of several versions is addressed through the position of the cursor at hand."""
    buffer = Buffer("A_s", (8, 64), FLOAT16, "shared")
    tile = warp.SharedTile(buffer, swizzled_layout((8, 64), 2), depth=3, offset=2048)
    assert (tile.stride, tile.bytes) == (1024, 3072)
    ring = warp.Ring("A_s", 3, ("A_s",))
    builder = Builder()
    scalars = Scalars(builder)
    addresses = Addresses(builder, scalars, program(shared=(tile,), rings=(ring,)), {})
    scalars.define_variable(SHARED_BASE, builder.new_register("b32"), (0, 1 << 18))
    addresses.positions = {
        name: CursorPosition(builder.new_register("b32"), builder.new_register("b32")) for name in ("now", "later")
    }
    cursors = {name: (warp.Cursor(name, "A_s"),) for name in ("now", "later")}
    now = addresses.address_shared_element(buffer, (int32_const(1), int32_const(8)), cursors["now"])
    assert now.offset == 2048 + byte(tile.layout, 1, 8)
    assert addresses.address_shared_element(buffer, (int32_const(2), int32_const(8)), cursors["now"]).base == now.base
    assert addresses.address_shared_element(buffer, (int32_const(1), int32_const(8)), cursors["later"]).base != now.base
    addresses.forget_positions()
    assert addresses.address_shared_element(buffer, (int32_const(1), int32_const(8)), cursors["now"]).base != now.base


# ---- global memory ---------------------------------------------------------------------------------------------------


def test_a_tensor_is_row_major() -> None:
    """A 64-bit base plus a constant; what neighbours share is computed once."""
    tensor = Buffer("A", (5, 6, 7), FLOAT16, "global")
    scalars = Symbolic({})
    addresses = Addresses(scalars.builder, scalars, program(), {"A": Reg("%A")})
    strides = np.array([84, 14, 2])
    for index in itertools.product(range(5), range(6), range(7)):
        found = addresses.address_global_element(tensor, tuple(int32_const(i) for i in index))
        assert (found.base, found.offset) == (Reg("%A"), int(strides @ index))
    indices = (OUTER, ROW, Binary("add", COLUMN, int32_const(3), INT32))
    base = addresses.address_global_element(tensor, indices)
    again = addresses.address_global_element(tensor, (OUTER, ROW, Binary("add", COLUMN, int32_const(4), INT32)))
    assert (base.base, base.offset, again.base, again.offset) == (again.base, 6, base.base, 8)


def test_far_constants_go_into_the_base() -> None:
    """The offset in an address has 32 bits; a tensor may be larger."""
    tensor = Buffer("A", (1 << 14, 1 << 18), FLOAT16, "global")
    scalars = Symbolic({})
    addresses = Addresses(scalars.builder, scalars, program(), {"A": Reg("%A")})
    far = addresses.address_global_element(tensor, (int32_const(9000), int32_const(5)))
    assert 0 <= far.offset < 1 << 20
    assert far.base != Reg("%A")


@pytest.mark.parametrize("size", [1, 2])
def test_neighbours_in_a_unit_share_the_swizzled_part(size: int) -> None:
    """Four bytes apart in 16: one register, whose offset from there is a constant; in the next 16 bytes another."""
    layout = swizzled_layout((16, 128 // size), size)
    scalars = Scalars(Builder())
    scalars.define_variable(ROW, scalars.builder.new_register("b32"), (0, 15))
    scalars.define_variable(COLUMN, scalars.builder.new_register("b32"), (0, 3 // size))
    address = Addresses(scalars.builder, scalars, program(), {})
    columns = [add_exprs(COLUMN, int32_const(at // size)) for at in range(0, 128, 4)]
    found = [address.compute_tile_offset(layout, (ROW, column)) for column in columns]
    assert len({register for register, _ in found}) == 8
    assert [constant for _, constant in found] == [0, 4, 8, 12] * 8
    for at, column in zip(range(0, 128, 4), columns, strict=True):
        for row, more in itertools.product(range(16), range(4 // size)):
            ranges: dict[Var, Interval] = {ROW: (0, 15), COLUMN: (0, 3 // size)}
            assert offset(layout, (ROW, column), ranges, row=row, column=more) == byte(layout, row, at // size + more)
