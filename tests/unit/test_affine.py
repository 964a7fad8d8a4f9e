"""Sums and intervals of random integer expressions against their values."""

from __future__ import annotations

import itertools
import math

import pytest
from evaluation import evaluate
from hypothesis import assume, given, settings, strategies as st

from tilec.ir.affine import (
    UNKNOWN,
    Affine,
    Interval,
    add_exprs,
    affine_form,
    join_quotients,
    resolve_quotients,
    scale_expr,
    value_interval,
)
from tilec.ir.text import show_expr
from tilec.ir.tile import (
    COMPARISONS,
    Binary,
    BinaryOp,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    int32_const,
    walk_expr,
)
from tilec.ir.types import BOOL, FLOAT32, INT8, INT32, INT64, UINT8, UINT32, DType
from tilec.rewriting.fold_constants import compute_expr, fold_expr

VARIABLES = (Var("x"), Var("y"), Var("z"))
X, Y, Z = VARIABLES
RANGES: dict[Var, Interval] = {X: (0, 15), Y: (-6, 9), Z: (3, 3)}

leaves = st.one_of(st.sampled_from(VARIABLES), st.integers(-9, 9).map(int32_const))
divisors = st.sampled_from([1, 2, 3, 4, 8, 16]).map(int32_const)


def at_least_one(expr: Expr) -> Expr:
    return Binary("max", expr, int32_const(1), INT32)


def combine(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def binary(op: BinaryOp, a: Expr, b: Expr) -> Expr:
        return Binary(op, a, b, INT32)

    def select(op: BinaryOp, a: Expr, b: Expr, c: Expr, d: Expr) -> Expr:
        return Select(Binary(op, a, b, BOOL), c, d, INT32)

    def there_and_back(a: Expr, through: DType) -> Expr:
        return Cast(Cast(a, through), INT32)

    return st.one_of(
        st.builds(lambda a: Unary("neg", a, INT32), inner),
        st.builds(binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner),
        st.builds(binary, st.sampled_from(["floordiv", "floormod"]), inner, divisors),
        st.builds(binary, st.sampled_from(["floordiv", "floormod"]), inner, inner.map(at_least_one)),
        st.builds(select, st.sampled_from(COMPARISONS), inner, inner, inner, inner),
        st.builds(there_and_back, inner, st.sampled_from([INT8, UINT8, UINT32, INT64])),
    )


expressions = st.recursive(leaves, combine, max_leaves=8)
points = st.fixed_dictionaries({v.name: st.integers(int(RANGES[v][0]), int(RANGES[v][1])) for v in VARIABLES})
examples = settings(max_examples=400, deadline=None, derandomize=True)


def fits(expr: Expr, point: dict[str, int]) -> bool:
    """Whether no part of the expression overflows 32 bits."""
    parts = [e for e in walk_expr(expr) if e.dtype != BOOL]
    return all(-(2**31) <= evaluate(e, point) < 2**31 for e in parts if not isinstance(e, Cast))


@given(expressions, points)
@examples
def test_a_sum_recombines_to_the_expression(expr: Expr, point: dict[str, int]) -> None:
    form = affine_form(expr)
    value = int(evaluate(expr, point))
    assert form.constant + sum(c * int(evaluate(atom, point)) for atom, c in form.terms) == value
    assert form.constant + int(evaluate(form.without_constant(), point)) == value
    assert all(coefficient for _, coefficient in form.terms)
    assert value % form.divisor == 0 if form.divisor else value == 0


@given(expressions, points)
@examples
def test_values_stay_in_their_interval(expr: Expr, point: dict[str, int]) -> None:
    assume(fits(expr, point))
    low, high = value_interval(expr, RANGES)
    assert low <= int(evaluate(expr, point)) <= high


@given(expressions, points)
@examples
def test_folding_changes_no_value(expr: Expr, point: dict[str, int]) -> None:
    folded = fold_expr(expr)
    assume(fits(expr, point) and fits(folded, point))
    assert int(evaluate(folded, point)) == int(evaluate(expr, point))
    assert fold_expr(folded) == folded


@given(expressions, st.integers(-9, 9), points)
@examples
def test_add_and_scale(expr: Expr, number: int, point: dict[str, int]) -> None:
    value = int(evaluate(expr, point))
    assert int(evaluate(add_exprs(expr, int32_const(number)), point)) == value + number
    assert int(evaluate(add_exprs(int32_const(number), expr), point)) == value + number
    assert int(evaluate(scale_expr(expr, number), point)) == value * number


# ---- what it is for --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "terms", "constant", "divisor"),
    [
        (int32_const(0), "", 0, 0),
        (int32_const(12), "", 12, 12),
        (Binary("add", Binary("mul", X, int32_const(64), INT32), int32_const(16), INT32), "64 x", 16, 16),
        (
            Binary("sub", Binary("mul", int32_const(4), X, INT32), Binary("mul", X, int32_const(4), INT32), INT32),
            "",
            0,
            0,
        ),
        (Unary("neg", Binary("sub", X, Y, INT32), INT32), "-1 x, 1 y", 0, 1),
        (Binary("mul", X, Y, INT32), "1 x * y", 0, 1),
        (Binary("mul", Binary("floordiv", X, int32_const(8), INT32), int32_const(8), INT32), "8 x // 8", 0, 8),
    ],
)
def test_forms(expr: Expr, terms: str, constant: int, divisor: int) -> None:
    form = affine_form(expr)
    assert ", ".join(f"{c} {show_expr(atom)}" for atom, c in form.terms) == terms
    assert (form.constant, form.divisor) == (constant, divisor)


