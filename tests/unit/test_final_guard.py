"""Guards that leave a loop for good, read off their conditions."""

from __future__ import annotations

import pytest

from tilec.ir import warp
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.tile import Binary, BinaryOp, Buffer, Expr, Load, Var, int32_const
from tilec.ir.types import BOOL, INT32

WAVE, BLOCK, TILE, COUNT = (Var(name) for name in ("wave", "block", "tile", "count"))
NUMBER = add_exprs(scale_expr(WAVE, 132), BLOCK)
VARIABLE = Buffer("last", (1,), INT32, "local")


def leaves(op: BinaryOp, a: Expr, b: Expr, *before: warp.Operation, orelse: tuple[warp.Operation, ...] = ()) -> bool:
    guard = warp.Branch(Binary(op, a, b, BOOL), (warp.CpAsyncCommit(),), orelse)
    loop = warp.Loop(WAVE, int32_const(0), int32_const(8), 1, (*before, guard))
    return warp.final_guard(loop) is guard


def test_a_number_that_grows_reaches_its_limit_once() -> None:
    assert leaves("lt", NUMBER, int32_const(1000))
    assert leaves("le", WAVE, COUNT)
    assert leaves("lt", TILE, int32_const(1000), warp.Let(TILE, NUMBER))


@pytest.mark.parametrize(
    ("op", "a", "b"),
    [
        ("ge", NUMBER, int32_const(1000)),  # holds sooner or later
        ("lt", BLOCK, int32_const(1000)),  # the same in each iteration
        ("lt", scale_expr(WAVE, -1), BLOCK),
        ("lt", NUMBER, scale_expr(WAVE, 200)),
        ("lt", Binary("floormod", WAVE, int32_const(4), INT32), int32_const(2)),
        ("lt", add_exprs(NUMBER, Binary("floormod", WAVE, int32_const(4), INT32)), int32_const(2)),
        ("lt", NUMBER, Load(VARIABLE, (int32_const(0),))),  # which the loop may change
    ],
)
def test_what_may_hold_again(op: BinaryOp, a: Expr, b: Expr) -> None:
    assert not leaves(op, a, b)


def test_what_else_an_iteration_does() -> None:
    assert not leaves("lt", NUMBER, int32_const(1000), warp.CpAsyncCommit())
    assert not leaves("lt", NUMBER, int32_const(1000), orelse=(warp.CpAsyncCommit(),))
    assert not leaves("lt", TILE, int32_const(1000))  # known from somewhere else
