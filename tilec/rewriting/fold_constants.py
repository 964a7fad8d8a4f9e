"""Fold constants and simplify integer arithmetic in tile IR. What does not change is kept as it is.

Statements that never run, or are empty, are dropped, but not from a loop with a manual schedule: its entries count
them. An endless `while` stays.

Signed arithmetic is taken not to overflow where that simplifies an index, as `(x * 4) // 4`; elements wrap around.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, assert_never

from tilec.ir import tile
from tilec.ir.affine import reads_elements
from tilec.ir.expr import cast_expr, make_constant
from tilec.ir.rewrite import map_expressions, map_nested_bodies, map_statements
from tilec.ir.types import BOOL, INT32, DType


def fold_constants(kernel: tile.Kernel) -> tile.Kernel:
    """Fold constants and simplify integer arithmetic in a kernel, and drop its statements without effect."""
    body = _fold_body(kernel.body, prune=True)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _fold_body(body: tuple[tile.Stmt, ...], prune: bool) -> tuple[tile.Stmt, ...]:
    return map_statements(body, lambda stmt: _fold_statement(stmt, prune))


def _fold_statement(stmt: tile.Stmt, prune: bool) -> tile.Stmt | tuple[tile.Stmt, ...]:
    """Return a statement folded, the taken branch of a constant `if`, or () for one without effect that may be
    pruned."""
    stmt = map_expressions(stmt, fold_expr)
    if prune and isinstance(stmt, tile.If) and isinstance(stmt.condition, tile.Const):
        return _fold_body(stmt.then if stmt.condition.value else stmt.orelse, prune)
    inside = prune and not (isinstance(stmt, tile.For) and stmt.stage is not None)
    stmt = map_nested_bodies(stmt, lambda body: _fold_body(body, inside))
    return () if prune and _does_nothing(stmt) else stmt


def fold_statement(stmt: tile.Stmt) -> tile.Stmt:
    """Return a statement, and all inside it, with constants folded and none of them dropped."""
    folded = _fold_statement(stmt, prune=False)
    assert isinstance(folded, tile.Stmt), "only what is pruned becomes several statements"
    return folded


def _does_nothing(stmt: tile.Stmt) -> bool:
    """Return whether a statement has no effect: an empty body, no iterations, or a condition that never holds."""
    match stmt:
        case tile.Parallel(body=body):
            return not body
        case tile.For(start=tile.Const(value=start), stop=tile.Const(value=stop)) if int(start) >= int(stop):
            return True
        case tile.For(body=body):
            return not body
        case tile.If(then=then, orelse=orelse):
            return not then and not orelse
        case tile.While(condition=tile.Const(value=holds)):
            return not holds
        case _:
            return False


# ---- expressions -----------------------------------------------------------------------------------------------------


def fold_expr(expr: tile.Expr) -> tile.Expr:
    """Return the expression with constants folded and simplified; the same object if nothing changes."""
    return expr if isinstance(expr, tile.Const | tile.Var) else _simplify_expr(map_expressions(expr, fold_expr))


def fold_binary(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr | int) -> tile.Expr:
    """Return `a op b` as an int32 expression with constants folded."""
    return fold_expr(tile.Binary(op, a, tile.int32_const(b) if isinstance(b, int) else b, INT32))


def _simplify_expr(expr: tile.Expr) -> tile.Expr:
    """Return an expression, whose operands are already simple, folded or simplified by its own operation."""
    match expr:
        case tile.Const() | tile.Var() | tile.Load() | tile.Ptx():
            return expr
        case tile.Binary(op=op, a=a, b=b, dtype=dtype):
            return _simplify_binary(op, a, b, dtype) or expr
        case tile.Unary(op=op, a=a, dtype=dtype):
            return _fold_unary(expr, op, a, dtype)
        case tile.Cast(a=a, dtype=dtype):
            return cast_expr(a, dtype) if isinstance(a, tile.Const) or a.dtype == dtype else expr
        case tile.Call(fn=fn, args=args, dtype=dtype):
            return _fold_call(fn, args, dtype) or expr
        case tile.Select(condition=tile.Const(value=holds), then=then, orelse=orelse):
            return then if holds else orelse
        case tile.Select():
            return expr
        case _:
            assert_never(expr)


def _fold_unary(expr: tile.Unary, op: str, a: tile.Expr, dtype: DType) -> tile.Expr:
    """Return a unary operation on a constant, or a double one, folded; else `expr`."""
    if isinstance(a, tile.Const):
        return make_constant(not a.value if op == "not" else -a.value, dtype)
    if isinstance(a, tile.Unary) and a.op == op:
        return a.a
    return expr


def _simplify_binary(op: str, a: tile.Expr, b: tile.Expr, dtype: DType) -> tile.Expr | None:
    """Return `a op b` simplified; None if no rule applies."""
    if isinstance(a, tile.Const) and isinstance(b, tile.Const):
        value = compute_binary(op, a.value, b.value, dtype)
        return None if value is None else make_constant(value, dtype)
    if op in ("and", "or"):
        for known, other in ((a, b), (b, a)):
            if isinstance(known, tile.Const):
                return known if bool(known.value) == (op == "or") else other
        return a if a == b else None
    if op in ("min", "max") and a == b:
        return a
    if op == "mul" and dtype.is_float:
        # Exact for every value, NaN and -0 included; x * 0 and x + 0 are not.
        return b if _is_constant(a, 1) else a if _is_constant(b, 1) else None
    if op == "div" and dtype.is_float and isinstance(b, tile.Const) and _has_exact_reciprocal(float(b.value), dtype):
        inverse = tile.Const(1 / float(b.value), dtype)
        return _simplify_binary("mul", a, inverse, dtype) or tile.Binary("mul", a, inverse, dtype)
    if dtype.is_float or op in tile.COMPARISONS or dtype == BOOL:
        return None
    return _fold_integer_binary(op, a, b, dtype)


def _has_exact_reciprocal(value: float, dtype: DType) -> bool:
    """Return True if multiplying by the reciprocal is exact: a power of two that is not near the type's limits."""
    mantissa, exponent = math.frexp(value)
    return abs(mantissa) == 0.5 and abs(exponent) < 14 and dtype.bits >= 16


