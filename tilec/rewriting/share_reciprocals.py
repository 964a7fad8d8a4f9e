"""Quotients whose divisor many elements of a nest share, such as the sum of a row: one reciprocal, and a product for
each element in place of a division, which takes a dozen instructions.

A quotient is then rounded twice (docs/numerics.md). One that is rounded to a whole number, converted to an integer or
compared keeps its division: its last bit decides there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import map_expressions, map_nested_bodies, map_statements
from tilec.ir.types import FLOAT32

FEWEST_ELEMENTS = 8
"""The fewest elements that share a divisor for which its reciprocal pays: some of them must be one thread's."""

Dependences = Mapping[tile.Var, frozenset[tile.Var]]
"""The variables of the nest on which the value of each variable depends."""


def share_reciprocals(kernel: tile.Kernel) -> tile.Kernel:
    """Replace float32 divisions whose divisor 8 or more elements share by products with the divisor's reciprocal.
    Divisions by constants stay, and those whose last bit may decide a comparison or rounding."""
    body = map_statements(kernel.body, _share_in_statement)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _share_in_statement(stmt: tile.Stmt) -> tile.Stmt:
    """Return the statement with divisions in its nests replaced where elements share the divisor."""
    if isinstance(stmt, tile.Parallel):
        return _share_in_nest(stmt)
    return map_nested_bodies(stmt, lambda body: map_statements(body, _share_in_statement))


def _share_in_nest(nest: tile.Parallel) -> tile.Parallel:
    """Return the nest with divisions by shared divisors replaced, except where the last bit may decide."""
    extents = dict(zip(nest.vars, nest.extents, strict=True))
    depends: dict[tile.Var, frozenset[tile.Var]] = {var: frozenset((var,)) for var in nest.vars}
    for stmt in tile.walk_statements(nest.body):
        if isinstance(stmt, tile.Bind):
            depends[stmt.var] = _find_dependences(stmt.value, depends)

    def share_in_expr(expr: tile.Expr) -> tile.Expr:
        """Return a float32 division by a divisor that enough elements share as a product; others as they are."""
        if not isinstance(expr, tile.Binary) or expr.op != "div" or expr.dtype != FLOAT32:
            return expr
        if isinstance(expr.b, tile.Const):
            return expr
        sharing = _find_dependences(expr.a, depends) - _find_dependences(expr.b, depends)
        if math.prod(extents[var] for var in sharing) < FEWEST_ELEMENTS:
            return expr
        return tile.Binary("mul", expr.a, tile.Call("reciprocal", (expr.b,), FLOAT32), FLOAT32)

    exact = _find_exact_variables(nest.body)

    def share_in_outer(expr: tile.Expr) -> tile.Expr:
        """Return the expression with divisions replaced, but nothing inside an operation that needs the last bit."""
        return expr if _is_exact(expr) else share_in_expr(map_expressions(expr, share_in_outer))

    def share_in_body(stmt: tile.Stmt) -> tile.Stmt:
        """Return a statement with divisions replaced, except in binds that need the last bit."""
        if not isinstance(stmt, tile.Bind) or stmt.var not in exact:
            stmt = map_expressions(stmt, share_in_outer)
        return map_nested_bodies(stmt, lambda body: map_statements(body, share_in_body))

    body = map_statements(nest.body, share_in_body)
    return nest if body is nest.body else replace(nest, body=body)


_ROUNDING_FUNCTIONS = frozenset({"floor", "ceil", "trunc", "round", "nearbyint", "fmod"})
_DECIDING_OPERATIONS = frozenset({*tile.COMPARISONS, "floordiv", "floormod"})


def _is_exact(expr: tile.Expr) -> bool:
    """Return whether an operand's last bit may decide the result: a rounding, comparison or conversion to integer."""
    match expr:
        case tile.Cast(a=a, dtype=dtype):
            return a.dtype.is_float and not dtype.is_float
        case tile.Call(fn=fn):
            return fn in _ROUNDING_FUNCTIONS
        case tile.Binary(op=op):
            return op in _DECIDING_OPERATIONS
        case _:
            return False


def _find_exact_variables(body: tuple[tile.Stmt, ...]) -> frozenset[tile.Var]:
    """Return the variables that conditions, or operations decided by the last bit, use directly or through binds."""
    exact: set[tile.Var] = set()
    for stmt in reversed(list(tile.walk_statements(body))):
        for expr in tile.list_expressions(stmt):
            is_condition = isinstance(stmt, tile.If) and expr is stmt.condition
            is_needed = isinstance(stmt, tile.Bind) and stmt.var in exact
            for part in tile.walk_expr(expr):
                if _is_exact(part) or is_condition or is_needed:
                    exact |= tile.find_variables(part)
    return frozenset(exact)


def _find_dependences(expr: tile.Expr, depends: Dependences) -> frozenset[tile.Var]:
    """Return the nest variables on which an expression's value depends, given those of each variable."""
    return frozenset().union(*(depends.get(var, frozenset()) for var in tile.find_variables(expr)))
