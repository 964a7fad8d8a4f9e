"""Loops and nests whose bounds or bodies vary between threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from tilec.analysis.trip_count import get_static_trip_count
from tilec.analysis.usage import list_expressions
from tilec.frontend.sema.context import Context, Mask
from tilec.frontend.sema.loops.loop_headers import LoopHeader
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.sema.statements.private_fragments import expected_spread
from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import BOOL, INT32
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

MAX_UNROLLED_ITERATIONS = 64  # iterations of a loop over the registers of an array


def emit_nest(context: Context, made: tile.Parallel, path: str) -> None:
    """Emit a nest, distributed over threads, or run by each if values differ; refuse a T.Parallel that cannot be
    distributed. Errors: `thread-dependent`.
    """
    everything = tuple(tile.walk_statements(made.body))
    kept = [s for s in everything if not is_random_draw(context, s)]
    stores = [s for s in kept if isinstance(s, tile.Store)]
    # Names of the thread and results of collective calls may differ between the threads that have elements.
    shared = [s for s in everything if isinstance(s, tile.Bind) and per_thread.has_collective_call(s.value)]
    others = (s for s in kept if not isinstance(s, tile.Print) and s not in shared)
    varying = [s for s in others if any(per_thread.is_varying(context, e) for e in list_expressions(s))]
    is_own = bool(varying) or any(s.buffer.scope == "local" for s in stores) or context.is_divergent
    if shared:
        made = _distribute_over_warps(made, shared[0].span, is_own or path != "T.Parallel")
    if not is_own and len(kept) < len(everything) and context.participation_condition is not None:
        _emit_draws_of_one_thread(context, made, path)
        return
    if not is_own:
        context.out.append(made)
        return
    if path == "T.Parallel" and (context.is_divergent or any(s.buffer.scope != "local" for s in stores)):
        per_thread.require_known_threads(context, made.span, "T.Parallel")
        per_thread.request_uniform_arrays(context, (e for s in varying for e in list_expressions(s)))
        title = "an element of T.Parallel depends on the thread"
        note = "tilec chooses the thread of each element"
        place = Label(made.span, "distributes its elements over the threads")
        way_out = "write T.vectorized or T.serial for work of each thread"
        raise_error("thread-dependent", title, (varying or stores)[0].span, note, secondary=(place,), help=way_out)
    loaded, fastest = {e.buffer for e in _list_loads(made.body)}, made.vars[-1]
    for buffer in (*(s.buffer for s in stores), *loaded):
        if buffer.scope == "fragment" and buffer.extents != (1,) and buffer.name not in context.variable_names:
            title = f"each thread uses elements of {buffer.name} in {path}"
            note = "a fragment is spread over the threads"
            with expected_spread(context, buffer):
                raise_error("fragment-index", title, made.span, note, help="write `for i in T.Parallel(n):` instead")
    is_independent = len(kept) == len(everything) and not any(
        s.buffer in loaded or s.atomic or (s.buffer.scope == "local" and not _is_indexed_by(s.indices, fastest))
        for s in stores
    )
    if is_independent:
        per_thread.emit_for_each_thread(context, made.body, made.span, made.vars, made.extents)
        return
    _emit_loops_of_each_thread(context, made, "unroll")


def _emit_draws_of_one_thread(context: Context, made: tile.Parallel, path: str) -> None:
    """Emit a nest with random draws as serial loops of the block's only thread: the other threads of the warp have no
    generator. Refuse it where several threads, but no whole warps, have one.
    """
    threads = math.prod(context.thread_extents)
    if threads > 1:
        title = f"random numbers in {path} need whole warps"
        note = f"T.Kernel has {threads} threads, and only they have a generator"
        way_out = f"give T.Kernel threads={context.threads}, or draw in T.serial"
        raise_error("thread-dependent", title, made.span, note, help=way_out)
    _emit_loops_of_each_thread(context, made, "serial")


def _emit_loops_of_each_thread(context: Context, made: tile.Parallel, kind: Literal["serial", "unroll"]) -> None:
    """Emit loops over a nest's variables, in which each thread runs the nest's body."""
    with context.altered(out=[]):
        per_thread.emit_for_each_thread(context, made.body, made.span)
        body = tuple(context.out)
    for var, extent in reversed(tuple(zip(made.vars, made.extents, strict=True))):
        body = (tile.For(kind, var, tile.int32_const(0), tile.int32_const(extent), 1, body, span=made.span),)
    context.out += body


def _distribute_over_warps(made: tile.Parallel, span: Span, is_own: bool) -> tile.Parallel:
    """Return the nest with width 1, so that a warp has 32 neighbours for its warp-wide calls; refuse other nests."""
    stored = (s.buffer for s in tile.walk_statements(made.body) if isinstance(s, tile.Store))
    loaded = (e.buffer for e in _list_loads(made.body))
    fragment = next((b for b in (*stored, *loaded) if b.scope == "fragment"), None)
    why = ""
    if is_own:
        why = "each thread runs this loop by itself"
    elif fragment is not None:
        why = f"the layout of {fragment.name} assigns the elements to threads"
    elif made.extents[-1] % WARP_THREADS or made.layout is not None:
        why = f"the last extent is {made.extents[-1]}"
    if why:
        title = "warp-wide calls are not defined in this loop"
        place = Label(made.span, "the lanes of a warp must be 32 consecutive elements of the last dimension")
        way_out = "use only tensors and shared tiles in it, and a multiple of 32 as its last extent"
        raise_error("thread-dependent", title, span, why, secondary=(place,), help=way_out)
    return replace(made, width=1)


def _list_loads(body: tuple[tile.Stmt, ...]) -> Iterator[tile.Load]:
    """Yield the loads in all expressions of these statements and of those inside them."""
    return (load for stmt in tile.walk_statements(body) for load in tile.walk_loads(stmt))


def is_random_draw(context: Context, stmt: tile.Stmt) -> bool:
    """Return whether a statement stores to the random generator's state, or binds a value computed only from it."""
    state = () if context.generator is None else (context.generator.words, context.generator.spare)
    if isinstance(stmt, tile.Store):
        return stmt.buffer in state
    read = {e.buffer for e in _list_loads((stmt,)) if e.buffer.scope == "local"}
    return isinstance(stmt, tile.Bind) and bool(read) and read <= set(state)


