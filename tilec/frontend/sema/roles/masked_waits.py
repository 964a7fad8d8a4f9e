"""Waits for a barrier under a condition on the thread, as `if tx == 0:` in a role of 32 threads or more.

A role runs its statements together, so all of its threads wait where one of them would. They wait in vain where another
of them would do in the meantime what the wait needs: so the threads that wait must take part in all arrivals of the
role, and in all its writes to what a loop polls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tilec.frontend.sema.context import Context, PartialSynchronisation
from tilec.frontend.sema.loops.polling import Visit, find_polled, is_elsewhere, walk_with_conditions
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ir.expr import make_constant
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import BOOL
from tilec.ops.synchronisation.barriers import AwaitBarrier
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span


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


class _Signal(NamedTuple):
    """A statement by which some threads let others go on: the condition under which a thread does it, words for what it
    does, and its place in the text.
    """

    condition: tile.Expr
    deed: str
    span: Span


def refuse_waits_for_own_threads(context: Context, body: tuple[tile.Stmt, ...]) -> None:
    """Raise `thread-dependent` for a wait of some threads of a role, behind which others arrive at a barrier alone, or
    write alone what a loop polls. `body` is the kernel's.
    """
    waits = [each for each in context.partial_synchronisations if isinstance(each.op, AwaitBarrier)]
    walk = tuple(walk_with_conditions(body, frozenset(), -1)) if waits else ()
    for wait in waits:
        low, high = _list_threads(wait.role) if wait.role else context.ranges[tile.THREAD.name]
        waiting = {thread for thread in range(low, high + 1) if _may_run(wait.condition, thread)}
        later = walk[next((at for at, (stmt, _, _) in enumerate(walk) if stmt.span == wait.op.span), 0) :]
        for signal in _find_signals(context, walk, later):
            signalling = {thread for thread in range(low, high + 1) if _may_run(signal.condition, thread)}
            if signalling and not waiting <= signalling:
                title = (
                    "all threads of a role wait here, though only some ask for it, "
                    f"and others {signal.deed} by themselves"
                )
                place = Label(signal.span, "done for other threads")
                way_out = "let the thread that waits do it as well, or give each of them a warp of its own"
                raise_error("thread-dependent", title, wait.op.span, secondary=(place,), help=way_out)


def _find_signals(context: Context, walk: tuple[Visit, ...], later: tuple[Visit, ...]) -> Iterator[_Signal]:
    """Find the signals of single threads among the later ones of a kernel's statements."""
    spans = {stmt.span for stmt, _, _ in later}
    for each in context.partial_synchronisations:
        if not isinstance(each.op, AwaitBarrier) and each.op.span in spans:
            first, last = _list_threads(each.role) if each.role else context.ranges[tile.THREAD.name]
            from_first = tile.Binary("ge", tile.THREAD, tile.int32_const(first), BOOL)
            to_last = tile.Binary("le", tile.THREAD, tile.int32_const(last), BOOL)
            condition = per_thread.join_conditions((from_first, to_last, each.condition))
            assert condition is not None, "it joins three"
            yield _Signal(condition, "arrive", each.op.span)
    loops = [tuple(tile.walk_statements((stmt,))) for stmt, _, _ in walk if isinstance(stmt, tile.While)]
    polled = {place for loop in loops for place in find_polled(loop)}
    for stmt, conditions, _ in later:
        if not isinstance(stmt, tile.Store) or stmt.atomic == "load":
            continue
        if any(stmt.buffer == place[0] and not is_elsewhere((stmt.buffer, stmt.indices), place) for place in polled):
            condition = per_thread.join_conditions(conditions) or make_constant(True, BOOL)
            yield _Signal(condition, "write what a loop reads", stmt.span)


def _list_threads(role: range) -> tuple[int, int]:
    """Return the first and the last thread of these warps."""
    return WARP_THREADS * role.start, WARP_THREADS * role.stop - 1


def _may_run(condition: tile.Expr, thread: int) -> bool:
    """Return whether a condition may hold for a thread."""
    places = {tile.THREAD: tile.int32_const(thread), tile.BLOCK_WARP: tile.int32_const(thread // WARP_THREADS)}
    folded = fold_expr(tile.substitute_variables(condition, places))
    return not isinstance(folded, tile.Const) or bool(folded.value)
