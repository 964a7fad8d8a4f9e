"""The bodies of loops. `break` and `continue` are no jumps: what follows a branch that may leave the iteration becomes
a part of its other branch.

Afterwards a `continue` is the end of a branch, and a `break` stands where an iteration ends anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tilec.frontend.sema import evaluate, per_thread
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.linear_resources import Path
from tilec.frontend.sema.loops import LOOP_BREAK, PERSISTENT
from tilec.frontend.syntax import ast
from tilec.ir.tile import Break
from tilec.support.diagnostics import fail
from tilec.support.source import Span

_LEAVABLE = ("while", "range", "T.serial", "T.Serial", PERSISTENT.name)
Body = tuple[ast.Stmt, ...]


def _spelled_body(body: Body, is_break: Callable[[ast.Call], bool]) -> Body:
    """The same with calls that mean `break` written so; loops inside keep theirs."""
    return tuple(_spelled(s, is_break) for s in body)


def _spelled(stmt: ast.Stmt, is_break: Callable[[ast.Call], bool]) -> ast.Stmt:
    match stmt:
        case ast.Evaluate(value=ast.Call() as call) if is_break(call):
            return ast.Break(stmt.span)
        case ast.If():
            return replace(stmt, then=_spelled_body(stmt.then, is_break), orelse=_spelled_body(stmt.orelse, is_break))
        case _:
            return stmt


def _structured(body: Body) -> Body:
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
                then, orelse = _structured((*stmt.then, *rest)), _structured((*stmt.orelse, *rest))
                return (*body[:place], ast.If(stmt.condition, then, orelse, stmt.span))
            case _:
                pass
    return body


def _has_break(body: Body) -> bool:
    """Whether the loop that has this body may be left by a `break`."""
    return any(
        isinstance(s, ast.Break) or (isinstance(s, ast.If) and (_has_break(s.then) or _has_break(s.orelse)))
        for s in body
    )


def _may_jump(stmt: ast.Stmt) -> bool:
    """Whether the statement may leave the iteration of the loop it stands in; loops inside it keep their jumps."""
    if isinstance(stmt, ast.If):
        return any(map(_may_jump, (*stmt.then, *stmt.orelse)))
    return isinstance(stmt, ast.Break | ast.Continue)


@contextmanager
def loop(context: Context, kind: str, span: Span) -> Iterator[None]:
    """Inside is an iteration of a loop of this kind, which `break` leaves."""
    context.loops.append(kind)
    context.pipelines.looked.clear()  # in the next iteration it would be about another stage
    outer, context.withs = context.withs, 0
    try:
        with context.ledger.loop(Path(span, "the next iteration begins with it")):
            yield
    finally:
        context.loops.pop()
        context.pipelines.looked.clear()
        context.withs = outer


def without_jumps(context: Context, body: tuple[ast.Stmt, ...]) -> tuple[ast.Stmt, ...]:
    """The body of a loop, of which no statement jumps."""
    return _structured(_spelled_body(body, partial(_is_break, context)))


def leaves(context: Context, body: Body) -> bool:
    """Whether the loop that has this body may be left by a `break`, however that is spelled."""
    return _has_break(_spelled_body(body, partial(_is_break, context)))


def _is_break(context: Context, call: ast.Call) -> bool:
    """Whether this is T.loop_break(), by whatever name it came in."""
    match call.function:
        case ast.Attribute(name=name) | ast.Name(id=name) if name == "loop_break":
            return evaluate.callee(context, call) == LOOP_BREAK.name and not call.args and not call.keywords
        case _:
            return False


def leave(context: Context, node: ast.Break | ast.Continue) -> None:
    word = "break" if isinstance(node, ast.Break) else "continue"
    if not context.loops:
        fail("misplaced-statement", f"`{word}` stands in no loop", node.span)
    if context.withs:
        fail(
            "misplaced-statement",
            f"`{word}` stands in a `with` inside the loop",
            node.span,
            help="put what it skips under an `if`, or acquire by `.acquire_stage()`, and release before it",
        )
    assert isinstance(node, ast.Break), "a continue is an empty rest of the iteration"
    per_thread.together(context, node.span, "`break`")
    if context.loops[-1] not in _LEAVABLE:
        fail(
            "misplaced-statement",
            f"{context.loops[-1]} cannot be left with `break`",
            node.span,
            "its iterations do not run one after another",
            help="use T.serial, or guard the rest of the body with `if`",
        )
    context.ledger.leave(node.span, word)
    context.out.append(Break(node.span))
