"""Traversal of statements and expressions, and substitution of variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.ir import parts
from tilec.ir.rewrite import map_expressions
from tilec.ir.tile_nodes.expressions import Const, Expr, Load, Var
from tilec.ir.tile_nodes.statements import Stmt, TileOp
from tilec.ir.types import BOOL


def direct_operands(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of an expression."""
    return parts.expression_fields(expr).read(expr)


def substitute_variables(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return the expression with variables replaced."""
    if isinstance(expr, Var):
        return values.get(expr, expr)
    return map_expressions(expr, lambda operand: substitute_variables(operand, values))


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything below it, parents first."""
    left = [expr]
    while left:
        one = left.pop()
        yield one
        left += reversed(direct_operands(one))


def nested_bodies(stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """Return the statement lists nested in a statement."""
    return parts.statement_lists(stmt)


def declared_variables(stmt: Stmt) -> tuple[Var, ...]:
    """Return the variables that a statement declares, for the statements inside it or after it."""
    return tuple(var for var in parts.declaration_fields(stmt).read(stmt) if var is not None)


def walk_statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Yield every statement, in program order, parents first."""
    for stmt in body:
        yield stmt
        for nested in parts.statement_lists(stmt):
            yield from walk_statements(nested)


def find_variables(expr: Expr) -> set[Var]:
    """Return the variables in an expression."""
    return {part for part in walk_expr(expr) if isinstance(part, Var)}


def list_expressions(stmt: Stmt) -> Iterator[Expr]:
    """Yield the expressions of the statement itself, without those of statements inside it."""
    if isinstance(stmt, TileOp):
        for region in stmt.regions:
            yield from region.start
        yield from stmt.expressions
    else:
        yield from parts.expression_fields(stmt).read(stmt)


def walk_loads(stmt: Stmt) -> Iterator[Load]:
    """Yield the elements that the statement's own expressions load."""
    return (e for expr in list_expressions(stmt) for e in walk_expr(expr) if isinstance(e, Load))


def is_true(expr: Expr) -> bool:
    """Return whether an expression is the literal `true`."""
    return isinstance(expr, Const) and expr.dtype == BOOL and bool(expr.value)
