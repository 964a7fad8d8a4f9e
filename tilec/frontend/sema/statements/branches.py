"""Elaboration of `if`: decided at compile time, common to all threads, or evaluated by each thread or warpgroup."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilec.frontend.sema.context import Context, Mask
from tilec.frontend.sema.expressions import evaluate, reading
from tilec.frontend.sema.roles import explicit_roles as roles
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.ops.language import arithmetic
from tilec.ops.language.values import EXPR_TYPES
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class BranchSides:
    """The two sides of a condition: functions that elaborate their statements. `where` is the place of the condition,
    `span` that of the whole."""

    where: Span
    span: Span
    then: Callable[[], None]
    orelse: Callable[[], None] | None = None


def elaborate_if(context: Context, node: ast.If) -> None:
    """Elaborate an `if` without jumps: only the chosen side if decided at compile time, else both under the
    condition.
    """
    condition = arithmetic.as_condition(evaluate.evaluate_operand(context, node.condition))
    if isinstance(condition, bool):
        context.block(node.then if condition else node.orelse)
        return
    assert isinstance(condition, EXPR_TYPES), "a condition is a bool or an expression"
    then, orelse = partial(context.block, node.then), partial(context.block, node.orelse) if node.orelse else None
    elaborate_branch(context, BranchSides(node.condition.span, node.span, then, orelse), condition)


def elaborate_branch(context: Context, sides: BranchSides, condition: tile.Expr) -> None:
    """Emit both sides of a run-time condition: as an `if`, or, if it differs by thread, per warpgroup or masked."""
    if not context.is_parallel and per_thread.is_varying(context, condition):
        if not _divide_by_warpgroup(context, sides, condition):
            _mask_by_thread(context, sides, condition)
        return
    where = sides.where
    with context.guarded(), context.ledger.split_paths(where) as paths:
        with paths.path("holds", where), context.region("the branch", is_loop=False) as then:
            sides.then()
        with paths.path("does not hold", where), context.region("the branch", is_loop=False) as orelse:
            if sides.orelse is not None:
                sides.orelse()
    if then or orelse:
        context.out.append(tile.If(condition, tuple(then), tuple(orelse), sides.span))


def elaborate_guarded_rest(context: Context, sides: BranchSides, condition: tile.Expr) -> None:
    """Emit the rest of a body where `condition` holds, so that the iteration goes on, and the side that ends it. No
    other path gets here.
    """
    if not context.is_parallel and per_thread.is_varying(context, condition):
        _mask_by_thread(context, sides, condition)
        return
    with context.guarded(), context.region("the branch", is_loop=False) as then:
        sides.then()
    with context.region("the branch", is_loop=False) as orelse:
        if sides.orelse is not None:
            sides.orelse()
    if then or orelse:
        context.out.append(tile.If(condition, tuple(then), tuple(orelse), sides.span))


def _mask_by_thread(context: Context, sides: BranchSides, condition: tile.Expr) -> None:
    """Emit both sides of an `if` that differs from thread to thread, each statement guarded, and record it as
    converted. Where it is shared, the whole block runs its collective statements if a thread gets there.
    """
    begin = reading.mark_moment(context)
    holds = per_thread.freeze_value(context, condition, sides.where)
    is_shared = sides.span in context.findings.shared_ifs
    for side, work in ((holds, sides.then), (tile.Unary("not", holds, BOOL), sides.orelse)):
        mask, reached = Mask(side, condition, sides.span, is_shared), None
        with context.region("the branch", is_loop=False) as out, per_thread.mask_threads(context, mask):
            if work is not None:
                work()
            if is_shared:
                reached = per_thread.find_common_condition(context)
        context.out += _guard_statements(out, reached, sides.span)
    context.converted_ifs.append((sides.span, tuple(reading.list_statements_since(context, begin))))


def _guard_statements(statements: list[tile.Stmt], reached: tile.Expr | None, span: Span) -> list[tile.Stmt]:
    """Return statements under an `if` on `reached`; as they are if it is None or true, and none if it is false."""
    if isinstance(reached, tile.Const):
        return statements if reached.value else []
    return statements if reached is None or not statements else [tile.If(reached, tuple(statements), (), span)]


def _divide_by_warpgroup(context: Context, sides: BranchSides, holds: tile.Expr) -> bool:
    """Emit an `if` on the thread as work of roles; return False unless each warpgroup has one condition. That is for
    kernels with explicit roles. A condition that still depends on the block stays the `if` of its warpgroups.
    """
    if not context.has_explicit_roles or context.masks or not len(warpgroups := roles.find_active_warpgroups(context)):
        return False
    threads = map(roles.get_warpgroup_threads, warpgroups)
    conditions = [{_fold_for_thread(thread, holds) for thread in own} for own in threads]
    if any(len(each) > 1 or any(per_thread.is_varying(context, c) for c in each) for each in conditions):
        return False
    for condition in sorted(dict.fromkeys(next(iter(each)) for each in conditions), key=_is_constant_false):
        groups = [group for group, each in zip(warpgroups, conditions, strict=True) if each == {condition}]
        work: Callable[[], None] | None
        if not isinstance(condition, tile.Const):
            work = partial(elaborate_branch, context, sides, condition)
        else:
            work = sides.then if condition.value else sides.orelse
        if work is not None:
            roles.elaborate_role(context, roles.check_neighbours(groups, sides.where), work, sides.span)
    return True


def _fold_for_thread(thread: int, holds: tile.Expr) -> tile.Expr:
    """Return a condition with the thread index replaced by this number, and constants folded."""
    return fold_expr(tile.substitute_variables(holds, {tile.THREAD: tile.int32_const(thread)}))


def _is_constant_false(condition: tile.Expr) -> bool:
    """Return whether a condition is the constant false."""
    return isinstance(condition, tile.Const) and not condition.value
