"""T.ptx_cp_async: a copy by cp.async that each thread makes of elements of its own."""

from __future__ import annotations

from dataclasses import replace

from tilec.frontend.sema.context import Context, Mask
from tilec.frontend.sema.expressions.bounds import check_access, check_loads
from tilec.frontend.sema.roles import explicit_roles as roles
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.expr import make_constant
from tilec.ir.types import BOOL
from tilec.ops.copies.thread_copy import ThreadCopy, check_copied_bytes, read_thread_copy
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument, Call, as_expr
from tilec.ops.language.values import Access, ElementPointer
from tilec.support.source import Span


def elaborate_thread_copy(context: Context, call: Call) -> None:
    """Emit a T.ptx_cp_async: a nest of copies by each thread, or by one if all copy the same; inside a nest, stores.
    There each iteration stores its own elements. Errors: `wrong-argument`, `wrong-dtype`, `wrong-scope`,
    `out-of-range`.
    """
    copy = read_thread_copy(call)
    holds = arithmetic.as_condition(call["predicate"]) if call["predicate"].value is not None else True
    condition = as_expr(Argument(holds, call["predicate"].span))
    if context.is_parallel:
        stores = (_build_store(copy, condition, tile.int32_const(n), call.span) for n in range(copy.count))
        context.out += [_check_store(context, store) for store in stores]
        return
    check_copied_bytes(call, copy)
    copy = replace(
        copy,
        destination=_freeze_pointer(context, copy.destination, call.span),
        source=_freeze_pointer(context, copy.source, call.span),
    )
    condition = per_thread.freeze_value(context, condition, call.span)
    lane = tile.Var(context.unique.take("element"))
    context.ranges[lane.name] = (0, copy.count - 1)
    store = _check_store(context, _build_store(copy, condition, lane, call.span))
    if per_thread.is_per_thread_store(context, store):
        _emit_for_each_thread(context, store, lane, copy.count)
        return
    # Every thread would copy the same: one of them does.
    leader = tile.Binary("eq", tile.THREAD, tile.int32_const(roles.find_leader(context, call.span)), BOOL)
    with per_thread.mask_threads(context, Mask(leader, leader)):
        _emit_for_each_thread(context, store, lane, copy.count)


def _emit_for_each_thread(context: Context, store: tile.Store, lane: tile.Var, count: int) -> None:
    """Emit a store as a nest over all threads and `count` values of `lane`, marked as an asynchronous copy."""
    per_thread.emit_for_each_thread(context, (store,), store.span, (lane,), (count,))
    nest = context.out[-1]
    assert isinstance(nest, tile.Parallel)
    context.out[-1] = replace(nest, asynchronous=True)


def _freeze_pointer(context: Context, pointer: ElementPointer, span: Span) -> ElementPointer:
    """Return an address with its indices' present values, emitting binds of those that read elements."""
    return replace(pointer, indices=tuple(per_thread.freeze_value(context, i, span) for i in pointer.indices))


def _build_store(copy: ThreadCopy, condition: tile.Expr, lane: tile.Expr, span: Span) -> tile.Store:
    """Return the store that copies the element `lane` after the first one, or 0 where the condition fails."""
    source, destination = copy.source, copy.destination
    value: tile.Expr = tile.Load(source.buffer, _move_last_index(source.indices, lane))
    if not tile.is_true(condition):
        value = tile.Select(condition, value, make_constant(0, value.dtype), value.dtype)
    return tile.Store(destination.buffer, _move_last_index(destination.indices, lane), value, span)


def _move_last_index(indices: tuple[tile.Expr, ...], lane: tile.Expr) -> tuple[tile.Expr, ...]:
    """Return an element's indices with `lane` added to the last one."""
    return *indices[:-1], add_exprs(indices[-1], lane)


def _check_store(context: Context, store: tile.Store) -> tile.Store:
    """Return the store as it is; raise an error if an element that it stores to or loads is out of bounds or scope."""
    check_access(context, Access(store.buffer, store.indices), store.span, "written")
    for expr in (*store.indices, store.value):
        check_loads(context, expr, store.span)
    return store
