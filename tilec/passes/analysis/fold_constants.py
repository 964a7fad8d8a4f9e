"""Tile IR to tile IR with constants computed and integer arithmetic simplified. What does not change is kept as it is.

Statements that never run, or have nothing to run, are left out, but not from a loop whose schedule is given by hand:
its entries count them. A `while` stays, which may go on for ever.

Signed arithmetic is taken not to overflow where that simplifies an index, as `(x * 4) // 4`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar, assert_never

from tilec.ir import tile
from tilec.ir.expr import cast, constant
from tilec.ir.types import BOOL, DType

Node = TypeVar("Node")


def fold(kernel: tile.Kernel) -> tile.Kernel:
    """The kernel with everything computed that can be."""
    body = _body(kernel.body, prune=True)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _body(body: tuple[tile.Stmt, ...], prune: bool) -> tuple[tile.Stmt, ...]:
    result: list[tile.Stmt] = []
    for stmt in body:
        result.extend(_stmt(stmt, prune))
    return body if _same(tuple(result), body) else tuple(result)


def _same(new: tuple[object, ...], old: tuple[object, ...]) -> bool:
    return len(new) == len(old) and all(a is b for a, b in zip(new, old, strict=True))


def _each(items: tuple[Node, ...], function: Callable[[Node], Node]) -> tuple[Node, ...]:
    result = tuple(function(i) for i in items)
    return items if _same(result, items) else result


def _stmt(stmt: tile.Stmt, prune: bool) -> tuple[tile.Stmt, ...]:
    match stmt:
        case tile.TileOp():
            return (stmt.map_expressions(_region, fold_expr),)
        case tile.Store(indices=indices, value=value):
            new_indices, new_value = _each(indices, fold_expr), fold_expr(value)
            if new_indices is indices and new_value is value:
                return (stmt,)
            return (replace(stmt, indices=new_indices, value=new_value),)
        case tile.Print(values=values):
            new_values = _each(values, fold_expr)
            return (stmt if new_values is values else replace(stmt, values=new_values),)
        case tile.Bind(value=value):
            new_value = fold_expr(value)
            return (stmt if new_value is value else replace(stmt, value=new_value),)
        case tile.Parallel(body=body):
            new_body = _body(body, prune)
            if prune and not new_body:
                return ()
            return (stmt if new_body is body else replace(stmt, body=new_body),)
        case tile.For():
            return _for(stmt, prune)
        case tile.If(condition=condition, then=then, orelse=orelse):
            new_condition = fold_expr(condition)
            if prune and isinstance(new_condition, tile.Const):
                return _body(then if new_condition.value else orelse, prune)
            parts = (new_condition, _body(then, prune), _body(orelse, prune))
            if prune and not parts[1] and not parts[2]:
                return ()
            return (stmt if _same(parts, (condition, then, orelse)) else tile.If(*parts, span=stmt.span),)
        case tile.While(condition=condition, body=body):
            new_condition = fold_expr(condition)
            if prune and isinstance(new_condition, tile.Const) and not new_condition.value:
                return ()
            loop_parts = (new_condition, _body(body, prune))
            return (stmt if _same(loop_parts, (condition, body)) else tile.While(*loop_parts, span=stmt.span),)
        case tile.Break():
            return (stmt,)
        case _:
            assert_never(stmt)


def _for(loop: tile.For, prune: bool) -> tuple[tile.Stmt, ...]:
    start, stop, body = fold_expr(loop.start), fold_expr(loop.stop), _body(loop.body, prune and loop.stage is None)
    never = isinstance(start, tile.Const) and isinstance(stop, tile.Const) and int(start.value) >= int(stop.value)
    if prune and (never or not body):
        return ()
    if start is loop.start and stop is loop.stop and body is loop.body:
        return (loop,)
    return (replace(loop, start=start, stop=stop, body=body),)


def _region(region: tile.Region) -> tile.Region:
    start = _each(region.start, fold_expr)
    return region if start is region.start else replace(region, start=start)


def _attr(attr: tuple[str, tile.Attr]) -> tuple[str, tile.Attr]:
    key, value = attr
    if value is None or isinstance(value, int | float | str):
        return attr
    new = fold_expr(value)
    return attr if new is value else (key, new)


# ---- expressions -----------------------------------------------------------------------------------------------------


def fold_expr(expr: tile.Expr) -> tile.Expr:
    """The expression with constants computed; the same object where there is nothing to do."""
    match expr:
        case tile.Const() | tile.Var():
            return expr
        case tile.Unary(op=op, a=a, dtype=dtype):
            return _unary(expr, op, fold_expr(a), dtype)
        case tile.Cast(a=a, dtype=dtype):
            new = fold_expr(a)
            if isinstance(new, tile.Const) or new.dtype == dtype:
                return cast(new, dtype)
            return expr if new is a else tile.Cast(new, dtype)
        case tile.Binary(op=op, a=a, b=b, dtype=dtype):
            left, right = fold_expr(a), fold_expr(b)
            simpler = _binary(op, left, right, dtype)
            if simpler is not None:
                return simpler
            return expr if left is a and right is b else tile.Binary(op, left, right, dtype)
        case tile.Call(fn=fn, args=args, dtype=dtype):
            new_args = _each(args, fold_expr)
            known = _call(fn, new_args, dtype)
            if known is not None:
                return known
            return expr if new_args is args else tile.Call(fn, new_args, dtype)
        case tile.Select(condition=condition, then=then, orelse=orelse, dtype=dtype):
            parts = (fold_expr(condition), fold_expr(then), fold_expr(orelse))
            if isinstance(parts[0], tile.Const):
                return parts[1] if parts[0].value else parts[2]
            return expr if _same(parts, (condition, then, orelse)) else tile.Select(*parts, dtype)
        case tile.Load(buffer=buffer, indices=indices):
            new_indices = _each(indices, fold_expr)
            return expr if new_indices is indices else tile.Load(buffer, new_indices)
        case _:
            assert_never(expr)


def _unary(expr: tile.Unary, op: str, a: tile.Expr, dtype: DType) -> tile.Expr:
    if isinstance(a, tile.Const):
        return constant(not a.value if op == "not" else -a.value, dtype)
    if isinstance(a, tile.Unary) and a.op == op:
        return a.a
    return expr if a is expr.a else replace(expr, a=a)


def _binary(op: str, a: tile.Expr, b: tile.Expr, dtype: DType) -> tile.Expr | None:
    if isinstance(a, tile.Const) and isinstance(b, tile.Const):
        value = compute(op, a.value, b.value, dtype)
        return None if value is None else constant(value, dtype)
    if op in ("and", "or"):
        for known, other in ((a, b), (b, a)):
            if isinstance(known, tile.Const):
                return known if bool(known.value) == (op == "or") else other
        return a if a == b else None
    if op in ("min", "max") and a == b:
        return a
    if op == "mul" and dtype.is_float:
        # Exact for every value, NaN and -0 included; x * 0 and x + 0 are not.
        return b if _is(a, 1) else a if _is(b, 1) else None
    if dtype.is_float or op in tile.COMPARISONS or dtype == BOOL:
        return None
    return _integer(op, a, b, dtype)


def _integer(op: str, a: tile.Expr, b: tile.Expr, dtype: DType) -> tile.Expr | None:
    if op in ("add", "mul") and isinstance(a, tile.Const):
        # The constant goes to the right, so that the rules below find it there.
        return _binary(op, b, a, dtype) or tile.Binary("add" if op == "add" else "mul", b, a, dtype)
    if op == "sub" and a == b:
        return constant(0, dtype)
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
            return constant(0, dtype)
        case "add" | "sub":
            return _offset(a, value if op == "add" else -value, dtype)
        case "mul":
            inner = _scaled(a)
            return tile.Binary("mul", inner[0], constant(inner[1] * value, dtype), dtype) if inner else None
        case "floordiv" | "floormod" if value > 0 and dtype.kind == "int":
            inner = _scaled(a)
            if inner is None or inner[1] % value:
                return None
            if op == "floormod":
                return constant(0, dtype)
            quotient = constant(inner[1] // value, dtype)
            return _binary("mul", inner[0], quotient, dtype) or tile.Binary("mul", inner[0], quotient, dtype)
        case _:
            return None


def _offset(a: tile.Expr, value: int, dtype: DType) -> tile.Expr | None:
    """`a + value` where `a` already ends in a constant."""
    if not (isinstance(a, tile.Binary) and a.op in ("add", "sub") and isinstance(a.b, tile.Const)):
        return None
    total = int(a.b.value) * (1 if a.op == "add" else -1) + value
    if total == 0:
        return a.a
    return tile.Binary("add" if total > 0 else "sub", a.a, constant(abs(total), dtype), dtype)


def _scaled(a: tile.Expr) -> tuple[tile.Expr, int] | None:
    """`x * c` as (x, c)."""
    if isinstance(a, tile.Binary) and a.op == "mul" and isinstance(a.b, tile.Const):
        return a.a, int(a.b.value)
    return None


def _is(expr: tile.Expr, value: int) -> bool:
    return isinstance(expr, tile.Const) and expr.value == value


# ---- constants -------------------------------------------------------------------------------------------------------


def compute(op: str, a: int | float | bool, b: int | float | bool, dtype: DType) -> int | float | bool | None:
    """The exact value of `a op b`, or None where there is none. `dtype` is the result's."""
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return a / b if b != 0 else None
        case "floordiv":
            return int(a) // int(b) if b != 0 else None
        case "floormod":
            return int(a) % int(b) if b != 0 else None
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case "and" | "bitand":
            return int(a) & int(b)
        case "or" | "bitor":
            return int(a) | int(b)
        case "xor":
            return int(a) ^ int(b)
        case "shl":
            return int(a) << int(b) if 0 <= b < dtype.bits else None
        case "shr":
            return int(a) >> int(b) if 0 <= b < dtype.bits else None
        case "lt":
            return a < b
        case "le":
            return a <= b
        case "gt":
            return a > b
        case "ge":
            return a >= b
        case "eq":
            return a == b
        case "ne":
            return a != b
        case _:
            raise AssertionError(f"no binary operation {op}")


