"""`break` and `continue` without jumps: what follows a branch that may leave the trip moves into its other branch.

Afterwards a `continue` is the end of a branch, and a `break` stands where a trip ends anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilec.frontend.syntax import ast

Body = tuple[ast.Stmt, ...]


def spelled(body: Body, is_break: Callable[[ast.Call], bool]) -> Body:
    """The same with calls that mean `break` written so; loops inside keep theirs."""
    return tuple(_spelled(s, is_break) for s in body)


def _spelled(stmt: ast.Stmt, is_break: Callable[[ast.Call], bool]) -> ast.Stmt:
    match stmt:
        case ast.Evaluate(value=ast.Call() as call) if is_break(call):
            return ast.Break(stmt.span)
        case ast.If():
            return replace(stmt, then=spelled(stmt.then, is_break), orelse=spelled(stmt.orelse, is_break))
        case _:
            return stmt


def structured(body: Body) -> Body:
    """The body of a loop; the same one where nothing in it jumps."""
    if not any(_may_jump(s) for s in body):
        return body
    for place, stmt in enumerate(body):
        match stmt:
            case ast.Break():
                return body[: place + 1]
            case ast.Continue():
                return body[:place] or (ast.Pass(stmt.span),)
            case ast.If() if _may_jump(stmt):
                rest = body[place + 1 :]
                then, orelse = structured((*stmt.then, *rest)), structured((*stmt.orelse, *rest))
                return (*body[:place], ast.If(stmt.condition, then, orelse, stmt.span))
            case _:
                pass
    return body


def has_break(body: Body) -> bool:
    """Whether the loop that has this body may be left by a `break`."""
    return any(
        isinstance(s, ast.Break) or (isinstance(s, ast.If) and (has_break(s.then) or has_break(s.orelse))) for s in body
    )


def _may_jump(stmt: ast.Stmt) -> bool:
    """Whether the statement may leave the trip of the loop it stands in; loops inside it keep their jumps."""
    if isinstance(stmt, ast.If):
        return any(map(_may_jump, (*stmt.then, *stmt.orelse)))
    return isinstance(stmt, ast.Break | ast.Continue)
