"""Parameters of macros that the macro sets: what is given for a T.Ref is the place, not what it holds."""

from __future__ import annotations

from tilec.frontend.sema.loop_statements import Loops
from tilec.frontend.syntax import ast
from tilec.ir.tile import Bind, Expr, Load, Var, walk_expr
from tilec.ops.signature import Argument
from tilec.ops.values import EXPR_TYPES, Access, Member, Reference, describe
from tilec.support.diagnostics import fail
from tilec.support.source import Span

_REFERENCES = (Member("T.Ref"), Member("T.Var"))


def references(
    body: Loops, macro: ast.Function, positional: list[Argument], keywords: dict[str, Argument]
) -> tuple[list[Argument], dict[str, Argument]]:
    """The arguments of a macro, with places for the parameters of type T.Ref."""
    names = {p.name for p in macro.params if _is_reference(body, p.annotation)}
    count = len(macro.params)
    placed = [
        reference(body, argument, p.name) if p.name in names else argument
        for p, argument in zip(macro.params, positional, strict=False)
    ]
    named = {name: reference(body, a, name) if name in names else a for name, a in keywords.items()}
    return placed + positional[count:], named


def _is_reference(body: Loops, annotation: ast.Expr | None) -> bool:
    return isinstance(annotation, ast.Attribute | ast.Name) and body.value(annotation) in _REFERENCES


def reference(body: Loops, argument: Argument, name: str) -> Argument:
    """A variable itself, or an element of a buffer; its indices are those of now."""
    value = argument.value
    if isinstance(value, Load) and value.buffer.name in body.mutable:
        return Argument(value.buffer, argument.span)
    if not isinstance(value, Access) or value.has_extent:
        fail(
            "wrong-argument",
            f"`{name}` is set by the macro",
            argument.span,
            f"this is {describe(value)}",
            help="give it what T.alloc_var made, or an element of a buffer",
        )
    now = tuple(_now(body, index, argument.span) for index in value.indices if isinstance(index, EXPR_TYPES))
    return Argument(Reference(Access(value.buffer, now)), argument.span)


def _now(body: Loops, index: Expr, span: Span) -> Expr:
    if not any(isinstance(part, Load) for part in walk_expr(index)):
        return index
    now = Var(body.unique.take("index"), index.dtype)
    body.out.append(Bind(now, index, span))
    return now