def compute_expr(expr: tile.Expr, values: Mapping[tile.Var, int]) -> int | float | bool | None:
    """The value of arithmetic on variables whose values are known; None for anything else."""
    match expr:
        case tile.Const(value=value):
            return value
        case tile.Var():
            return values.get(expr)
        case tile.Unary(op=op, a=a):
            one = compute_expr(a, values)
            return None if one is None else not one if op == "not" else -one
        case tile.Binary(op=op, a=a, b=b, dtype=dtype):
            left, right = compute_expr(a, values), compute_expr(b, values)
            return None if left is None or right is None else compute(op, left, right, dtype)
        case tile.Select(condition=condition, then=then, orelse=orelse):
            holds = compute_expr(condition, values)
            return None if holds is None else compute_expr(then if holds else orelse, values)
        case tile.Cast(a=a, dtype=dtype):
            whole = compute_expr(a, values)
            return None if whole is None else constant(whole, dtype).value
        case _:
            return None


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": math.log,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "tanh": math.tanh,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "atan": math.atan,
    "fmod": math.fmod,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "abs": abs,
    "sin": math.sin,
    "cos": math.cos,
    "floor": math.floor,
    "ceil": math.ceil,
    "pow": math.pow,
    "tan": math.tan,
    "trunc": math.trunc,
    "nearbyint": round,
    "round": lambda x: math.copysign(math.floor(abs(x) + 0.5), x),
    "exp10": lambda x: 10.0**x,
    "log10": math.log10,
    "erf": math.erf,
}


def _call(fn: str, args: tuple[tile.Expr, ...], dtype: DType) -> tile.Const | None:
    values = [a.value for a in args if isinstance(a, tile.Const)]
    if len(values) < len(args) or fn not in _FUNCTIONS:
        return None
    try:
        return constant(float(_FUNCTIONS[fn](*values)), dtype)
    except (ArithmeticError, ValueError):
        # Left to the hardware, which has an answer for every input.
        return None
