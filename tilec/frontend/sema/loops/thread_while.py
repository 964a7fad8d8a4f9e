"""A `while` whose condition differs from thread to thread.

Control flow stays uniform: all threads run as many iterations as any of them needs, and a thread whose condition no
longer holds does nothing in the others. A variable of each thread says whether it is still in the loop. All threads ask
before each iteration whether any is: those of a block by a barrier that combines their answers, and those of a role of
one warp by a vote.

So a thread must not wait in such a loop for what another thread of the same block does behind it. A loop that reads
what the kernel writes is refused, unless the writing is done before it or in it, or one thread does both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.analysis.usage import find_writes
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
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

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


# ---- waiting for other threads ---------------------------------------------------------------------------------------


def refuse_waits_for_idle_threads(body: tuple[tile.Stmt, ...], loops: Mapping[Span, frozenset[tile.Expr]]) -> None:
    """Raise `thread-dependent` for a `while` of single threads that reads what others write later in the kernel.
    `loops` has the conditions on the thread that runs each of these loops, by its place in the text; one that is never
    met stands for several threads, of which one may wait for another. `body` is the kernel's.
    """
    walk = tuple(_walk_with_conditions(body, frozenset(), -1)) if loops else ()
    for place, (stmt, _, repeated_from) in enumerate(walk):
        if not isinstance(stmt, tile.While) or stmt.span not in loops:
            continue
        first = place if repeated_from < 0 else repeated_from
        inside = tuple(tile.walk_statements(stmt.body))
        tried, behind = _find_tried(inside), place + len(inside)
        polled = _find_polled(inside) - {buffer for each in inside for buffer in _list_written(each)}
        for at, (other, conditions, _) in enumerate(walk[first:], first):
            read = polled if place <= at <= behind else polled | tried
            awaited = read & set(_list_written(other)) if not loops[stmt.span] <= conditions else ()
            if awaited:
                name = min(buffer.name for buffer in awaited)
                title = f"this `while` reads {name}, and other threads of the block may write it only behind the loop"
                place_of_write = Label(other.span, "written here")
                way_out = "let the threads that read it write it, or let all threads of the block run the loop alike"
                note = "all threads stay in the loop until the last one leaves it"
                raise_error("thread-dependent", title, stmt.span, note, secondary=(place_of_write,), help=way_out)


def _walk_with_conditions(
    body: tuple[tile.Stmt, ...], conditions: frozenset[tile.Expr], repeated_from: int, count: int = 0
) -> Iterator[tuple[tile.Stmt, frozenset[tile.Expr], int]]:
    """Yield each statement in the order of the text, with the conditions around it, and the place of the outermost loop
    around it, or -1. `count` statements were yielded before.
    """
    for stmt in body:
        yield stmt, conditions, repeated_from
        count += 1
        is_loop = isinstance(stmt, tile.For | tile.While)
        outermost = count - 1 if is_loop and repeated_from < 0 else repeated_from
        parts = (
            ((stmt.then, {stmt.condition}), (stmt.orelse, {tile.Unary("not", stmt.condition, BOOL)}))
            if (isinstance(stmt, tile.If))
            else tuple((inner, set[tile.Expr]()) for inner in tile.nested_bodies(stmt))
        )
        for inner, added in parts:
            for entry in _walk_with_conditions(inner, conditions | added, outermost, count):
                yield entry
                count += 1


def _find_polled(inside: tuple[tile.Stmt, ...]) -> set[tile.Buffer]:
    """Return the tensors and shared tiles that a loop of these statements reads atomically, or at a place that does not
    change in it.
    """
    changed = {s.buffer for s in inside if isinstance(s, tile.Store)}
    bound = {s.var for s in inside if isinstance(s, tile.Bind)}
    found = {s.buffer for s in inside if isinstance(s, tile.Store) and s.atomic == "load"}
    for load in (load for stmt in inside for load in tile.walk_loads(stmt)):
        parts = [part for index in load.indices for part in tile.walk_expr(index)]
        moves = any(part in bound or (isinstance(part, tile.Load) and part.buffer in changed) for part in parts)
        if load.buffer.scope in ("shared", "global") and not moves:
            found.add(load.buffer)
    return found


def _find_tried(inside: tuple[tile.Stmt, ...]) -> set[tile.Buffer]:
    """Return the tensors and shared tiles whose old values, given by atomic updates in a loop of these statements,
    decide whether a thread stays: it may try to take a lock.
    """
    calls = (call for s in inside if isinstance(s, tile.Bind) for call in tile.walk_expr(s.value))
    votes = [call for call in calls if isinstance(call, tile.Call) and call.fn in ("vote_any", "block_or")]
    needed = {part for vote in votes for part in _list_names(vote)}
    known = 0
    while known != len(needed):
        known = len(needed)
        for s in inside:
            if isinstance(s, tile.Store) and s.buffer in needed:
                needed |= {part for expr in (s.value, *s.indices) for part in _list_names(expr)}
            elif isinstance(s, tile.Bind) and s.var in needed:
                needed |= set(_list_names(s.value))
    return {s.buffer for s in inside if isinstance(s, tile.Store) and s.previous in needed}


def _list_names(expr: tile.Expr) -> Iterator[tile.Buffer | tile.Var]:
    """Yield the buffers and variables that an expression reads."""
    for part in tile.walk_expr(expr):
        if isinstance(part, tile.Var):
            yield part
        elif isinstance(part, tile.Load):
            yield part.buffer


def _list_written(stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    """Yield the buffers that a statement itself writes, without those nested in it."""
    if isinstance(stmt, tile.Store) and stmt.atomic != "load":
        yield stmt.buffer
    elif isinstance(stmt, tile.TileOp):
        yield from find_writes(stmt)


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
