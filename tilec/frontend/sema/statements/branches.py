"""Elaboration of `if`: decided at compile time, common to all threads, or evaluated by each thread or warp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby

from tilec.frontend.sema.context import Context, Mask
from tilec.frontend.sema.expressions import evaluate, reading
from tilec.frontend.sema.roles import explicit_roles as roles
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS, WARPGROUP_WARPS, describe_warps
from tilec.ir.types import BOOL
from tilec.ops.language import arithmetic
from tilec.ops.language.values import EXPR_TYPES
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import raise_error
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
    """Emit both sides of a run-time condition: as an `if`, or, if it differs by thread, per role or masked."""
    if not context.is_parallel and per_thread.is_varying(context, condition):
        if not _divide_among_warps(context, sides, condition):
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


def _divide_among_warps(context: Context, sides: BranchSides, holds: tile.Expr) -> bool:
    """Emit an `if` on the thread as work of roles; return False unless each warpgroup has one condition. That is for
    kernels with explicit roles. Where the `if` has statements that threads run together, one condition for each warp
    is enough. A condition that still depends on the block stays the `if` of its warps.
    """
    if not context.has_explicit_roles or context.masks or not len(warps := roles.find_active_warps(context)):
        return False
    threads = (range(WARP_THREADS * warp, WARP_THREADS * (warp + 1)) for warp in warps)
    by_warp = [{_fold_for_thread(thread, holds) for thread in own} for own in threads]
    if any(len(each) > 1 or any(per_thread.is_varying(context, c) for c in each) for each in by_warp):
        return False
    conditions = {warp: next(iter(each)) for warp, each in zip(warps, by_warp, strict=True)}
    if sides.span not in context.findings.dividing_ifs and _divides_warpgroup(conditions):
        return False
    for condition in sorted(dict.fromkeys(conditions.values()), key=_is_constant_false):
        work: Callable[[], None] | None
        if not isinstance(condition, tile.Const):
            work = partial(elaborate_branch, context, sides, condition)
        else:
            work = sides.then if condition.value else sides.orelse
        if work is not None:
            own = [warp for warp, each in conditions.items() if each == condition]
            _elaborate_for_warps(context, own, work, sides)
    return True


def _divides_warpgroup(conditions: Mapping[int, tile.Expr]) -> bool:
    """Return whether the warps of a warpgroup, or of a part of one at either end, have different conditions."""
    first, stop = min(conditions), max(conditions) + 1
    has_parts = first % WARPGROUP_WARPS or stop % WARPGROUP_WARPS
    return bool(has_parts) or any(
        conditions[warp] != conditions[warp - warp % WARPGROUP_WARPS] for warp in range(first, stop)
    )


def _elaborate_for_warps(context: Context, warps: list[int], work: Callable[[], None], sides: BranchSides) -> None:
    """Elaborate the same work for each run of neighbouring warps; refuse statements that two of them would have to run
    together."""
    done: dict[Span, range] = {}
    for _, members in groupby(enumerate(warps), lambda entry: entry[1] - entry[0]):
        listed = [warp for _, warp in members]
        own, before = range(listed[0], listed[-1] + 1), len(context.out)
        roles.elaborate_role(context, own, work, sides.span)
        for span in {s.span for s in tile.walk_statements(tuple(context.out[before:])) if _is_for_whole_role(s)}:
            other = done.setdefault(span, own)
            if other != own:
                title = "the warps of a role must be consecutive"
                note = f"{describe_warps(other)} and {describe_warps(own)} run this, and others do not"
                way_out = "write an `if` for each range of neighbouring warps"
                raise_error("noncontiguous-warpgroups", title, span, note, help=way_out)


def _is_for_whole_role(stmt: tile.Stmt) -> bool:
    """Return whether a role runs the statement once: its threads together, or one for them all."""
    if isinstance(stmt, tile.TileOp):
        return stmt.is_collective or stmt.done_by == "one thread"
    return isinstance(stmt, tile.Parallel) and not stmt.is_per_thread


def _fold_for_thread(thread: int, holds: tile.Expr) -> tile.Expr:
    """Return a condition with the thread index replaced by this number, and constants folded."""
    return fold_expr(tile.substitute_variables(holds, {tile.THREAD: tile.int32_const(thread)}))


def _is_constant_false(condition: tile.Expr) -> bool:
    """Return whether a condition is the constant false."""
    return isinstance(condition, tile.Const) and not condition.value
