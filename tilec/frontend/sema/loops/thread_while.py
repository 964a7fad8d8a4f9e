"""A `while` whose condition differs from thread to thread.

Control flow stays uniform: all threads run as many iterations as any of them needs, and a thread whose condition no
longer holds does nothing in the others. A variable of each thread says whether it is still in the loop. All threads ask
before each iteration whether any is: those of a block by a barrier that combines their answers, and those of a role of
one warp by a vote.

So a thread must not wait in such a loop for what another thread of the same block does behind it (`polling.py`).
"""

from __future__ import annotations

from tilec.frontend.sema.context import Context, Mask
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.statements import jumps, per_thread
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import make_constant
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import BOOL, INT32
from tilec.ops.language import arithmetic
from tilec.ops.language.values import EXPR_TYPES, Value
from tilec.support.diagnostics import raise_error

_FIRST = (tile.int32_const(0),)


def differs_by_thread(context: Context, node: ast.While) -> bool:
    """Return whether a loop's condition may differ between the threads that run it, or not all of the block run it and
    it is not known which ones do.
    """
    if context.is_divergent and per_thread.find_common_condition(context) is None:
        return True
    with context.region("the condition", is_loop=True) as out:
        condition = _evaluate_condition(context, node)
    if out or not isinstance(condition, EXPR_TYPES) or not per_thread.is_varying(context, condition):
        return False
    per_thread.request_uniform_arrays(context, (condition,))  # the loop is one of the block where all set them alike
    return True


def elaborate_thread_while(context: Context, node: ast.While) -> None:
    """Emit a `while` that each thread runs until its own condition fails; refuse one without an end, and one in a role
    of several warps. Errors: `thread-dependent`.
    """
    span = node.condition.span
    vote = _choose_vote(context, node)
    staying = per_thread.allocate_local_array(context, "stays", (1,), INT32, span)
    begins = per_thread.join_conditions(per_thread.collect_thread_conditions(context)) or make_constant(True, BOOL)
    begin = tile.Store(staying, _FIRST, _convert_to_integer(begins), span)
    context.out.append(tile.Parallel((tile.THREAD,), (context.threads,), (begin,), span))
    stays = tile.Binary("ne", tile.Load(staying, _FIRST), tile.int32_const(0), BOOL)
    mask = Mask(stays, stays)
    with context.region("the loop", is_loop=True) as out:
        with per_thread.mask_threads(context, mask):
            condition = _evaluate_condition(context, node)
            if out:
                title = "the condition of a `while` may only read values, and this one needs other statements"
                way_out = "set a T.alloc_var variable in each iteration, and test it"
                raise_error("misplaced-statement", title, span, help=way_out)
            if isinstance(condition, bool):
                title = "threads would leave this loop one by one, and its condition never changes"
                way_out = "set a T.alloc_var variable where the loop ends, and test it"
                raise_error("infinite-loop", title, span, f"always {condition}", help=way_out)
            assert isinstance(condition, EXPR_TYPES), "a condition is a bool or an expression"
            update = tile.Store(staying, _FIRST, _convert_to_integer(condition), span)
            per_thread.emit_for_each_thread(context, (update,), span)
        goes_on = context.bind_value("goes_on", tile.Call(vote, (stays,), BOOL), span)
        with (
            context.region("the iteration", is_loop=False) as iteration,
            per_thread.mask_threads(context, mask),
            jumps.enter_loop(context, "while", span),
        ):
            jumps.elaborate_iteration(context, "while", node.body)
        out.append(tile.If(goes_on, tuple(iteration), (tile.Break(span),), node.span))
    context.out.append(tile.While(make_constant(True, BOOL), tuple(out), node.span))
    conditions = frozenset(per_thread.collect_thread_conditions(context))
    if per_thread.count_reaching_threads(context) > 1 or context.thread_whiles.get(node.span, conditions) != conditions:
        conditions = frozenset({make_constant(False, BOOL)})
    context.thread_whiles[node.span] = conditions


# ---- parts of the loop -----------------------------------------------------------------------------------------------


def _evaluate_condition(context: Context, node: ast.While) -> Value:
    with context.guarded():
        return arithmetic.as_condition(evaluate.evaluate_operand(context, node.condition))


def _choose_vote(context: Context, node: ast.While) -> str:
    """Return the function by which all running threads ask whether any of them goes on; refuse a role of several
    warps.
    """
    if context.role is not None and context.threads == WARP_THREADS:
        return "vote_any"
    if context.role is not None or context.has_explicit_roles:
        title = "the condition of a `while` in a role must be the same for all of its threads"
        way_out = "give the loop to a warp of its own, as by `if tx < 32:`"
        raise_error("thread-dependent", title, node.condition.span, "depends on the thread", help=way_out)
    return "block_or"


def _convert_to_integer(condition: tile.Expr) -> tile.Expr:
    return tile.Select(condition, tile.int32_const(1), tile.int32_const(0), INT32)
