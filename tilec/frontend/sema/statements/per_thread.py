"""Per-thread statements: those that name the thread index or a local array.

Each becomes a nest over all threads (`Parallel` with `THREAD` as its first variable), so that barriers can be inserted
between any two of them. Control flow stays uniform in the block: a condition that varies between threads guards every
statement under it, and a loop whose bounds vary runs as many iterations as any thread needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TypeVar

from tilec.frontend.sema.context import Context, Findings, Mask
from tilec.ir import tile
from tilec.ir.affine import Interval, reads_elements, value_interval
from tilec.ir.expr import make_constant
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import BOOL, DType
from tilec.ops.device_assert import DeviceAssert
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import CompileError, Diagnostic, Warn, raise_error
from tilec.support.source import Span

T = TypeVar("T")
MAX_SUBSTITUTED_OPERATORS = 64  # a longer expression that varies between threads is bound once


def is_varying(context: Context, expr: tile.Expr) -> bool:
    """Return whether an expression's value may differ between threads: by thread index, local array, or a call that
    gives each warp or thread its own value.
    """
    if isinstance(expr, tile.Call) and expr.fn in tile.BLOCK_WIDE:
        return False
    if isinstance(expr, tile.Call) and expr.fn in tile.WARP_WIDE:
        return not (expr.fn in tile.WARP_ALIKE and context.threads <= WARP_THREADS)
    if expr == tile.THREAD or expr in context.varying_variables:
        return True
    is_own = (
        isinstance(expr, tile.Load) and expr.buffer.scope == "local" and not _is_uniform_array(context, expr.buffer)
    )
    return is_own or any(is_varying(context, c) for c in tile.direct_operands(expr))


def _is_uniform_array(context: Context, array: tile.Buffer) -> bool:
    """Return whether an array must have the same values in all threads, and no store found so far breaks that."""
    findings = context.findings
    return array.span in findings.uniform_arrays and array.span not in findings.per_thread_variables


def request_uniform_arrays(context: Context, exprs: Iterable[tile.Expr]) -> None:
    """Record the T.alloc_local arrays that these expressions read as having to be the same in all threads."""
    loads = (e for expr in exprs for e in tile.walk_expr(expr) if isinstance(e, tile.Load))
    read = {e.buffer.span for e in loads if e.buffer.scope == "local" and e.buffer.name in context.variable_masks}
    context.findings.uniform_arrays.update(read)


def _check_array_stores(context: Context, body: tuple[tile.Stmt, ...]) -> None:
    """Record the arrays to which these statements store values that differ, or that only some threads store."""
    conditions = [stmt.condition for stmt in tile.walk_statements(body) if isinstance(stmt, tile.If)]
    for store in (s for s in tile.walk_statements(body) if isinstance(s, tile.Store)):
        is_everywhere = tuple(context.masks) == context.variable_masks.get(store.buffer.name)
        is_everywhere &= not context.is_divergent and context.participation_condition is None
        parts = (store.value, *store.indices, *conditions)
        if not is_everywhere or store.previous is not None or any(is_varying(context, e) for e in parts):
            context.findings.per_thread_variables.add(store.buffer.span)


def is_per_thread_store(context: Context, store: tile.Store) -> bool:
    """Return whether a store is to a local array, under a mask, or has a value or index that differs by thread."""
    parts = (store.value, *store.indices)
    return store.buffer.scope == "local" or bool(context.masks) or any(is_varying(context, e) for e in parts)


def collect_thread_conditions(context: Context) -> tuple[tile.Expr, ...]:
    """Return the conditions under which a thread runs the current statement, outermost first."""
    counted = context.participation_condition
    return (() if counted is None else (counted,)) + tuple(mask.condition for mask in context.masks)


def join_conditions(conditions: Iterable[tile.Expr]) -> tile.Expr | None:
    """Return the conjunction of conditions, or None if there are none."""
    listed = tuple(conditions)
    return reduce(lambda a, b: tile.Binary("and", a, b, BOOL), listed) if listed else None


def require_uniform(context: Context, expr: tile.Expr, span: Span, what: str) -> None:
    """Raise `thread-dependent` if an expression's value may differ between threads, naming it `what`."""
    if is_varying(context, expr):
        request_uniform_arrays(context, (expr,))
        way_out = "use block indices and loop variables only; stored values may depend on the thread"
        title = f"{what} must be the same for all threads"
        raise_error("thread-dependent", title, span, "depends on the thread", help=way_out)


