"""Traversal of statements and expressions, and substitution of variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.ir import parts
from tilec.ir.rewrite import map_expressions
from tilec.ir.tile_nodes.expressions import Const, Expr, Load, Var
from tilec.ir.tile_nodes.statements import Parallel, Stmt, TileOp
from tilec.ir.types import BOOL


def direct_operands(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of an expression, in the order of its fields; empty for a leaf."""
    return parts.expression_fields(expr).read(expr)


def substitute_variables(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return the expression with each variable in `values` replaced by its value; other variables stay."""
    if isinstance(expr, Var):
        return values.get(expr, expr)
    return map_expressions(expr, lambda operand: substitute_variables(operand, values))


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and every expression below it, parents before operands, left to right."""
    left = [expr]
    while left:
        one = left.pop()
        yield one
        left += reversed(direct_operands(one))


def nested_bodies(stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """Return the statement lists directly inside a statement, in execution order; empty if it has none."""
    return parts.statement_lists(stmt)


def declared_variables(stmt: Stmt) -> tuple[Var, ...]:
    """Return the variables that a statement itself declares, for the statements inside it or after it."""
    return tuple(var for var in parts.declaration_fields(stmt).read(stmt) if var is not None)


def walk_statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Yield every statement of a list, nested ones too, in program order, parents first."""
    for stmt in body:
        yield stmt
        for nested in parts.statement_lists(stmt):
            yield from walk_statements(nested)


def walk_control_flow(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Yield every statement of a list that the block as a whole reaches, parents first: none inside a `Parallel`, where
    each element has a path of its own."""
    for stmt in body:
        yield stmt
        if not isinstance(stmt, Parallel):
            for nested in parts.statement_lists(stmt):
                yield from walk_control_flow(nested)


def find_variables(expr: Expr) -> set[Var]:
    """Return the set of variables that occur in an expression."""
    return {part for part in walk_expr(expr) if isinstance(part, Var)}


def list_expressions(stmt: Stmt) -> Iterator[Expr]:
    """Yield the expressions of the statement itself, region starts included; none of statements nested in it."""
    if isinstance(stmt, TileOp):
        for region in stmt.regions:
            yield from region.start
        yield from stmt.expressions
    else:
        yield from parts.expression_fields(stmt).read(stmt)


def walk_loads(stmt: Stmt) -> Iterator[Load]:
    """Yield the loads in the statement's own expressions, nested loads included; none of statements nested in it."""
    return (e for expr in list_expressions(stmt) for e in walk_expr(expr) if isinstance(e, Load))


def is_true(expr: Expr) -> bool:
    """Return whether an expression is the constant True of type bool."""
    return isinstance(expr, Const) and expr.dtype == BOOL and bool(expr.value)
