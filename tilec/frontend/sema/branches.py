"""Elaboration of `if`: decided at compile time, common to all threads, or evaluated by each thread or warpgroup."""

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
    """The two sides of a condition: functions that elaborate their statements. `where` is the place of the condition,
    `span` that of the whole."""

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
    """Elaborate the rest of a body after an `if` that may end the iteration. Where `condition` holds the iteration goes
    on; the other side ends it. No other path gets here."""
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
    """Elaborate an `if` whose condition differs from thread to thread: its statements are guarded one by one."""
    begin = reading.now(context)
    holds = per_thread.frozen(context, condition, sides.where)
    for mask, work in ((holds, sides.then), (tile.Unary("not", holds, BOOL), sides.orelse)):
        with context.region("the branch", is_loop=False) as out, per_thread.masked(context, mask):
            if work is not None:
                work()
        context.out += out
    context.converted_ifs.append((sides.span, tuple(reading.since(context, begin))))


def _divided(context: Context, sides: Sides, holds: tile.Expr) -> bool:
    """Divide an `if` on the thread by warpgroup, where each warpgroup has one condition: in kernels with explicit
    roles, each side becomes the work of a role. A condition that still depends on the block stays the `if` of its
    warpgroups. Return whether that was possible."""
    if not context.has_explicit_roles or context.masks or not len(warpgroups := roles.whole(context)):
        return False
    conditions = [{_asked_of(thread, holds) for thread in roles.threads_of(group)} for group in warpgroups]
    if any(len(each) > 1 or any(per_thread.is_varying(context, c) for c in each) for each in conditions):
        return False
    for condition in sorted(dict.fromkeys(next(iter(each)) for each in conditions), key=_is_no):
        groups = [group for group, each in zip(warpgroups, conditions, strict=True) if each == {condition}]
        work: Callable[[], None] | None
        if not isinstance(condition, tile.Const):
            work = partial(branch, context, sides, condition)
        else:
            work = sides.then if condition.value else sides.orelse
        if work is not None:
            roles.run(context, roles.neighbours(groups, sides.where), work, sides.span)
    return True


def _asked_of(thread: int, holds: tile.Expr) -> tile.Expr:
    return fold_expr(tile.substitute(holds, {tile.THREAD: tile.integer(thread)}))


def _is_no(condition: tile.Expr) -> bool:
    return isinstance(condition, tile.Const) and not condition.value
