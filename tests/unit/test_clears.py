"""Which fills with zeros a product makes unnecessary."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import warp
from tilec.ir.layout import swizzled_layout, wgmma_accumulator
from tilec.ir.tile import Buffer, Const, Load, Parallel, Region, Store, Var, int32_const
from tilec.ir.types import FLOAT16, FLOAT32
from tilec.passes.lower.accumulator_initialisation import initialise_by_products

A, B = (Buffer(name, (64, 64), FLOAT16, "shared") for name in "AB")
C, D = (Buffer(name, (64, 64), FLOAT32, "fragment") for name in "CD")
H = Buffer("H", (64, 64), FLOAT16, "fragment")
ROW, COLUMN = Var("i"), Var("j")
LAYOUT = wgmma_accumulator((64, 64), 1, 1)


def filled(buffer: Buffer, value: float = 0.0, extents: tuple[int, int] = (64, 64)) -> warp.Elementwise:
    store = Store(buffer, (ROW, COLUMN), Const(value, buffer.dtype))
    return warp.Elementwise(Parallel((ROW, COLUMN), extents, (store,)), LAYOUT)


def whole(buffer: Buffer) -> Region:
    return Region(buffer, (int32_const(0), int32_const(0)), (64, 64))


COPY = warp.Elementwise(Parallel((ROW, COLUMN), (64, 64), (Store(D, (ROW, COLUMN), Load(C, (ROW, COLUMN))),)), LAYOUT)
PRODUCT = warp.Wgmma(whole(A), whole(B), C, False, False, False)
SET = replace(PRODUCT, clear=True)
WAIT = warp.WgmmaWait(0)


def made(*body: warp.Operation) -> tuple[warp.Operation, ...]:
    shared = tuple(warp.SharedTile(tile, swizzled_layout((64, 64), 2)) for tile in (A, B))
    roles = (warp.Role("all", 0, 4, body),)
    program = warp.Program("kernel", (), (), (1, 1, 1), (), roles, shared, ((C, LAYOUT), (D, LAYOUT), (H, LAYOUT)), ())
    return initialise_by_products(program).roles[0].body


def loop(*body: warp.Operation) -> warp.Loop:
    return warp.Loop(Var("k"), int32_const(0), int32_const(4), 1, body)


def test_the_first_product_sets_what_was_cleared() -> None:
    assert made(filled(C), PRODUCT, PRODUCT) == (SET, PRODUCT)
    assert made(filled(C), filled(D), WAIT, PRODUCT, COPY) == (filled(D), WAIT, SET, COPY)
    assert made(filled(H), replace(PRODUCT, c=H)) == (replace(SET, c=H),)
    assert made(loop(filled(C), PRODUCT, loop(PRODUCT), COPY)) == (loop(SET, loop(PRODUCT), COPY),)


def test_what_is_cleared_for_another_reason_is_cleared() -> None:
    for body in (
        (filled(C), loop(PRODUCT)),  # which may not run, and adds in each iteration
        (filled(C), COPY, PRODUCT),
        (filled(C, 1.0), PRODUCT),
        (filled(C, 0.0, (32, 64)), PRODUCT),
        (filled(D), PRODUCT),
        (filled(C),),
    ):
        assert made(*body) == body
