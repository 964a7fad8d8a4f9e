"""Arithmetic on values: Python's own on compile-time values, typed expressions as soon as an operand is a run-time one.

A literal takes the type of the other operand; otherwise the narrower operand is converted, integers to floats.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Literal

from tilec.ir import tile
from tilec.ir.expr import cast_expr, common_type, integer_range, make_constant
from tilec.ir.types import BOOL, FLOAT32, INT32, TYPES_BY_NAME, DType
from tilec.ops.language.signature import Argument, as_expr
from tilec.ops.language.values import EXPR_TYPES, Access, Dictionary, Function, Lanes, Value, describe_value
from tilec.support.diagnostics import Label, raise_error
from tilec.support.options import LARGEST_BITS
from tilec.support.source import Span

Operator = Literal[
    "+", "-", "*", "/", "//", "%", "@", "**", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "min", "max"
]

_IR_NAMES: dict[str, tile.BinaryOp] = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "floormod",
    "&": "bitand", "|": "bitor", "^": "xor", "<<": "shl", ">>": "shr",
    "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne", "min": "min", "max": "max",
}  # fmt: skip

_PYTHON_OPERATORS: dict[str, Callable[..., Value]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "min": min, "max": max,
}  # fmt: skip

_INTEGERS_ONLY = ("//", "%", "&", "|", "^", "<<", ">>")
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
MAX_LENGTH = 100_000
"""The most items of a compile-time tuple, nested items included, or characters of a string."""


def is_runtime(value: Value) -> bool:
    """Return whether a value is known only at run time: an expression, or an element or part of a buffer."""
    return isinstance(value, (*EXPR_TYPES, Access))


def apply_binary(op: Operator, a: Argument, b: Argument, span: Span) -> Value:
    """Return `a op b`: lane by lane for vectors, Python's result for compile-time values, else an expression; refuses
    `@`.
    """
    if op == "@":
        raise_error("unsupported-syntax", "`@` is not defined in a kernel", span, help="write T.gemm(A, B, C)")
    if isinstance(a.value, Lanes) or isinstance(b.value, Lanes):
        return _apply_lanewise(op, a, b, span)
    if not is_runtime(a.value) and not is_runtime(b.value):
        return _apply_static(op, a, b, span)
    return build_runtime_binary(op, a, b, span)


def _apply_lanewise(op: Operator, a: Argument, b: Argument, span: Span) -> Value:
    """Return the vector of `a op b` lane by lane, a scalar used in every lane; raises an error for different
    lengths."""
    counts = [len(x.value.parts) for x in (a, b) if isinstance(x.value, Lanes)]
    if len(set(counts)) > 1:
        raise_error(
            "shape-mismatch",
            f"`{op}` of vectors of different lengths",
            span,
            secondary=(Label(a.span, describe_value(a.value)), Label(b.span, describe_value(b.value))),
        )

    def select_lane(x: Argument, number: int) -> Argument:
        """Return lane `number` of a vector, or the scalar itself."""
        return Argument(x.value.parts[number], x.span) if isinstance(x.value, Lanes) else x

    results = (apply_binary(op, select_lane(a, i), select_lane(b, i), span) for i in range(counts[0]))
    return Lanes(tuple(as_expr(Argument(result, span)) for result in results))


def _apply_static(op: Operator, a: Argument, b: Argument, span: Span) -> Value:
    """Return `a op b` of two compile-time values, as Python computes it; raises an error where that fails or is too
    large."""
    left, right = a.value, b.value
    if op in ("==", "!="):
        # dtypes, strings and None compare too.
        return are_equal(left, right) == (op == "==")
    both_numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if not both_numbers and not _are_sequences(op, left, right, span):
        for argument in (a, b):
            if isinstance(argument.value, tile.Buffer):
                as_expr(argument)
            if not isinstance(argument.value, int | float):
                raise_error(
                    "not-a-scalar", f"`{op}` needs numbers", argument.span, f"this is {describe_value(argument.value)}"
                )
    _check_size(op, left, right, span)
    try:
        result = _PYTHON_OPERATORS[op](left, right)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise_error("static-arithmetic", "this cannot be computed", span, str(error).lower())
    if isinstance(result, complex):
        raise_error("static-arithmetic", "the result is not a real number", span)
    return result


def _are_sequences(op: Operator, left: Value, right: Value, span: Span) -> bool:
    """Return whether `op` joins or repeats strings or tuples here; raises an error if the result were too long."""
    if op == "*" and isinstance(left, int):
        left, right = right, left
    if op == "*" and isinstance(left, str | tuple) and isinstance(right, int):
        size = len(left) * right
    elif op == "+" and (
        (isinstance(left, str) and isinstance(right, str)) or (isinstance(left, tuple) and isinstance(right, tuple))
    ):
        size = len(left) + len(right)
    else:
        return False
    if size > MAX_LENGTH:
        raise_error("evaluation-too-long", "the result is too large", span, f"{size} items; the limit is {MAX_LENGTH}")
    return True


def _check_size(op: Operator, left: Value, right: Value, span: Span) -> None:
    """Raise an error if the integer result of `**`, `<<` or `*` would have too many bits, before it is computed."""
    if not isinstance(left, int) or not isinstance(right, int):
        return
    bits, more = left.bit_length(), right.bit_length()
    large = {"**": bits * max(right, 0), "<<": bits + max(right, 0), "*": bits + more}.get(op, 0)
    if large > LARGEST_BITS:
        raise_error("static-arithmetic", "the result is too large", span)


def are_equal(left: Value, right: Value) -> bool:
    """Return whether two compile-time values are equal, as in Python; a dtype equals each of its names."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, DType) and isinstance(other, str):
            return TYPES_BY_NAME.get(other) == one
    return left == right