def _fold_integer_binary(op: str, a: tile.Expr, b: tile.Expr, dtype: DType) -> tile.Expr | None:
    """Return an integer operation simplified by its constant operand or equal operands; None if no rule applies."""
    if op in ("add", "mul") and isinstance(a, tile.Const):
        # The constant goes to the right, so that the rules below find it there.
        return _simplify_binary(op, b, a, dtype) or tile.Binary("add" if op == "add" else "mul", b, a, dtype)
    if op == "sub" and a == b:
        return make_constant(0, dtype)
    if not isinstance(b, tile.Const):
        return None
    value = int(b.value)
    match op:
        case "add" | "sub" | "shl" | "shr" | "bitor" | "xor" if value == 0:
            return a
        case "mul" | "floordiv" if value == 1:
            return a
        case "mul" | "bitand" if value == 0:
            return b
        case "floormod" if value == 1:
            return make_constant(0, dtype)
        case "add" | "sub":
            return _fold_offset(a, value if op == "add" else -value, dtype)
        case "mul":
            inner = _split_multiple(a)
            return tile.Binary("mul", inner[0], make_constant(inner[1] * value, dtype), dtype) if inner else None
        case "floordiv" | "floormod" if value > 0 and dtype.kind == "int" and not reads_elements(a):
            inner = _split_multiple(a)
            if inner is None or inner[1] % value:
                return None
            if op == "floormod":
                return make_constant(0, dtype)
            quotient = make_constant(inner[1] // value, dtype)
            return _simplify_binary("mul", inner[0], quotient, dtype) or tile.Binary("mul", inner[0], quotient, dtype)
        case _:
            return None


def _fold_offset(a: tile.Expr, value: int, dtype: DType) -> tile.Expr | None:
    """Return `a + value` with both constants joined, where `a` adds or subtracts one; None otherwise."""
    if not (isinstance(a, tile.Binary) and a.op in ("add", "sub") and isinstance(a.b, tile.Const)):
        return None
    total = int(a.b.value) * (1 if a.op == "add" else -1) + value
    if total == 0:
        return a.a
    return tile.Binary("add" if total > 0 else "sub", a.a, make_constant(abs(total), dtype), dtype)


def _split_multiple(a: tile.Expr) -> tuple[tile.Expr, int] | None:
    """Return (x, c) for a product `x * c` with a constant c; None for another expression."""
    if isinstance(a, tile.Binary) and a.op == "mul" and isinstance(a.b, tile.Const):
        return a.a, int(a.b.value)
    return None


def _is_constant(expr: tile.Expr, value: int) -> bool:
    return isinstance(expr, tile.Const) and expr.value == value


# ---- constants -------------------------------------------------------------------------------------------------------


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "floormod": operator.mod, "min": min, "max": max, "and": operator.and_,
    "or": operator.or_, "bitand": operator.and_, "bitor": operator.or_, "xor": operator.xor, "shl": operator.lshift,
    "shr": operator.rshift, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_ON_INTEGERS = ("floordiv", "floormod", "and", "or", "bitand", "bitor", "xor", "shl", "shr")


def compute_binary(op: str, a: int | float | bool, b: int | float | bool, dtype: DType) -> int | float | bool | None:
    """Return the value of `a op b` on constants, or None for a division by 0 or a shift by too much. `dtype` is the
    result's."""
    if op in ("div", "floordiv", "floormod") and b == 0:
        return None
    if op in ("shl", "shr") and not 0 <= b < dtype.bits:
        return None
    sides = (int(a), int(b)) if op in _ON_INTEGERS else (a, b)
    result: int | float | bool = _OPERATORS[op](*sides)
    return result


def compute_expr(
    expr: tile.Expr,
    values: Mapping[tile.Var, int],
    load: Callable[[tile.Load], int | None] | None = None,
) -> int | float | bool | None:
    """Return the value of arithmetic on constants, variables with these values, and elements that `load` knows; None
    for anything else."""
    match expr:
        case tile.Const(value=value):
            return value
        case tile.Var():
            return values.get(expr)
        case tile.Unary(op=op, a=a):
            one = compute_expr(a, values, load)
            return None if one is None else not one if op == "not" else -one
        case tile.Binary(op=op, a=a, b=b, dtype=dtype):
            left = compute_expr(a, values, load)
            right = None if left is None else compute_expr(b, values, load)
            return None if left is None or right is None else compute_binary(op, left, right, dtype)
        case tile.Select(condition=condition, then=then, orelse=orelse):
            holds = compute_expr(condition, values, load)
            return None if holds is None else compute_expr(then if holds else orelse, values, load)
        case tile.Cast(a=a, dtype=dtype):
            whole = compute_expr(a, values, load)
            return None if whole is None else make_constant(whole, dtype).value
        case tile.Load() if load is not None:
            return load(expr)
        case _:
            return None


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10, "sqrt": math.sqrt, "tanh": math.tanh,
    "sinh": math.sinh, "cosh": math.cosh, "atan": math.atan, "fmod": math.fmod, "abs": abs, "sin": math.sin,
    "cos": math.cos, "tan": math.tan, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "pow": math.pow,
    "nearbyint": round, "erf": math.erf,
    "exp2": lambda x: 2.0**x,
    "exp10": lambda x: 10.0**x,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "round": lambda x: math.copysign(math.floor(abs(x) + 0.5), x),
}  # fmt: skip


def _fold_call(fn: str, args: tuple[tile.Expr, ...], dtype: DType) -> tile.Const | None:
    """Return the value of a function of constants as a constant; None if it is not folded, or has no value."""
    values = [a.value for a in args if isinstance(a, tile.Const)]
    if len(values) < len(args) or fn not in _FUNCTIONS:
        return None
    try:
        return make_constant(float(_FUNCTIONS[fn](*values)), dtype)
    except (ArithmeticError, ValueError):
        # Left to the hardware, which has an answer for every input.
        return None
