"""What is known of a role's variables while its control flow is followed, and nothing else of it is run."""

from __future__ import annotations

from tilec.ir.tile import Expr, Load, Stmt, Store, Var, children, walk, with_children
from tilec.passes.analysis.control_slice import is_variable
from tilec.passes.analysis.fold_constants import compute_expr

Values = dict[Var, int]
"""What is known of variables: of loops, binds, and those that T.alloc_var makes, under the names of their buffers."""


class Unknown(Exception):
    """Only a run knows."""


class Left(Exception):
    """The innermost loop is left."""


def set_value(var: Var, value: Expr, values: Values) -> None:
    found = compute_expr(_of_variables(value), values)
    values.pop(var, None)
    if found is not None:
        values[var] = int(found)


def forget(stmt: Stmt, values: Values) -> None:
    """What happens inside is of no concern, but that it may set variables."""
    for inner in walk((stmt,)):
        if isinstance(inner, Store) and is_variable(inner.buffer):
            values.pop(Var(inner.buffer.name), None)


def _of_variables(expr: Expr) -> Expr:
    """The expression, on variables in place of what the buffers of T.alloc_var hold."""
    if isinstance(expr, Load) and is_variable(expr.buffer):
        return Var(expr.buffer.name)
    return with_children(expr, tuple(map(_of_variables, children(expr))))


def known(expr: Expr, values: Values) -> int:
    found = compute_expr(_of_variables(expr), values)
    if found is None:
        raise Unknown
    return int(found)


def is_known(expr: Expr, values: Values) -> bool:
    return compute_expr(_of_variables(expr), values) is not None