def build_runtime_binary(op: Operator, a: Argument, b: Argument, span: Span) -> tile.Expr:
    """Build the expression `a op b` of operands of one type; raises an error where the type lacks the operator. Bools
    become int32, except in `&`, `|` and comparisons."""
    left, right = unify_operands(a, b, span)
    dtype = left.dtype
    if op == "**":
        if not dtype.is_float:
            raise_error("wrong-dtype", "`**` needs floats at run time", span, f"this is {dtype}")
        return tile.Call("pow", (left, right), dtype)
    if dtype == BOOL and op in ("&", "|"):
        return tile.Binary("and" if op == "&" else "or", left, right, BOOL)
    if dtype == BOOL and op not in _COMPARISONS:
        left, right, dtype = cast_expr(left, INT32), cast_expr(right, INT32), INT32
    if dtype.is_float and op in _INTEGERS_ONLY:
        raise_error("wrong-dtype", f"`{op}` needs integers", span, f"this is {dtype}")
    if op == "/" and not dtype.is_float:
        raise_error(
            "integer-division",
            "`/` of integers known only at run time",
            span,
            f"both sides are {dtype}",
            help="write `//` to round down, or cast one side to a float",
        )
    return tile.Binary(_IR_NAMES[op], left, right, BOOL if op in _COMPARISONS else dtype)


def unify_operands(a: Argument, b: Argument, span: Span) -> tuple[tile.Expr, tile.Expr]:
    """Return both sides as expressions of their common type; raises an error for unlike floats of equal size."""
    if not is_runtime(a.value):
        right = as_expr(b)
        return _convert_literal(a, right.dtype), _promote_operand(right, a)
    left = as_expr(a)
    if not is_runtime(b.value):
        return _promote_operand(left, b), _convert_literal(b, left.dtype)
    right = as_expr(b)
    if left.dtype == right.dtype:
        return left, right
    dtype = common_type(left.dtype, right.dtype)
    if dtype is None:
        raise_error(
            "dtype-mismatch",
            f"{left.dtype} and {right.dtype} cannot be combined",
            span,
            secondary=(Label(a.span, str(left.dtype)), Label(b.span, str(right.dtype))),
            help="cast one side, for example with T.float32(…)",
        )
    return cast_expr(left, dtype), cast_expr(right, dtype)


def _promote_dtype(dtype: DType, literal: Value) -> DType:
    """Return the type of an operation between `dtype` and a Python number: float32 for a float, int32 for bool, else
    `dtype`. A float type stays as it is, and bool stays with a bool."""
    if isinstance(literal, float) and not dtype.is_float:
        return FLOAT32
    if dtype == BOOL and not isinstance(literal, bool):
        return INT32
    return dtype