def require_known_threads(context: Context, span: Span, what: str) -> None:
    """Mark the thread-dependent `if`s around a collective statement as run by the whole block; refuse unknown threads.
    Errors: `thread-dependent`, where it is not known at compile time which threads meet them.
    """
    if not context.is_divergent:
        return
    if context.has_explicit_roles:
        require_all_threads(context, span, what)
    if find_common_condition(context) is None:
        request_uniform_arrays(context, (mask.written for mask in context.masks))
        title = f"{what} is under a condition on the thread"
        note = "the threads that run it together must be known at compile time"
        way_out = "test the thread index and values that all threads share, or move it out of the `if`"
        raise_error("thread-dependent", title, span, note, help=way_out)
    context.findings.shared_ifs.update(mask.span for mask in context.masks if mask.span is not None)


def find_common_condition(context: Context) -> tile.Expr | None:
    """Return the condition of all threads whose index can pass the masks; false if none can, None if theirs differ."""
    reached: tile.Expr = make_constant(False, BOOL)
    for _, own in _fold_masks_by_thread(context):
        if is_varying(context, own):
            return None
        if isinstance(own, tile.Const):
            reached = own if own.value else reached
        elif isinstance(reached, tile.Const) and not reached.value:
            reached = own
        elif own != reached and not isinstance(reached, tile.Const):
            return None
    return reached


def count_threads_of_reaching_warps(context: Context) -> int:
    """Return the number of threads in those warps that have a thread which may pass all masks here."""
    reaching = {
        thread // WARP_THREADS
        for thread, own in _fold_masks_by_thread(context)
        if not isinstance(own, tile.Const) or own.value
    }
    return len(reaching) * WARP_THREADS


def count_reaching_threads(context: Context) -> int:
    """Return the number of running threads that may pass all masks here."""
    folded = _fold_masks_by_thread(context)
    return sum(not isinstance(own, tile.Const) or bool(own.value) for _, own in folded)


def _fold_masks_by_thread(context: Context) -> Iterator[tuple[int, tile.Expr]]:
    """Yield each thread index of the block or role with the joined masks folded for it."""
    joined = join_conditions(mask.condition for mask in context.masks) or make_constant(True, BOOL)
    low, high = context.ranges[tile.THREAD.name]
    for thread in range(low, high + 1):
        yield thread, fold_expr(tile.substitute_variables(joined, {tile.THREAD: tile.int32_const(thread)}))


def require_all_threads(context: Context, span: Span, what: str) -> None:
    """Raise `thread-dependent` if a condition on the thread encloses the current statement. With explicit roles, record
    these conditions first: those that are alike in each warp divide the warps into roles.
    """
    if context.masks:
        title = f"{what} is under a condition on the thread"
        note, way_out = "all threads of the block must run it together", "move it out of the `if`"
        if context.has_explicit_roles:
            context.findings.dividing_ifs.update(mask.span for mask in context.masks if mask.span is not None)
            note = "a role is whole warps of 32 threads, which run it together"
            way_out = "let the condition be the same for all threads of a warp, as `if tx < 32:`, or move it out"
        raise_error("thread-dependent", title, span, note, help=way_out)


def emit_for_each_thread(
    context: Context,
    body: tuple[tile.Stmt, ...],
    span: Span,
    variables: tuple[tile.Var, ...] = (),
    extents: tuple[int, ...] = (),
) -> None:
    """Emit statements as a nest over all running threads and the variables, guarded by the conditions on the thread
    here. What they store to arrays that must be the same in all threads is checked, and recorded where it differs.
    """
    if context.findings.uniform_arrays:
        _check_array_stores(context, body)
    for mask in reversed(collect_thread_conditions(context)):
        body = (tile.If(mask, body, (), span),)
    context.out.append(tile.Parallel((tile.THREAD, *variables), (context.threads, *extents), body, span))


@contextmanager
def mask_threads(context: Context, mask: Mask) -> Iterator[None]:
    """Guard the statements emitted in the `with` by a condition on the thread."""
    with context.pushed(context.masks, mask), context.guarded():
        yield


def snapshot_in_register(context: Context, name: str, value: tile.Expr, span: Span) -> tile.Expr:
    """Emit the copy of a value to a new one-element array of each running thread, and return the load of it."""
    buffer = allocate_local_array(context, name, (1,), value.dtype, span)
    emit_for_each_thread(context, (tile.Store(buffer, (tile.int32_const(0),), value, span),), span)
    return tile.Load(buffer, (tile.int32_const(0),))


