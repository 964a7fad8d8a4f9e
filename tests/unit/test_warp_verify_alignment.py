"""The promises of the warp verifier about addresses, in shared memory and in tensors, broken by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_warp_verify import BAR, CONSUMER, MAP, PRODUCER, A, B, C, one_role, store, two_roles, violations, wgmma, write

from tilec.ir import warp
from tilec.ir.layout import SharedLayout, plain
from tilec.ir.tile import Binary, Buffer, Expr, Region, Var, integer
from tilec.ir.types import FLOAT16, INT32
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
        (plain((64, 64), 2), 128, ""),
        (plain((64, 64), 2), 64, "TmaStore of A reaches a box at multiples of 64 bytes of shared memory, not of 128"),
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
    assert warp.SharedTile(small, plain((2, 32), 2), 3).stride == 128


def test_rows_of_four() -> None:
    at = warp.FourRows((integer(3), integer(1), integer(4), integer(1)), Var("bx"))
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
    part = Region(A, (integer(row), integer(column)), (32, 32))
    product = replace(wgmma(), a=part, b=Region(B, (integer(0), integer(0)), (32, 32)))
    found = violations(one_role(product, warp.WgmmaWait(0)))
    assert (f"Wgmma of A reaches {message}" in found) if message else found == ""


def test_panels_of_products() -> None:
    """The second begins in the middle of a pattern."""
    odd = SharedLayout((68, 128), 2, 64, 128)
    found = violations(with_tile(one_role(wgmma(), warp.WgmmaWait(0)), odd))
    assert "Wgmma of A reaches a panel at multiples of 8704 bytes of shared memory, not of 1024" in found
    loaded = warp.LoadMatrix(Region(A, (integer(0), integer(4)), (64, 32)), C)
    assert "LoadMatrix of A reaches a row at multiples of 8 bytes" in violations(one_role(loaded))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (integer(8), ""),
        (integer(4), "TmaStore of A may begin 8 bytes behind a multiple of 16 in a row of"),
        (Binary("mul", Var("bx"), integer(8), INT32), ""),
        (Binary("mul", Var("bx"), integer(4), INT32), "may begin 8 bytes"),
        (Var("x"), ""),
        (Var("y"), "may begin 2 bytes"),
    ],
)
def test_where_in_a_row_boxes_begin(column: Expr, message: str) -> None:
    """Whatever gives a variable its value counts: `x` has it from one definition, `y` from two."""
    sixteen = Binary("mul", Var("bx"), integer(16), INT32)
    lets = (warp.Let(Var("x"), sixteen), warp.Let(Var("y"), sixteen), warp.Let(Var("y"), integer(1)))
    stored = replace(store(A), start=(integer(0), column))
    found = violations(with_tile(one_role(*lets, *STORED[:3], stored, warp.BulkWait(0)), plain((64, 64), 2)))
    assert message in found if message else found == ""
