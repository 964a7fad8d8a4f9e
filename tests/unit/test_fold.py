from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tilec.interp.run import convert_values, run_kernel
from tilec.ir.expr import make_constant, round_to, wrap_integer
from tilec.ir.text import print_kernel, show_expr
from tilec.ir.tile import Binary, BinaryOp, Buffer, Expr, For, Kernel, Parallel, Store, Unary, Var, int32_const
from tilec.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT8, INT32, TYPES_BY_NAME, UINT8, DType
from tilec.rewriting.fold_constants import fold_constants, fold_expr

X, Y = Var("x"), Var("y")


def binary(op: BinaryOp, a: Expr | int, b: Expr | int) -> Binary:
    left, right = (int32_const(e) if isinstance(e, int) else e for e in (a, b))
    return Binary(op, left, right, left.dtype)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (binary("mul", X, 1), "x"),
        (binary("mul", 1, X), "x"),
        (binary("mul", X, 0), "0"),
        (binary("add", X, 0), "x"),
        (binary("sub", X, 0), "x"),
        (binary("sub", X, X), "0"),
        (binary("add", binary("add", X, 3), 4), "x + 7"),
        (binary("sub", binary("add", X, 3), 4), "x - 1"),
        (binary("add", binary("sub", X, 3), 3), "x"),
        (binary("add", 3, X), "x + 3"),
        (binary("mul", binary("mul", X, 3), 4), "x * 12"),
        (binary("floordiv", binary("mul", X, 12), 4), "x * 3"),
        (binary("floordiv", binary("mul", X, 4), 4), "x"),
        (binary("floormod", binary("mul", X, 12), 4), "0"),
        (binary("floordiv", binary("mul", X, 6), 4), "x * 6 // 4"),
        (binary("floormod", binary("mul", X, 6), 4), "x * 6 % 4"),
        (binary("floormod", X, 1), "0"),
        (binary("floordiv", -7, 2), "-4"),
        (binary("floormod", -7, 2), "1"),
        (binary("floordiv", 1, 0), "1 // 0"),
        (binary("min", 3, 4), "3"),
        (binary("max", X, X), "x"),
        (binary("shl", 1, 40), "1 << 40"),
        (binary("add", 2**31 - 1, 1), "-2147483648"),
        (Unary("neg", Unary("neg", X, INT32), INT32), "x"),
    ],
)
def test_integers(expr: Expr, expected: str) -> None:
    assert show_expr(fold_expr(expr)) == expected


def test_what_does_not_change_is_the_same_object() -> None:
    expr = binary("add", binary("mul", X, 4), Y)
    assert fold_expr(expr) is expr


def test_floats_keep_their_rounding_and_their_special_values() -> None:
    x = Var("x", FLOAT32)
    zero, one = make_constant(0, FLOAT32), make_constant(1, FLOAT32)
    assert fold_expr(Binary("mul", x, one, FLOAT32)) is x
    for untouched in (Binary("mul", x, zero, FLOAT32), Binary("add", x, zero, FLOAT32), Binary("sub", x, x, FLOAT32)):
        assert fold_expr(untouched) is untouched
    third = fold_expr(Binary("div", one, make_constant(3, FLOAT32), FLOAT32))
    assert third == make_constant(float(np.float32(1) / np.float32(3)), FLOAT32)


def test_conditions_and_empty_loops_disappear(body: Callable[..., Kernel]) -> None:
    text = """x = T.alloc_fragment((8,), "float32")
if T.float32(1) > 0:
    T.clear(x)
else:
    T.fill(x, 1)
for k in T.serial(4, 4):
    T.fill(x, 2)
if T.float32(1) < 0 and bx > 0:
    T.fill(x, 3)
"""
    assert print_kernel(body(text)).split("\n\n", 1)[1] == "  fill x[:], value=float32(0.0)\n"


