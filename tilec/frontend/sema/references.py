"""Parameters of macros that the macro sets: what is given for a T.Ref is the place, not what it holds."""

from __future__ import annotations

from tilec.frontend.sema.context import Context
from tilec.frontend.syntax import ast
from tilec.ir.tile import Bind, Expr, Load, Var, walk_expr
from tilec.ops.signature import Argument
from tilec.ops.values import EXPR_TYPES, Access, Member, Reference, describe
from tilec.support.diagnostics import fail
from tilec.support.source import Span

_REFERENCES = (Member("T.Ref"), Member("T.Var"))


def references(
    context: Context, macro: ast.Function, positional: list[Argument], keywords: dict[str, Argument]
) -> tuple[list[Argument], dict[str, Argument]]:
    """The arguments of a macro, with places for the parameters of type T.Ref."""
    names = {p.name for p in macro.params if _is_reference(context, p.annotation)}
    count = len(macro.params)
    placed = [
        reference(context, argument, p.name) if p.name in names else argument
        for p, argument in zip(macro.params, positional, strict=False)
    ]
    named = {name: reference(context, a, name) if name in names else a for name, a in keywords.items()}
    return placed + positional[count:], named


def _is_reference(context: Context, annotation: ast.Expr | None) -> bool:
    return isinstance(annotation, ast.Attribute | ast.Name) and context.value(annotation) in _REFERENCES


def reference(context: Context, argument: Argument, name: str) -> Argument:
    """A variable itself, or an element of a buffer; its indices are those of now."""
    value = argument.value
    if isinstance(value, Load) and value.buffer.name in context.mutable:
        return Argument(value.buffer, argument.span)
    if not isinstance(value, Access) or value.has_extent:
        fail(
            "wrong-argument",
            f"`{name}` is set by the macro",
            argument.span,
            f"this is {describe(value)}",
            help="give it what T.alloc_var made, or an element of a buffer",
        )
    now = tuple(_now(context, index, argument.span) for index in value.indices if isinstance(index, EXPR_TYPES))
    return Argument(Reference(Access(value.buffer, now)), argument.span)


def _now(context: Context, index: Expr, span: Span) -> Expr:
    if not any(isinstance(part, Load) for part in walk_expr(index)):
        return index
    now = Var(context.unique.take("index"), index.dtype)
    context.out.append(Bind(now, index, span))
    return now
