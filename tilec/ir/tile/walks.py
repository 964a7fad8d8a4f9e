"""What can be asked of trees of any shape: what is in them, and variables replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.ir import parts
from tilec.ir.rewrite import map_expressions
from tilec.ir.tile.expressions import Const, Expr, Var
from tilec.ir.tile.statements import Stmt
from tilec.ir.types import BOOL


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of an expression."""
    return parts.expressions(expr).read(expr)


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """The expression with variables replaced."""
    if isinstance(expr, Var):
        return values.get(expr, expr)
    return map_expressions(expr, lambda operand: substitute(operand, values))


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, parents first."""
    left = [expr]
    while left:
        one = left.pop()
        yield one
        left += reversed(children(one))


def bodies(stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The statement lists nested in a statement."""
    return parts.lists(stmt)


def declared(stmt: Stmt) -> tuple[Var, ...]:
    """The variables that a statement declares, for those inside it or behind it."""
    return tuple(var for var in parts.declared(stmt).read(stmt) if var is not None)


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, in program order, parents first."""
    for stmt in body:
        yield stmt
        for nested in parts.lists(stmt):
            yield from walk(nested)


def is_true(expr: Expr) -> bool:
    """Whether an expression is the literal `true`."""
    return isinstance(expr, Const) and expr.dtype == BOOL and bool(expr.value)
