"""Expressions of indices, evaluated for all of them: what divides by zero has no value, and no warning."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.ir import tile
from tilec.ir.layout import Axis, Fragment
from tilec.ir.placement import NotArithmetic, NoValue, evaluate_index
from tilec.ir.types import BOOL, FLOAT32, INT32
from tilec.ir.warp import Elementwise
from tilec.ir.warp_verify.owners import are_disjoint

INDEX = tile.Var("i")
SIZE = tile.Var("n")


def binary(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr) -> tile.Expr:
    return tile.Binary(op, a, b, BOOL if op in tile.COMPARISONS else INT32)


@pytest.mark.parametrize("op", ["floordiv", "floormod"])
def test_a_quotient_is_pythons_and_none_where_the_divisor_is_zero(op: tile.BinaryOp) -> None:
    seven, left = tile.int32_const(7), binary("sub", INDEX, tile.int32_const(4))
    with np.errstate(all="raise"):
        for divisor in (3, -3):
            python = [(x // divisor if op == "floordiv" else x % divisor) for x in range(-4, 4)]
            assert evaluate_index(binary(op, left, tile.int32_const(divisor)), (8,), (INDEX,)) == python
        with pytest.raises(NoValue):
            evaluate_index(binary(op, seven, INDEX), (8,), (INDEX,))
        guarded = tile.Select(
            binary("gt", INDEX, tile.int32_const(0)), binary(op, seven, INDEX), tile.int32_const(-1), INT32
        )
        assert evaluate_index(guarded, (4,), (INDEX,)) == [
            -1,
            *(7 // i if op == "floordiv" else 7 % i for i in (1, 2, 3)),
        ]


def test_what_depends_on_more_is_told_apart() -> None:
    with pytest.raises(NotArithmetic) as caught:
        evaluate_index(binary("add", INDEX, SIZE), (8,), (INDEX,))
    assert not isinstance(caught.value, NoValue)


@pytest.mark.parametrize("apart", [True, False])
def test_owners_are_not_sought_for_sizes_of_zero(apart: bool) -> None:
    """`A[i * ((n + 1) // n)]` is another element in each of 32 threads whatever n is, but for a zero that no kernel is
    launched with; `A[i // n]` is one element if n is large."""
    tensor = tile.Buffer("A", (SIZE,), FLOAT32, "global")
    step = binary("floordiv", binary("add", SIZE, tile.int32_const(1)), SIZE)
    at = binary("mul", INDEX, step) if apart else binary("floordiv", INDEX, SIZE)
    store = tile.Store(tensor, (at,), tile.Const(0.0, FLOAT32))
    nest = Elementwise(tile.Parallel((INDEX,), (32,), (store,)), Fragment((32,), (Axis(32, 0, 1),), ()))
    with np.errstate(all="raise"):
        assert are_disjoint(nest, nest, "A", (True, True), (SIZE,)) is apart
