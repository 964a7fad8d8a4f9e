"""Waits for a barrier under a condition on the thread, as `if tx == 0:` in a role of 32 threads or more.

A role runs its statements together, so all of its threads wait where one of them would. They wait in vain where another
of them would do in the meantime what the wait needs: so all arrivals of the role must be those of the waiting threads,
or of all its threads.
"""

from __future__ import annotations

from tilec.frontend.sema.context import Context, PartialSynchronisation
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS
from tilec.ops.synchronisation.barriers import AwaitBarrier
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import Label, raise_error


def find_wait_condition(context: Context, op: tile.TileOp) -> tile.Expr | None:
    """Return the condition under which a role does a wait that some of its threads ask for: what their conditions say
    beside the thread. None for other statements, and where that differs between threads. It is known by then that the
    conditions divide no warps into roles.
    """
    if not isinstance(op, AwaitBarrier) or not context.masks or not context.has_explicit_roles:
        return None
    if not {mask.span for mask in context.masks} <= context.findings.dividing_ifs:
        return None
    return per_thread.find_common_condition(context)


def record_partial_synchronisation(context: Context, op: tile.TileOp) -> None:
    """Record a wait or an arrival that only some threads of a role do."""
    condition = per_thread.join_conditions(mask.condition for mask in context.masks)
    if condition is not None and op.synchronises_roles:
        role = range(0) if context.role is None else context.role
        context.partial_synchronisations.append(PartialSynchronisation(role, condition, op))


def refuse_waits_for_own_threads(context: Context) -> None:
    """Raise `thread-dependent` for a wait of some threads of a role, others of which arrive at a barrier alone."""
    waits = [each for each in context.partial_synchronisations if isinstance(each.op, AwaitBarrier)]
    for wait in waits:
        low, high = _list_threads(wait.role) if wait.role else context.ranges[tile.THREAD.name]
        waiting = [thread for thread in range(low, high + 1) if _may_run(wait.condition, thread)]
        for other in context.partial_synchronisations:
            if other.role != wait.role or isinstance(other.op, AwaitBarrier):
                continue
            if not all(_may_run(other.condition, thread) for thread in waiting):
                title = "all threads of a role wait here, though only some ask for it, and others arrive by themselves"
                place = Label(other.op.span, "arrives for other threads")
                way_out = "let the thread that waits arrive as well, or give each of them a warp of its own"
                raise_error("thread-dependent", title, wait.op.span, secondary=(place,), help=way_out)


def _list_threads(role: range) -> tuple[int, int]:
    """Return the first and the last thread of these warps."""
    return WARP_THREADS * role.start, WARP_THREADS * role.stop - 1


def _may_run(condition: tile.Expr, thread: int) -> bool:
    """Return whether a condition may hold for a thread."""
    folded = fold_expr(tile.substitute_variables(condition, {tile.THREAD: tile.int32_const(thread)}))
    return not isinstance(folded, tile.Const) or bool(folded.value)
