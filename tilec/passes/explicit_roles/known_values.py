"""Known values of a role's variables, for following its control flow without running anything else of it."""

from __future__ import annotations

from tilec.analysis.control_slice import is_variable
from tilec.analysis.usage import find_writes
from tilec.ir import tile
from tilec.ir.rewrite import map_expressions
from tilec.rewriting.fold_constants import compute_expr

Values = dict[tile.Var, int]
"""Known values of variables: of loops, binds, and T.alloc_var, the last under the names of their buffers."""


class UnknownValue(Exception):
    """Raised for a value that is known only when the kernel runs."""


class LoopLeft(Exception):
    """Raised to leave the innermost loop."""


def set_value(var: tile.Var, value: tile.Expr, values: Values) -> None:
    """Record in `values` the value of a variable's expression, or remove the variable where that is unknown."""
    found = compute_expr(_replace_variable_loads(value), values)
    values.pop(var, None)
    if found is not None:
        values[var] = int(found)


def update_values(stmt: tile.Stmt, values: Values) -> None:
    """Update `values` by a statement that is not followed: record what a bind or variable store sets, forget the
    rest."""
    match stmt:
        case tile.TileOp():
            for buffer in find_writes(stmt):
                values.pop(tile.Var(buffer.name), None)
        case tile.Bind(var=var, value=value):
            set_value(var, value, values)
        case tile.Parallel(body=(tile.Store(buffer=buffer, value=value),)) if is_variable(buffer):
            set_value(tile.Var(buffer.name), value, values)
        case _:
            forget_variables(stmt, values)


def forget_variables(stmt: tile.Stmt, values: Values) -> None:
    """Remove from `values` the T.alloc_var variables that stores in a statement set."""
    for inner in tile.walk_statements((stmt,)):
        if isinstance(inner, tile.Store) and is_variable(inner.buffer):
            values.pop(tile.Var(inner.buffer.name), None)


def _replace_variable_loads(expr: tile.Expr) -> tile.Expr:
    """Return the expression with loads of T.alloc_var buffers replaced by variables of the same name."""
    if isinstance(expr, tile.Load) and is_variable(expr.buffer):
        return tile.Var(expr.buffer.name)
    return map_expressions(expr, _replace_variable_loads)


def evaluate_known(expr: tile.Expr, values: Values) -> int:
    """Return an expression's value by known variables, or raise `UnknownValue`."""
    found = compute_expr(_replace_variable_loads(expr), values)
    if found is None:
        raise UnknownValue
    return int(found)


def evaluate_iterations(loop: tile.For, values: Values) -> range:
    """Return the range of values that a loop's variable takes, or raise `UnknownValue` if a bound is unknown."""
    return range(evaluate_known(loop.start, values), evaluate_known(loop.stop, values), loop.step)


def is_known(expr: tile.Expr, values: Values) -> bool:
    """Return True if the expression has a value by the known variables."""
    return compute_expr(_replace_variable_loads(expr), values) is not None
