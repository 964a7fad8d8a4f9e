"""Arguments and results of macros.

The statements up to a `return` become the kernel's, and a branch that returns has the rest of the body as its other
side. Both sides are elaborated where the condition is known only at run time. If they return values, the condition
selects one, and neither side may do anything else. If they return none, they become the branches of an `if`.
"""

from __future__ import annotations

from typing import NoReturn

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import reads_elements
from tilec.ops.language import arithmetic, values
from tilec.ops.language.signature import Argument
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

_REFERENCE_TYPES = (values.Member("T.Ref"), values.Member("T.Var"))


# ---- parameters passed by reference ----------------------------------------------------------------------------------


def resolve_reference_arguments(
    context: Context, macro: ast.Function, positional: list[Argument], keywords: dict[str, Argument]
) -> tuple[list[Argument], dict[str, Argument]]:
    """Return a macro call's arguments, with those of `T.Ref` parameters replaced by references; refuse what cannot be
    set.
    """
    names = {p.name for p in macro.params if _is_reference(context, p.annotation)}
    count = len(macro.params)
    placed = [
        _make_reference(context, argument, p.name) if p.name in names else argument
        for p, argument in zip(macro.params, positional, strict=False)
    ]
    named = {name: _make_reference(context, a, name) if name in names else a for name, a in keywords.items()}
    return placed + positional[count:], named


def _is_reference(context: Context, annotation: ast.Expr | None) -> bool:
    return isinstance(annotation, ast.Attribute | ast.Name) and context.value(annotation) in _REFERENCE_TYPES


def _make_reference(context: Context, argument: Argument, name: str) -> Argument:
    """Return a reference to a variable, or to a buffer element with its indices frozen now; refuse other values."""
    value = argument.value
    if isinstance(value, tile.Load | values.SnapshotAccess) and value.buffer.name in context.variable_names:
        return Argument(value.buffer, argument.span)
    if not isinstance(value, values.Access) or value.has_extent:
        title = f"`{name}` is a T.Ref parameter, which the macro sets"
        way_out = "pass a T.alloc_var variable or an element of a buffer"
        raise_error("wrong-argument", title, argument.span, f"this is {values.describe_value(value)}", help=way_out)
    now = tuple(
        context.bind_value("index", index, argument.span) if reads_elements(index) else index
        for index in value.indices
        if isinstance(index, values.EXPR_TYPES)
    )
    return Argument(values.ElementReference(values.Access(value.buffer, now)), argument.span)


# ---- results ---------------------------------------------------------------------------------------------------------


def run_macro_body(context: Context, statements: tuple[ast.Stmt, ...]) -> values.Value:
    """Elaborate a macro's statements up to its `return`, also in an `if`, and return its value or None; refuse it in
    loops. An `if` that contains a `return` takes the rest of the body into both branches.
    """
    for place, statement in enumerate(statements):
        match statement:
            case ast.Return(value=value):
                context.block(statements[:place])
                return None if value is None else evaluate.evaluate_operand(context, value).value
            case ast.If(condition=node, then=then, orelse=orelse) if _has_return(statement):
                context.block(statements[:place])
                rest = statements[place + 1 :]
                argument = evaluate.evaluate_operand(context, node)
                condition = arithmetic.as_condition(argument)
                if isinstance(condition, bool):
                    return run_macro_body(context, (*(then if condition else orelse), *rest))
                assert isinstance(condition, values.EXPR_TYPES), "a condition is a bool or an expression"
                return _run_both_branches(context, argument, condition, (*then, *rest), (*orelse, *rest), statement)
            case ast.For() | ast.While() | ast.With() if _has_return(statement):
                _refuse_nested_return(statement)
            case _:
                pass
    context.block(statements)
    return None


def _has_return(statement: ast.Stmt) -> bool:
    """Return whether a statement contains a `return`, without looking into nested functions."""
    if isinstance(statement, ast.Function):
        return False
    if isinstance(statement, ast.Return):
        return True
    inner = (getattr(statement, key, ()) for key in ("then", "orelse", "body"))
    return any(_has_return(s) for part in inner for s in part)


def _refuse_nested_return(statement: ast.For | ast.While | ast.With) -> NoReturn:
    """Raise `misplaced-statement` at the `return` that a macro has inside a loop or a `with`."""
    where = next(n for n in ast.walk_nodes(statement) if isinstance(n, ast.Return))
    what = "a `with`" if isinstance(statement, ast.With) else "a loop"
    title = f"a macro cannot return inside {what}"
    place = Label(statement.span.first_line(), "this one")
    way_out = "return after it, or in the branches of an `if`"
    raise_error("misplaced-statement", title, where.span, secondary=(place,), help=way_out)


def _run_both_branches(
    context: Context,
    argument: Argument,
    condition: tile.Expr,
    then: tuple[ast.Stmt, ...],
    orelse: tuple[ast.Stmt, ...],
    node: ast.If,
) -> values.Value:
    """Elaborate both branches of a macro's run-time `if`: emit an `if` of their effects, or select a value; refuse both
    at once.
    """
    where = node.condition.span
    with context.guarded(), context.ledger.split_paths(where) as paths:
        with paths.path("holds", where), context.region("the branch", is_loop=False) as done:
            first = run_macro_body(context, then)
        with paths.path("does not hold", where), context.region("the branch", is_loop=False) as otherwise:
            second = run_macro_body(context, orelse)
    acts = [s for s in (*done, *otherwise) if not isinstance(s, tile.Bind)]
    if first is None and second is None and not (not context.is_parallel and per_thread.is_varying(context, condition)):
        if acts:
            context.out.append(tile.If(condition, tuple(done), tuple(otherwise), node.span))
        return None
    if acts:
        title = "a macro may not both return a value and have effects under a run-time condition"
        place = Label(acts[0].span, "this effect is conditional")
        way_out = "let the macro write its result to a tile, or return a value that T.if_then_else chooses"
        raise_error("misplaced-statement", title, where, "known only at run time", secondary=(place,), help=way_out)
    context.out += (*done, *otherwise)  # binds have no effect where the other side runs
    return _select_value(argument, first, second, node.span)


def _select_value(condition: Argument, first: values.Value, second: values.Value, span: Span) -> values.Value:
    """Build a run-time select between two values, item by item for tuples of equal length."""
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        return tuple(_select_value(condition, a, b, span) for a, b in zip(first, second, strict=True))
    return arithmetic.apply_select(condition, Argument(first, span), Argument(second, span), span)