def _promote_operand(expr: tile.Expr, other: Argument) -> tile.Expr:
    """Return the expression converted to the type of an operation with the Python number `other`."""
    return cast_expr(expr, _promote_dtype(expr.dtype, other.value))


def _convert_literal(argument: Argument, dtype: DType) -> tile.Expr:
    """Return a Python number as an expression, of the type of its operation with an operand of `dtype`."""
    return as_expr(argument, _promote_dtype(dtype, argument.value))


def as_condition(argument: Argument) -> Value:
    """Return the truth value of an argument: a bool for a compile-time value, else a bool expression. Raises an error
    for values that have none."""
    value = argument.value
    if not is_runtime(value):
        match value:
            case int() | float() | str() | tuple() | range() | None:
                return bool(value)
            case Dictionary(entries=entries):
                return bool(entries)
            case DType() | Function():
                return True
            case _:
                raise_error(
                    "not-a-scalar", "a condition is needed here", argument.span, f"this is {describe_value(value)}"
                )
    expr = as_expr(argument)
    return expr if expr.dtype == BOOL else tile.Binary("ne", expr, make_constant(0, expr.dtype), BOOL)


def apply_negation(a: Argument) -> Value:
    """Return `-a`: a number for a number, else an expression, a bool converted to int32 first."""
    if isinstance(a.value, int | float):
        return -a.value
    expr = as_expr(a)
    if isinstance(expr, tile.Const) and expr.dtype.is_float:
        return make_constant(-expr.value, expr.dtype)
    if expr.dtype == BOOL:
        expr = cast_expr(expr, INT32)
    return tile.Unary("neg", expr, expr.dtype)


def apply_inversion(a: Argument) -> Value:
    """Return `~a`: bits flipped, `not` for a bool expression; raises an error for a float."""
    if isinstance(a.value, int):
        return ~int(a.value)
    expr = as_expr(a)
    if expr.dtype == BOOL:
        return tile.Unary("not", expr, BOOL)
    if expr.dtype.is_float:
        raise_error("wrong-dtype", "`~` needs an integer", a.span, f"this is {expr.dtype}")
    return tile.Binary("xor", expr, make_constant(-1, expr.dtype), expr.dtype)


def apply_not(a: Argument) -> Value:
    """Return `not a`: a bool for a compile-time value, else a bool expression."""
    value = as_condition(a)
    return not value if isinstance(value, bool) else tile.Unary("not", as_expr(Argument(value, a.span)), BOOL)


def apply_logical(op: Literal["and", "or"], a: Value, b: Value) -> Value:
    """Return `a and b` or `a or b` of two results of `as_condition`; a compile-time one decides or drops out."""
    for known, other in ((a, b), (b, a)):
        if isinstance(known, bool):
            return known if known == (op == "or") else other
    assert isinstance(a, EXPR_TYPES) and isinstance(b, EXPR_TYPES), "a condition is a bool or an expression"
    return tile.Binary(op, a, b, BOOL)


def apply_select(test: Argument, then: Argument, orelse: Argument, span: Span) -> Value:
    """Return `then if test else orelse`: one side itself for a compile-time test, else a selection of one type."""
    decided = as_condition(test)
    if isinstance(decided, bool):
        return (then if decided else orelse).value
    if not is_runtime(then.value) and not is_runtime(orelse.value):
        is_float = isinstance(then.value, float) or isinstance(orelse.value, float)
        a, b = (as_expr(x, FLOAT32 if is_float else None) for x in (then, orelse))
        if a.dtype != b.dtype:
            a, b = cast_expr(a, INT32), cast_expr(b, INT32)
    else:
        a, b = unify_operands(then, orelse, span)
    assert isinstance(decided, EXPR_TYPES)
    return tile.Select(decided, a, b, a.dtype)


def make_identity(kind: str, dtype: DType) -> tile.Const:
    """Return the identity element of a reduction as a constant; `kind` is sum, max, min, bitand or bitor."""
    if kind in ("max", "min"):
        low, high = (-math.inf, math.inf) if dtype.is_float else integer_range(dtype)
        return make_constant(low if kind == "max" else high, dtype)
    if kind != "bitand":
        return make_constant(0, dtype)
    low, high = integer_range(dtype)
    return make_constant(-1 if low else high, dtype)