def allocate_local_array(context: Context, name: str, shape: tuple[int, ...], dtype: DType, span: Span) -> tile.Buffer:
    """Allocate a buffer in scope "local", an array of which every thread has its own copy, and return it."""
    return context.allocate_buffer(name, shape, dtype, "local", span)


def bind_thread_value(context: Context, name: str, value: tile.Expr, span: Span) -> tile.Expr:
    """Return an expression for a named value: a short one without loads itself, else an emitted bind, or a register if
    masked. The register is for loads that may be out of bounds in other threads.
    """
    parts = tuple(tile.walk_expr(value))
    loads = [e for e in parts if isinstance(e, tile.Load)]
    if not loads and not has_collective_call(value) and len(parts) <= MAX_SUBSTITUTED_OPERATORS:
        return value
    has_idle_threads = bool(context.masks) or context.participation_condition is not None
    is_partial = context.is_divergent or (has_idle_threads and is_varying(context, value))
    if is_partial and not all(e.buffer.in_registers for e in loads):
        return snapshot_in_register(context, name, value, span)  # in the other threads the loads may be out of bounds
    var = emit_bind(context, name, value, span)
    if var in context.varying_variables:
        context.limits[var] = compute_limits(context, value)
    return var


def emit_bind(context: Context, name: str, value: tile.Expr, span: Span) -> tile.Var:
    """Emit a bind of an expression to a new variable, recorded as varying if the expression is, and return it."""
    var = context.bind_value(name, value, span)
    if is_varying(context, value):
        context.varying_variables.add(var)
    return var


def compute_limits(context: Context, value: tile.Expr) -> Interval:
    """Return an interval that contains an expression's values in all threads."""
    ranges = {tile.Var(name): (float(low), float(high)) for name, (low, high) in context.ranges.items()}
    return value_interval(value, {**ranges, **context.limits})


def freeze_value(context: Context, value: tile.Expr, span: Span) -> tile.Expr:
    """Return an expression unaffected by later stores: emitted as a bind or register copy if it reads elements."""
    return bind_thread_value(context, "now", value, span) if reads_elements(value) else value


def emit_assertion(context: Context, op: DeviceAssert) -> None:
    """Emit an assertion for the threads that run it; inside T.Parallel, a trap of an element for which it fails."""
    if not context.is_parallel:
        context.out.append(mask_assertion(context, op))
        return
    stop = tile.Print(op.message, (), op.span, stops=True)
    context.out.append(tile.If(tile.Unary("not", op.condition, BOOL), (stop,), (), op.span))


def mask_assertion(context: Context, op: DeviceAssert) -> DeviceAssert:
    """Return an assertion whose condition also holds in all threads that the current masks exclude. If it differs from
    thread to thread, it also holds in threads past the requested ones.
    """
    condition = op.condition
    masks = tuple(mask.condition for mask in context.masks)
    for mask in collect_thread_conditions(context) if is_varying(context, condition) else masks:
        condition = tile.Binary("or", tile.Unary("not", mask, BOOL), condition, BOOL)
    return replace(op, condition=condition)


def repeat_until_stable(attempt: Callable[[Findings, Warn], T], warn: Warn) -> T:
    """Elaborate by `attempt` again until it adds no findings, then return its result or raise its error. `attempt` adds
    to the given findings. What varies between threads is looked for anew whenever anything else is found, as further
    `if`s that are shared or arrays that are uniform, since less varies then. Only the warnings of the last attempt are
    passed on.
    """
    known = Findings()
    while True:
        found, warnings = known.copy_sets(), list[Diagnostic]()
        outcome: T | CompileError
        try:
            outcome = attempt(found, warnings.append)
        except CompileError as error:
            outcome = error
        if found == known:
            for warning in warnings:
                warn(warning)
            if isinstance(outcome, CompileError):
                raise outcome
            return outcome
        if replace(found, per_thread_variables=known.per_thread_variables) != known:
            found.per_thread_variables.clear()
        known = found


def has_collective_call(value: tile.Expr) -> bool:
    """Return whether an expression contains a warp-wide or block-wide call, which must run exactly once."""
    return any(
        isinstance(e, tile.Call) and (e.fn in tile.WARP_WIDE or e.fn in tile.BLOCK_WIDE) for e in tile.walk_expr(value)
    )