def test_a_folded_kernel_folds_to_itself(body: Callable[..., Kernel]) -> None:
    built = body("for k in T.serial(4 * 1):\n    y = (bx * 4 + 1 + 2) * 2")
    assert fold_constants(built) is built


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_folding_does_not_change_the_value(data: st.DataObject) -> None:
    """Random integer expressions of two loop variables, evaluated before and after."""
    leaves = st.sampled_from([X, Y]) | st.integers(-9, 9).map(int32_const)
    operators: list[BinaryOp] = ["add", "sub", "mul", "min", "max", "floordiv", "floormod", "bitand", "xor"]

    def combine(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        plain = st.builds(lambda op, a, b: Binary(op, a, b, INT32), st.sampled_from(operators[:5]), inner, inner)
        by_constant = st.builds(
            lambda op, a, b: Binary(op, a, int32_const(b), INT32),
            st.sampled_from(operators[5:]),
            inner,
            st.integers(1, 9),
        )
        return plain | by_constant

    expr = data.draw(st.recursive(leaves, combine, max_leaves=8))
    out = Buffer("out", (5, 7), INT32, "global")

    def value(of: Expr) -> np.ndarray:
        nest = Parallel((X, Y), (5, 7), (Store(out, (X, Y), of),))
        array = np.zeros((5, 7), np.int32)
        run_kernel(Kernel("k", (out,), (1,), (Var("b"),), 32, (), (nest,)), {"out": array})
        return array

    assert (value(expr) == value(fold_expr(expr))).all(), show_expr(expr)


# ---- constants -------------------------------------------------------------------------------------------------------


def test_constants_fit_their_type() -> None:
    assert make_constant(300, UINT8).value == 44
    assert make_constant(300.0, UINT8).value == 255
    assert make_constant(-2.7, INT8).value == -2
    assert make_constant(math.inf, INT8).value == 127
    assert make_constant(math.nan, INT32).value == 0
    assert make_constant(2, BOOL).value is True
    assert make_constant(1e6, FLOAT16).value == math.inf
    assert wrap_integer(-129, INT8) == 127


@settings(max_examples=150, deadline=None)
@given(st.floats(width=64), st.sampled_from([FLOAT16, BFLOAT16, FLOAT32]))
def test_rounding_agrees_with_ml_dtypes(value: float, dtype: object) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    name = str(dtype)
    kind = ml_dtypes.bfloat16 if name == "bfloat16" else name
    with np.errstate(all="ignore"):
        single = np.float64(value) if name != "bfloat16" else np.float32(value)
        expected = float(np.asarray(single).astype(kind))
    assert np.array_equal(round_to(float(single), TYPES_BY_NAME[name]), expected, equal_nan=True)


def test_a_bfloat16_is_rounded_once() -> None:
    # Just above the tie between 1 and 1 + 2**-7, by less than float32 can hold.
    assert round_to(1 + 2**-8 + 2**-40, BFLOAT16) == 1 + 2**-7
    assert round_to(1 + 2**-8, BFLOAT16) == 1.0
    assert round_to(1 + 3 * 2**-8 - 2**-40, BFLOAT16) == 1 + 2**-7


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("dtype", [d for d in TYPES_BY_NAME.values() if d.name != "float64"], ids=str)
def test_casts_of_constants_and_of_arrays_agree(dtype: DType) -> None:
    for value in (0.0, 1.5, -1.5, 300.25, -7e9, 1e20, math.inf, -math.inf, math.nan):
        array = convert_values(np.asarray(value), dtype)
        assert np.array_equal(array, np.asarray(make_constant(value, dtype).value, array.dtype), equal_nan=True), value


MANUAL = """
s = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
for k in T.Pipelined(4{lists}):
    T.copy(A[k * 64, 0], s)
    for never in T.serial(0):
        T.clear(c)
    T.copy(s, A[k * 64, 0])
"""


@pytest.mark.parametrize(("lists", "left"), [("", 2), (", stage=[0, 0, 1], order=[0, 1, 2]", 3)])
def test_what_never_runs_is_dropped_unless_a_list_counts_it(body: Callable[..., Kernel], lists: str, left: int) -> None:
    kernel = body(MANUAL.format(lists=lists), 'A: T.Tensor((256, 64), "float16")')
    (loop,) = (s for s in kernel.body if isinstance(s, For))
    assert len(loop.body) == left