def test_constants_fold_on_the_way() -> None:
    assert add_exprs(X, int32_const(0)) is X
    assert add_exprs(int32_const(0), X) is X
    assert add_exprs(int32_const(2), int32_const(3)) == int32_const(5)
    assert scale_expr(X, 1) is X
    assert scale_expr(int32_const(2), 3) == int32_const(6)
    assert Affine((), 4).without_constant() == int32_const(0)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (Binary("floormod", X, int32_const(16), INT32), (0, 15)),
        (Binary("floormod", Y, int32_const(4), INT32), (0, 3)),
        (Binary("floordiv", Y, int32_const(4), INT32), (-2, 2)),
        (Binary("floordiv", X, Binary("add", X, int32_const(2), INT32), INT32), (0, 7)),
        (Binary("floordiv", Y, at_least_one(Var("anything")), INT32), (-6, 9)),
        (Binary("floormod", Var("anything"), Binary("add", X, int32_const(2), INT32), INT32), (0, 16)),
        (Binary("floormod", X, Y, INT32), UNKNOWN),
        (Binary("xor", X, int32_const(16), INT32), (0, 31)),
        (Binary("bitor", X, int32_const(2), INT32), (0, 15)),
        (Binary("xor", X, Y, INT32), UNKNOWN),
        (Binary("mul", Y, Y, INT32), (-54, 81)),
        (Binary("min", X, Var("anything"), INT32), (-math.inf, 15)),
        (Cast(Binary("mul", X, int32_const(100), INT32), INT8), (-128, 127)),
        (Cast(Y, UINT8), (0, 255)),
        (Cast(X, INT8), (0, 15)),
        (Cast(Binary("lt", X, Y, BOOL), INT32), (0, 1)),
        (Binary("sub", Cast(X, UINT32), Const(1, UINT32), UINT32), (0, 2**32 - 1)),
        (Cast(Var("f", FLOAT32), INT32), UNKNOWN),
    ],
)
def test_intervals(expr: Expr, expected: Interval) -> None:
    assert value_interval(expr, RANGES) == expected


def test_nothing_is_known_of_other_variables() -> None:
    assert value_interval(Var("anything"), RANGES) == UNKNOWN
    assert value_interval(Binary("mul", Var("anything"), int32_const(3), INT32), RANGES) == UNKNOWN


