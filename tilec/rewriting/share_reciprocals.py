"""Quotients whose divisor many elements of a nest share, such as the sum of a row: one reciprocal, and a product for
each element in place of a division, which takes a dozen instructions.

A quotient is then rounded twice (docs/numerics.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import map_expressions, map_nested_bodies, map_statements, rewrite_expression
from tilec.ir.types import FLOAT32

FEWEST_ELEMENTS = 8
"""The fewest elements that share a divisor for which its reciprocal pays: some of them must be one thread's."""

Dependences = Mapping[tile.Var, frozenset[tile.Var]]
"""The variables of the nest on which the value of each variable depends."""


def share_reciprocals(kernel: tile.Kernel) -> tile.Kernel:
    """Multiply by reciprocals that elements share, in place of divisions."""
    body = map_statements(kernel.body, _share_in_statement)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _share_in_statement(stmt: tile.Stmt) -> tile.Stmt:
    if isinstance(stmt, tile.Parallel):
        return _share_in_nest(stmt)
    return map_nested_bodies(stmt, lambda body: map_statements(body, _share_in_statement))


def _share_in_nest(nest: tile.Parallel) -> tile.Parallel:
    extents = dict(zip(nest.vars, nest.extents, strict=True))
    depends: dict[tile.Var, frozenset[tile.Var]] = {var: frozenset((var,)) for var in nest.vars}
    for stmt in tile.walk_statements(nest.body):
        if isinstance(stmt, tile.Bind):
            depends[stmt.var] = _find_dependences(stmt.value, depends)

    def share_in_expr(expr: tile.Expr) -> tile.Expr:
        if not isinstance(expr, tile.Binary) or expr.op != "div" or expr.dtype != FLOAT32:
            return expr
        if isinstance(expr.b, tile.Const):
            return expr
        sharing = _find_dependences(expr.a, depends) - _find_dependences(expr.b, depends)
        if math.prod(extents[var] for var in sharing) < FEWEST_ELEMENTS:
            return expr
        return tile.Binary("mul", expr.a, tile.Call("reciprocal", (expr.b,), FLOAT32), FLOAT32)

    def share_in_body(stmt: tile.Stmt) -> tile.Stmt:
        stmt = map_expressions(stmt, lambda expr: rewrite_expression(expr, share_in_expr))
        return map_nested_bodies(stmt, lambda body: map_statements(body, share_in_body))

    body = map_statements(nest.body, share_in_body)
    return nest if body is nest.body else replace(nest, body=body)


def _find_dependences(expr: tile.Expr, depends: Dependences) -> frozenset[tile.Var]:
    """Return the variables of the nest on which the value of an expression depends."""
    used = (depends.get(part, frozenset()) for part in tile.walk_expr(expr) if isinstance(part, tile.Var))
    return frozenset().union(*used)
