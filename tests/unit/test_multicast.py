"""What blocks of a cluster have in common: whatever is taken to be the same for all of them is."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilec.ir.layout import SharedLayout
from tilec.ir.multicast import count_multicast_blocks, multicast_ranks, multicast_ranks_of_any, sliced_dimension
from tilec.ir.tile import Binary, Cluster, Const, Expr, Kernel, Select, Var, int32_const
from tilec.ir.types import BOOL, INT32
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.multicast import MulticastFinder

X, Y, WAVE, SIZE = Var("x"), Var("y"), Var("wave"), Var("n")
OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "min": np.minimum,
    "max": np.maximum,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


Numbers = NDArray[np.int64]
EVERYWHERE: list[Numbers] = [axis.ravel() for axis in np.meshgrid(np.arange(8), np.arange(8), np.array([0, 1, 3]))]
"""x, y and wave of every block."""


def value(expr: Expr, values: dict[Var, Numbers]) -> Numbers:
    match expr:
        case Const(value=number):
            return np.full_like(values[X], number)
        case Var():
            return values[expr]
        case Binary(op=op, a=a, b=b):
            found: Numbers = OPERATORS[op](value(a, values), value(b, values))
            return found
        case Select(condition=condition, then=then, orelse=orelse):
            return np.where(value(condition, values), value(then, values), value(orelse, values))
        case _:
            raise AssertionError(expr)


def random_expr(generator: random.Random, depth: int) -> Expr:
    if depth == 0 or generator.random() < 0.1:
        return generator.choice([X, X, Y, WAVE, SIZE, int32_const(generator.randint(0, 9))])
    a = random_expr(generator, depth - 1)
    match generator.randrange(4):
        case 0:
            op = generator.choice(["floordiv", "floormod"])
            return Binary(op, a, int32_const(generator.choice([1, 2, 3, 4, 6, 8])), INT32)
        case 1:
            return Binary(generator.choice(["add", "sub"]), a, int32_const(generator.choice([2, 4, 3, 1])), INT32)
        case 2:
            return Binary("add", a, Binary("mul", WAVE, int32_const(generator.choice([2, 3, 4, 6])), INT32), INT32)
        case _:
            b = random_expr(generator, depth - 1)
            if generator.random() < 0.5:
                return Binary(generator.choice(["add", "sub", "min", "max"]), a, b, INT32)
            test = Binary(generator.choice(["lt", "le", "gt", "ge"]), a, int32_const(generator.randint(0, 9)), BOOL)
            return Select(test, b, a, INT32)


@pytest.mark.parametrize("cluster", [(2, 1, 1), (1, 2, 1), (2, 2, 1), (4, 1, 1)])
def test_what_is_taken_to_be_the_same_is(cluster: tuple[int, int, int]) -> None:
    kernel = Kernel("k", (SIZE,), (8, 8), (X, Y), 128, (), (), cluster=Cluster(cluster))
    finder = MulticastFinder(LayoutAssignment(kernel, "warp_specialised", {}, {}))
    finder.alike[WAVE] = "xyz"
    generator, same = random.Random(f"{cluster}"), 0
    axes = "".join(axis for axis, size in zip("xyz", cluster, strict=True) if size > 1)
    for _ in range(3000):
        expr = random_expr(generator, 3)
        for axis in finder.find_common_axes(axes, expr):
            same += 1
            place = "xy".index(axis)
            first = list(EVERYWHERE)
            first[place] = first[place] - first[place] % cluster[place]
            results = [value(expr, {X: x, Y: y, WAVE: w, SIZE: np.full_like(x, 5)}) for x, y, w in (EVERYWHERE, first)]
            np.testing.assert_array_equal(*results, err_msg=str(expr))
    assert same > 300, "hardly anything is found to be the same"


def test_mates() -> None:
    assert multicast_ranks((2, 2, 1), "x") == (0, 1)
    assert multicast_ranks((2, 2, 1), "y") == (0, 2)
    assert multicast_ranks((2, 2, 2), "xz") == (0, 1, 4, 5)
    assert multicast_ranks_of_any((2, 2, 1), ("x", "y")) == (0, 1, 2)
    assert multicast_ranks_of_any((2, 2, 1), ()) == (0,)
    assert count_multicast_blocks((4, 2, 1), "xy") == 8


@pytest.mark.parametrize(
    ("extents", "columns", "slices", "wanted"),
    [
        ((64, 128), 128, 2, 1),  # two panels of 64 columns
        ((128, 64), 64, 2, 0),  # one panel: halves of its rows
        ((128, 64), 64, 4, 0),
        ((1, 64, 64), 64, 2, 1),
        ((8, 64), 64, 2, None),  # half of the rows that a swizzle takes to repeat
        ((24, 64), 64, 2, None),
        ((64, 128), 128, 4, 0),
    ],
)
def test_how_a_tile_is_cut(extents: tuple[int, ...], columns: int, slices: int, wanted: int | None) -> None:
    layout = SharedLayout(extents[-2:], 2, 64, 128)
    assert layout.shape[-1] == columns
    assert sliced_dimension(extents, layout, slices) == wanted