@st.composite
def index_expressions(draw: st.DrawFn, depth: int = 4) -> Expr:
    """Sums, products and quotients of two variables by positive constants."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([Var("x"), Var("y")]) | st.integers(-9, 40).map(int32_const))
    op = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "floormod"]))
    a = draw(index_expressions(depth=depth - 1))
    by_constant = op not in ("add", "sub")
    b = (
        int32_const(draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 32])))
        if by_constant
        else draw(index_expressions(depth=depth - 1))
    )
    return Binary(op, a, b, INT32)


@given(index_expressions(), st.integers(-40, 200), st.integers(-40, 200))
@settings(max_examples=500)
def test_the_sum_is_the_expression(expr: Expr, x: int, y: int) -> None:
    """Quotients and remainders that a division takes apart among them."""
    values = {Var("x"): x, Var("y"): y}
    form = affine_form(expr)
    assert compute_expr(add_exprs(form.without_constant(), int32_const(form.constant)), values) == compute_expr(
        expr, values
    )


def test_a_division_takes_out_what_it_divides() -> None:
    """Neighbours that share a byte have one index, and each a constant shift."""
    x = Var("x")
    column = add_exprs(Binary("mul", x, int32_const(8), INT32), int32_const(5))
    half, rest = (affine_form(Binary(op, column, int32_const(2), INT32)) for op in ("floordiv", "floormod"))
    assert half == Affine(((x, 4),), 2)
    assert rest == Affine((), 1)
    group = affine_form(Binary("floordiv", column, int32_const(32), INT32))
    assert group == Affine(((Binary("floordiv", x, int32_const(4), INT32), 1),), 0)


def test_what_is_made_of_elements_is_not_divided_term_by_term() -> None:
    element = Cast(Load(Buffer("A", (4,), UINT32, "global"), (X,)), INT32)
    tripled = Binary("add", Binary("mul", element, int32_const(3), INT32), int32_const(2), INT32)
    for op in ("floordiv", "floormod"):
        quotient = Binary(op, tripled, int32_const(3), INT32)
        assert affine_form(quotient) == Affine(((quotient, 1),), 0)
    assert affine_form(tripled) == Affine(((element, 3),), 2)
    assert value_interval(Binary("mul", Binary("max", element, int32_const(0), INT32), int32_const(3), INT32), {}) == (
        -(2**31),
        2**31 - 1,
    )
    assert value_interval(
        Binary("mul", Binary("floormod", element, int32_const(8), INT32), int32_const(3), INT32), {}
    ) == (0, 21)


@given(st.recursive(leaves, combine, max_leaves=8))
@settings(max_examples=150)
def test_resolved_quotients_keep_the_value(expr: Expr) -> None:
    resolved = resolve_quotients(expr, RANGES)
    for x, y in itertools.product(range(0, 16, 3), range(-6, 10, 3)):
        values = {X: x, Y: y, Z: 3}
        assert compute_expr(resolved, values) == compute_expr(expr, values)


def test_quotients_that_ranges_decide() -> None:
    inside = add_exprs(scale_expr(Y, 32), add_exprs(X, int32_const(16)))  # Y · 32 + 16 … 31
    assert show_expr(resolve_quotients(Binary("floordiv", inside, int32_const(32), INT32), RANGES)) == "y"
    assert show_expr(resolve_quotients(Binary("floormod", inside, int32_const(32), INT32), RANGES)) == "x + 16"
    beyond = Binary("floordiv", add_exprs(X, int32_const(17)), int32_const(32), INT32)
    assert resolve_quotients(beyond, RANGES) is beyond


def quotient(op: BinaryOp, a: Expr, by: int) -> Expr:
    return Binary(op, a, int32_const(by), INT32)


@given(st.sampled_from([3, 4, 28]), st.sampled_from([5, 7, 16]), st.integers(-40, 40), st.integers(-200, 2000))
def test_the_parts_of_a_number_are_joined_to_it(inner: int, outer: int, constant: int, x: int) -> None:
    number = add_exprs(X, int32_const(constant))
    row = quotient("floormod", quotient("floordiv", number, inner), outer)
    image, column = quotient("floordiv", number, inner * outer), quotient("floormod", number, inner)
    terms: dict[Expr, int] = {}
    total = 0
    for index, stride in ((image, 8 * inner * outer), (row, 8 * inner), (column, 8)):
        form = affine_form(index)
        total += form.constant * stride
        for atom, coefficient in form.terms:
            terms[atom] = terms.get(atom, 0) + coefficient * stride
    total += join_quotients(terms)
    assert {atom: c for atom, c in terms.items() if c} == {X: 8}
    assert total == 8 * constant


def test_only_parts_that_belong_together_are_joined() -> None:
    parts = {quotient("floormod", X, 28): 8, quotient("floordiv", X, 14): 8 * 28, quotient("floordiv", Y, 28): 8 * 28}
    terms = dict(parts)
    assert join_quotients(terms) == 0
    assert terms == parts
