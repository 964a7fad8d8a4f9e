"""The promises of the warp verifier about addresses, in shared memory and in tensors, broken by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_warp_verify import (
    BAR,
    CONSUMER,
    MAP,
    PRODUCER,
    A,
    B,
    C,
    K,
    one_role,
    store,
    two_roles,
    violations,
    wgmma,
    write,
)

from tilec.ir import warp
from tilec.ir.layout import SharedLayout, unswizzled_layout
from tilec.ir.tile import Binary, Buffer, Expr, Load, Region, Var, int32_const
from tilec.ir.types import BOOL, FLOAT16, INT32
from tilec.ir.warp import Program

STORED = (write(A), warp.ProxyFence(), BAR, store(A), warp.BulkWait(0))


def with_tile(program: Program, layout: SharedLayout, offset: int = 0, depth: int = 1) -> Program:
    """The same program, A of which lies so."""
    first, *others = program.shared
    others = [replace(tile, offset=tile.offset + 16384) for tile in others]
    changed = replace(first, layout=layout, offset=offset, depth=depth)
    return replace(program, shared=(changed, *others), smem_bytes=program.smem_bytes + 16384)


@pytest.mark.parametrize(
    ("layout", "offset", "message"),
    [
        (SharedLayout((64, 64), 2, 64, 128), 0, ""),
        (SharedLayout((64, 64), 2, 64, 128), 512, "the swizzle of A repeats after 1024 bytes"),
        (SharedLayout((64, 64), 2, 32, 64), 512, ""),
        (SharedLayout((64, 64), 2, 16, 32), 128, "the swizzle of A repeats after 256 bytes"),
        (unswizzled_layout((64, 64), 2), 128, ""),
        (
            unswizzled_layout((64, 64), 2),
            64,
            "TmaStore of A reaches a box at multiples of 64 bytes of shared memory, not of 128",
        ),
        (SharedLayout((33, 64), 2, 64, 128), 0, ""),  # one panel, where the tile begins
        (SharedLayout((33, 64), 2, 16, 32), 0, "reaches a box at multiples of 1056 bytes"),
        (SharedLayout((33, 64), 2, 32, 64), 0, "reaches a box at multiples of 2112 bytes"),
        (SharedLayout((36, 64), 2, 16, 32), 0, ""),
    ],
)
def test_boxes_and_swizzles(layout: SharedLayout, offset: int, message: str) -> None:
    found = violations(with_tile(one_role(*STORED), layout, offset))
    assert message in found if message else found == ""


def test_versions() -> None:
    """A tile of 128 bytes has versions as close as that only without a swizzle."""
    small = Buffer("A", (2, 32), FLOAT16, "shared")
    versions = warp.SharedTile(small, SharedLayout((2, 32), 2, 32, 64), 3)
    assert versions.stride == 1024
    assert warp.SharedTile(small, unswizzled_layout((2, 32), 2), 3).stride == 128


def test_rows_of_four() -> None:
    at = warp.FourRows((int32_const(3), int32_const(1), int32_const(4), int32_const(1)), Var("bx"))
    body = (*STORED[:3], replace(store(A), four=at), warp.BulkWait(0))
    assert violations(with_tile(one_role(*body), SharedLayout((64, 64), 2, 64, 128))) == ""
    assert "a box at multiples of 32 bytes" in violations(with_tile(one_role(*body), SharedLayout((64, 64), 2, 16, 32)))


def test_slices_of_blocks() -> None:
    """Of what two blocks load together each brings half of a panel's rows, or some of the panels."""
    program = two_roles(PRODUCER, CONSUMER)
    producer = program.roles[1]
    loop = producer.body[0]
    assert isinstance(loop, warp.Loop)

    def sharing(rows: int, layout: SharedLayout) -> str:
        shared_map = replace(MAP, box=(rows, layout.panel))
        loads = tuple(
            replace(op, map=shared_map, shared="x") if isinstance(op, warp.TmaLoad) and op.destination == A else op
            for op in loop.body
        )
        roles = (program.roles[0], replace(producer, body=(replace(loop, body=loads),)))
        shared = tuple(replace(t, layout=layout) if t.buffer == A else t for t in program.shared)
        return violations(replace(program, roles=roles, shared=shared, cluster=(2, 1, 1)))

    assert "reaches a box" not in sharing(32, SharedLayout((64, 64), 2, 64, 128))
    assert "TmaLoad of A reaches a box at multiples of 32 bytes" in sharing(3, SharedLayout((6, 64), 2, 16, 32))


@pytest.mark.parametrize(("row", "column", "message"), [(8, 32, ""), (4, 0, "a panel"), (0, 4, "a column")])
def test_operands_of_products(row: int, column: int, message: str) -> None:
    part = Region(A, (int32_const(row), int32_const(column)), (32, 32))
    product = replace(wgmma(), a=part, b=Region(B, (int32_const(0), int32_const(0)), (32, 32)))
    found = violations(one_role(product, warp.WgmmaWait(0)))
    assert (f"Wgmma of A reaches {message}" in found) if message else found == ""


