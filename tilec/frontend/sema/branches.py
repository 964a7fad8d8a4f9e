"""An `if` of a kernel: decided at compile time, asked by all threads alike, by each thread or by each warpgroup."""

from __future__ import annotations

from functools import partial

from tilec.frontend.sema import evaluate, explicit_roles as roles, per_thread
from tilec.frontend.sema.context import Context
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.ops import arithmetic
from tilec.ops.values import EXPR_TYPES
from tilec.passes.analysis.fold_constants import fold_expr


def decide(context: Context, node: ast.If) -> None:
    condition = arithmetic.condition(evaluate.operand(context, node.condition))
    if isinstance(condition, bool):
        context.block(node.then if condition else node.orelse)
        return
    assert isinstance(condition, EXPR_TYPES), "a condition is a bool or an expression"
    branch(context, node, condition)


def branch(context: Context, node: ast.If, condition: tile.Expr) -> None:
    """The `if`, where this is what its condition comes to."""
    if not context.is_parallel and per_thread.is_varying(context, condition):
        if _divided(context, node, condition):
            return
        begin = len(context.out)
        holds = per_thread.frozen(context, condition, node.condition.span)
        for mask, body in ((holds, node.then), (tile.Unary("not", holds, BOOL), node.orelse)):
            with context.region("the branch", is_loop=False) as out, per_thread.masked(context, mask):
                context.block(body)
            context.out += out
        context.converted_ifs.append((node.span, tuple(context.out[begin:])))
        return
    where = node.condition.span
    with context.guarded(), context.ledger.parting(where) as paths:
        with paths.path("holds", where), context.region("the branch", is_loop=False) as then:
            context.block(node.then)
        with paths.path("does not hold", where), context.region("the branch", is_loop=False) as orelse:
            context.block(node.orelse)
    if then or orelse:
        context.out.append(tile.If(condition, tuple(then), tuple(orelse), node.span))


def _divided(context: Context, node: ast.If, holds: tile.Expr) -> bool:
    """An `if` on the thread that each warpgroup answers as one, in a kernel that orders its threads by barriers: each
    side is the work of those that answer so. Where a warpgroup's answer is another condition, on the block, that is
    what its `if` asks."""
    if not context.has_explicit_roles or context.masks or not len(there := roles.whole(context)):
        return False
    answers = [{_asked_of(thread, holds) for thread in roles.threads_of(group)} for group in there]
    if any(len(answer) > 1 or any(per_thread.is_varying(context, a) for a in answer) for answer in answers):
        return False
    for answer in sorted(dict.fromkeys(next(iter(each)) for each in answers), key=_is_no):
        groups = [group for group, each in zip(there, answers, strict=True) if each == {answer}]
        if not isinstance(answer, tile.Const):
            work = partial(branch, context, node, answer)
        elif statements := node.then if answer.value else node.orelse:
            work = partial(context.block, statements)
        else:
            continue
        roles.run(context, roles.neighbours(groups, node.condition.span), work, node.span)
    return True


def _asked_of(thread: int, holds: tile.Expr) -> tile.Expr:
    return fold_expr(tile.substitute(holds, {tile.THREAD: tile.integer(thread)}))


def _is_no(answer: tile.Expr) -> bool:
    return isinstance(answer, tile.Const) and not answer.value