def freeze_bounds(context: Context, bounds: LoopHeader, span: Span) -> LoopHeader:
    """Return loop bounds that differ from thread to thread as values kept before the loop; uniform ones unchanged."""
    if not per_thread.is_varying(context, bounds.start) and not per_thread.is_varying(context, bounds.stop):
        return bounds
    start, stop = (per_thread.freeze_value(context, bound, span) for bound in (bounds.start, bounds.stop))
    return replace(bounds, start=start, stop=stop)


def compute_common_bounds(context: Context, bounds: LoopHeader, written: LoopHeader, span: Span) -> LoopHeader:
    """Return uniform bounds that cover every thread's iterations; refuse those without a compile-time limit. `written`
    are the bounds as the kernel text has them, in which constants limit their values.
    """
    start, stop = bounds.start, bounds.stop
    if per_thread.is_varying(context, start):
        start = _make_bound(per_thread.compute_limits(context, written.start)[0], span)
    if per_thread.is_varying(context, stop):
        stop = _make_bound(per_thread.compute_limits(context, written.stop)[1], span)
    return replace(bounds, start=start, stop=stop)


def _make_bound(bound: float, span: Span) -> tile.Expr:
    """Return a finite bound as an int32 constant; raise `thread-dependent` for an infinite one."""
    if math.isinf(bound):
        title = "the trip count of this loop depends on the thread"
        way_out = "give it a bound, as in T.min(n, 64): threads with fewer iterations wait for the others"
        raise_error("thread-dependent", title, span, "and has no bound that is known at compile time", help=way_out)
    return tile.int32_const(int(bound))


@contextmanager
def mask_own_iterations(context: Context, bounds: LoopHeader, common: LoopHeader, var: tile.Var) -> Iterator[tile.Expr]:
    """Yield the thread's loop variable in a loop with common bounds, and mask the threads that lack the iteration."""
    if bounds == common:
        yield common.value(var)
        return
    count: tile.Expr = var
    if bounds.start != common.start:
        count = fold_expr(add_exprs(var, tile.Binary("sub", bounds.start, common.start, INT32)))
    condition = tile.Binary("lt", count, bounds.stop, BOOL)
    with per_thread.mask_threads(context, Mask(condition, condition)):
        yield bounds.value(count)


def unroll_register_loop(loop: tile.For) -> tile.For:
    """Return a serial loop of up to 64 iterations marked to be unrolled if its variable indexes a local array; others
    as is. Registers cannot be addressed by a variable. Loops with tile operations, or left by `break`, are not marked.
    """
    stmts, trip_count = list(tile.walk_statements(loop.body)), get_static_trip_count(loop)
    is_short = trip_count is not None and trip_count <= MAX_UNROLLED_ITERATIONS
    if loop.kind != "serial" or not is_short or any(isinstance(s, tile.TileOp) for s in stmts):
        return loop
    if _has_own_break(loop.body):
        return loop
    accesses: list[tile.Store | tile.Load] = [s for s in stmts if isinstance(s, tile.Store)]
    accesses += _list_loads(loop.body)
    is_indexed = any(a.buffer.scope == "local" and _is_indexed_by(a.indices, loop.var) for a in accesses)
    return replace(loop, kind="unroll") if is_indexed else loop


def _has_own_break(body: tuple[tile.Stmt, ...]) -> bool:
    """Return whether these statements of a loop may leave it, rather than a loop inside it."""
    return any(
        isinstance(stmt, tile.Break) or (isinstance(stmt, tile.If) and _has_own_break((*stmt.then, *stmt.orelse)))
        for stmt in body
    )


def _is_indexed_by(indices: tuple[tile.Expr, ...], var: tile.Var) -> bool:
    """Return whether a variable occurs in any of these indices."""
    return any(e == var for i in indices for e in tile.walk_expr(i))
