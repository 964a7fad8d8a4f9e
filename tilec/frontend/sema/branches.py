"""An `if` of a kernel: decided at compile time, asked by all threads alike, by each thread or by each warpgroup."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilec.frontend.sema import evaluate, explicit_roles as roles, per_thread, reading
from tilec.frontend.sema.context import Context
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.ops import arithmetic
from tilec.ops.values import EXPR_TYPES
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of a condition: what reads the statements of each, and where the condition and all of it stand."""

    where: Span
    span: Span
    then: Callable[[], None]
    orelse: Callable[[], None] | None = None


def decide(context: Context, node: ast.If) -> None:
    condition = arithmetic.condition(evaluate.operand(context, node.condition))
    if isinstance(condition, bool):
        context.block(node.then if condition else node.orelse)
        return
    assert isinstance(condition, EXPR_TYPES), "a condition is a bool or an expression"
    orelse = partial(context.block, node.orelse) if node.orelse else None
    branch(context, Sides(node.condition.span, node.span, partial(context.block, node.then), orelse), condition)


def branch(context: Context, sides: Sides, condition: tile.Expr) -> None:
    """The `if`, where this is what its condition comes to."""
    if not context.is_parallel and per_thread.is_varying(context, condition):
        if not _divided(context, sides, condition):
            _masked(context, sides, condition)
        return
    where = sides.where
    with context.guarded(), context.ledger.parting(where) as paths:
        with paths.path("holds", where), context.region("the branch", is_loop=False) as then:
            sides.then()
        with paths.path("does not hold", where), context.region("the branch", is_loop=False) as orelse:
            if sides.orelse is not None:
                sides.orelse()
    if then or orelse:
        context.out.append(tile.If(condition, tuple(then), tuple(orelse), sides.span))


def behind(context: Context, sides: Sides, condition: tile.Expr) -> None:
    """What follows an `if` that may have ended the iteration, where this says that it has not, and how it ends where it
    has. No other path comes here."""
    if not context.is_parallel and per_thread.is_varying(context, condition):
        _masked(context, sides, condition)
        return
    with context.guarded(), context.region("the branch", is_loop=False) as then:
        sides.then()
    with context.region("the branch", is_loop=False) as orelse:
        if sides.orelse is not None:
            sides.orelse()
    if then or orelse:
        context.out.append(tile.If(condition, tuple(then), tuple(orelse), sides.span))


def _masked(context: Context, sides: Sides, condition: tile.Expr) -> None:
    """The `if` that each thread answers for itself: its statements are guarded one by one."""
    begin = reading.now(context)
    holds = per_thread.frozen(context, condition, sides.where)
    for mask, work in ((holds, sides.then), (tile.Unary("not", holds, BOOL), sides.orelse)):
        with context.region("the branch", is_loop=False) as out, per_thread.masked(context, mask):
            if work is not None:
                work()
        context.out += out
    context.converted_ifs.append((sides.span, tuple(reading.since(context, begin))))


def _divided(context: Context, sides: Sides, holds: tile.Expr) -> bool:
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
        work: Callable[[], None] | None
        if not isinstance(answer, tile.Const):
            work = partial(branch, context, sides, answer)
        else:
            work = sides.then if answer.value else sides.orelse
        if work is not None:
            roles.run(context, roles.neighbours(groups, sides.where), work, sides.span)
    return True


def _asked_of(thread: int, holds: tile.Expr) -> tile.Expr:
    return fold_expr(tile.substitute(holds, {tile.THREAD: tile.integer(thread)}))


def _is_no(answer: tile.Expr) -> bool:
    return isinstance(answer, tile.Const) and not answer.value