def test_panels_of_products() -> None:
    """The second begins in the middle of a pattern."""
    odd = SharedLayout((68, 128), 2, 64, 128)
    found = violations(with_tile(one_role(wgmma(), warp.WgmmaWait(0)), odd))
    assert "Wgmma of A reaches a panel at multiples of 8704 bytes of shared memory, not of 1024" in found
    loaded = warp.LoadMatrix(Region(A, (int32_const(0), int32_const(4)), (64, 32)), C)
    assert "LoadMatrix of A reaches a row at multiples of 8 bytes" in violations(one_role(loaded))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (int32_const(8), ""),
        (int32_const(4), "TmaStore of A may begin 8 bytes behind a multiple of 16 in a row of"),
        (Binary("mul", Var("bx"), int32_const(8), INT32), ""),
        (Binary("mul", Var("bx"), int32_const(4), INT32), "may begin 8 bytes"),
        (Var("x"), ""),
        (Var("y"), "may begin 2 bytes"),
    ],
)
def test_where_in_a_row_boxes_begin(column: Expr, message: str) -> None:
    """Whatever gives a variable its value counts: `x` has it from one definition, `y` from two."""
    sixteen = Binary("mul", Var("bx"), int32_const(16), INT32)
    lets = (warp.Let(Var("x"), sixteen), warp.Let(Var("y"), sixteen), warp.Let(Var("y"), int32_const(1)))
    stored = replace(store(A), start=(int32_const(0), column))
    found = violations(
        with_tile(one_role(*lets, *STORED[:3], stored, warp.BulkWait(0)), unswizzled_layout((64, 64), 2))
    )
    assert message in found if message else found == ""


BX, M = Var("bx"), Var("m")
READ = warp.Let(M, Load(Buffer("at", (4,), INT32, "global"), (BX,)))


def plus(a: Expr, b: int) -> Expr:
    return Binary("add", a, int32_const(b), INT32)


@pytest.mark.parametrize(
    ("before", "row", "holds"),
    [
        ((), plus(BX, 1), True),
        ((), plus(BX, -1), False),
        ((), Binary("sub", int32_const(3), BX, INT32), True),  # there are four blocks
        ((), Binary("sub", int32_const(2), BX, INT32), False),
        ((READ,), M, False),
        ((READ,), Binary("max", M, int32_const(0), INT32), True),  # T.assume(m >= 0)
        ((READ,), plus(Binary("max", M, int32_const(0), INT32), -1), False),
        ((READ,), Binary("floormod", M, int32_const(4), INT32), True),
        ((READ, warp.Let(M, int32_const(0)), warp.Let(Var("x"), M), warp.Let(M, int32_const(-1))), Var("x"), True),
        ((READ, warp.Let(Var("x"), M), warp.Let(M, int32_const(0))), Var("x"), False),
    ],
)
def test_no_box_is_stored_below_zero(before: tuple[warp.Operation, ...], row: Expr, holds: bool) -> None:
    stored = replace(store(A), start=(row, int32_const(0)))
    found = violations(one_role(*before, *STORED[:3], stored, warp.BulkWait(0)))
    assert found == "" if holds else "TmaStore of A may begin below 0 in dimension 0 of X" in found


@pytest.mark.parametrize(
    ("first", "behind", "holds"), [(0, 0, True), (1, 1, True), (0, 1, False), (-1, 0, False), (2, 1, True)]
)
def test_nor_by_a_loop_whose_statements_are_late(first: int, behind: int, holds: bool) -> None:
    """Only the loop around counts: another one over the same variable begins elsewhere."""
    body = (
        write(A),
        warp.ProxyFence(),
        BAR,
        replace(store(A), start=(plus(K, -behind), int32_const(0))),
        warp.BulkWait(0),
    )
    late = warp.Loop(K, int32_const(first), int32_const(4), 1, (*body, BAR))
    found = violations(one_role(warp.Loop(K, int32_const(-5), int32_const(4), 1, (warp.Let(M, K),)), late))
    assert found == "" if holds else "TmaStore of A may begin below 0" in found


@pytest.mark.parametrize(
    ("first", "behind", "holds"),
    [(0, 1, True), (2, 3, True), (2, 4, False), (1, 1, True), (0, 2, False), (-1, 1, False)],
)
def test_nor_in_an_epilogue_that_may_not_be_reached(first: int, behind: int, holds: bool) -> None:
    """The iteration before the loop's end is one if the loop has any."""
    last = plus(M, -behind)
    has_any = Binary("le", int32_const(first), plus(M, -1), BOOL)
    stored = replace(store(A), start=(Binary("mul", last, int32_const(64), INT32), int32_const(0)))
    body = (write(A), warp.ProxyFence(), BAR, stored, warp.BulkWait(0), BAR)
    found = violations(one_role(READ, warp.Branch(has_any, body)))
    assert found == "" if holds else "TmaStore of A may begin below 0" in found


def test_of_four_rows_the_column_alone() -> None:
    """Code generation moves rows below 0 out of the tensor."""
    four = warp.FourRows((int32_const(-1),) * 4, int32_const(0))
    for column, holds in ((8, True), (-8, False)):
        stored = replace(store(A), start=(int32_const(-1), int32_const(column)), four=four)
        found = violations(one_role(*STORED[:3], stored, warp.BulkWait(0)))
        assert ("may begin below 0 in dimension 1 of X" not in found) == holds
        assert "dimension 0" not in found
