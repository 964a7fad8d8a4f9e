"""Contraction: a product that is added to something becomes one fma, which rounds once (`-fmad` of CUDA's compilers).

Only products within one expression are contracted: the value of a variable or of a tile has been rounded.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import map_expressions, map_nested_bodies, map_statements, rewrite_expression
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

FUSED_TYPES = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
"""The types for which the machine has fma."""

Product = tuple[tile.Expr, tile.Expr, bool]
"""The factors, and whether their product is negated."""


def contract_products(kernel: tile.Kernel) -> tile.Kernel:
    """Turn each float sum with a product, within one expression, into an fma, which rounds once."""
    body = _contract_body(kernel.body, ())
    return kernel if body is kernel.body else replace(kernel, body=body)


def _contract_body(body: tuple[tile.Stmt, ...], nest: tuple[tile.Var, ...]) -> tuple[tile.Stmt, ...]:
    return map_statements(body, lambda stmt: _contract_statement(stmt, nest))


def _contract_statement(stmt: tile.Stmt, nest: tuple[tile.Var, ...]) -> tile.Stmt:
    """Return a statement with its products contracted; `nest` are the variables of the nest around it."""
    inside = stmt.vars if isinstance(stmt, tile.Parallel) else nest
    stmt = map_expressions(stmt, lambda expr: rewrite_expression(expr, lambda part: _contract_expr(part, nest)))
    return map_nested_bodies(stmt, lambda body: _contract_body(body, inside))


def _contract_expr(expr: tile.Expr, nest: tuple[tile.Var, ...]) -> tile.Expr:
    """Return a float sum or difference with a product as an fma; any other expression as it is. Of two products it
    takes the one with more variables of the nest: the other may be computed once for many elements."""
    if not isinstance(expr, tile.Binary) or expr.op not in ("add", "sub") or expr.dtype not in FUSED_TYPES:
        return expr
    products = [(side, product) for side in (expr.a, expr.b) if (product := _match_product(side)) is not None]
    if not products:
        return expr
    side, (a, b, is_negated) = max(products, key=lambda each: len(tile.find_variables(each[0]) & {*nest}))
    other = expr.b if side is expr.a else expr.a
    if expr.op == "sub" and side is expr.b:
        is_negated = not is_negated
    elif expr.op == "sub":
        other = _negate_expr(other)
    if is_negated:
        a, b = (
            (a, _negate_expr(b)) if len(tile.find_variables(b)) < len(tile.find_variables(a)) else (_negate_expr(a), b)
        )
    return tile.Call("fma", (a, b, other), expr.dtype)


def _match_product(expr: tile.Expr) -> Product | None:
    """Return the factors of a product, and whether it is negated; None for another expression."""
    match expr:
        case tile.Binary(op="mul", a=a, b=b):
            return a, b, False
        case tile.Unary(op="neg", a=a):
            inner = _match_product(a)
            return inner and (*inner[:2], not inner[2])
        case _:
            return None


def _negate_expr(expr: tile.Expr) -> tile.Expr:
    """Return the negative of a float expression, with the sign moved into a constant."""
    match expr:
        case tile.Const(value=value, dtype=dtype):
            return tile.Const(-value, dtype)
        case tile.Unary(op="neg", a=a):
            return a
        case tile.Binary(op="mul", a=a, b=tile.Const() as factor, dtype=dtype):
            return tile.Binary("mul", a, _negate_expr(factor), dtype)
        case tile.Binary(op="mul", a=tile.Const() as factor, b=b, dtype=dtype):
            return tile.Binary("mul", _negate_expr(factor), b, dtype)
        case _:
            return tile.Unary("neg", expr, expr.dtype)
