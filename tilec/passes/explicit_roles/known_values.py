"""What is known of a role's variables while its control flow is followed, and nothing else of it is run."""

from __future__ import annotations

from tilec.ir import tile
from tilec.ir.rewrite import map_expressions
from tilec.passes.analysis.control_slice import is_variable
from tilec.passes.analysis.fold_constants import compute_expr

Values = dict[tile.Var, int]
"""What is known of variables: of loops, binds, and those that T.alloc_var makes, under the names of their buffers."""


class Unknown(Exception):
    """Only a run knows."""


class Left(Exception):
    """The innermost loop is left."""


def set_value(var: tile.Var, value: tile.Expr, values: Values) -> None:
    found = compute_expr(_of_variables(value), values)
    values.pop(var, None)
    if found is not None:
        values[var] = int(found)


def forget(stmt: tile.Stmt, values: Values) -> None:
    """What happens inside is of no concern, but that it may set variables."""
    for inner in tile.walk_statements((stmt,)):
        if isinstance(inner, tile.Store) and is_variable(inner.buffer):
            values.pop(tile.Var(inner.buffer.name), None)


def _of_variables(expr: tile.Expr) -> tile.Expr:
    """The expression, on variables in place of what the buffers of T.alloc_var hold."""
    if isinstance(expr, tile.Load) and is_variable(expr.buffer):
        return tile.Var(expr.buffer.name)
    return map_expressions(expr, _of_variables)


def known(expr: tile.Expr, values: Values) -> int:
    found = compute_expr(_of_variables(expr), values)
    if found is None:
        raise Unknown
    return int(found)


def is_known(expr: tile.Expr, values: Values) -> bool:
    return compute_expr(_of_variables(expr), values) is not None
