"""Elements of fragments outside T.Parallel: the thread that holds one sets it, and a read broadcasts it to all threads.

A fragment is spread over the threads, so the owner of an element may be known only at run time. A store is a nest over
the fragment, in which one element is set; a read puts the element into shared memory first.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions.bounds import check_element
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.sema.statements.private_fragments import expected_spread
from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.ops.language.signature import Argument, as_expr
from tilec.ops.language.values import EXPR_TYPES, Access
from tilec.support.diagnostics import Label, make_warning
from tilec.support.source import Span


def is_distributed_element(context: Context, access: Access) -> bool:
    """Return whether an access is one element of a fragment, outside T.Parallel and roles. Elements of variables and
    reducers, and vectors, are excluded.
    """
    buffer = access.buffer
    is_element = buffer.lanes == 1 and not access.has_extent
    is_tile = (
        buffer.scope == "fragment" and buffer.name not in context.variable_names and buffer.name not in context.reducers
    )
    return is_element and is_tile and not context.is_parallel and context.role is None


def store_element(context: Context, access: Access, value: Callable[[tile.Expr], Argument], span: Span) -> None:
    """Emit a nest over the whole fragment that sets one element to `value` of its old content; refuse what differs by
    thread. The index and the value must be the same in all threads.
    """
    with expected_spread(context, access.buffer):
        if not context.guards:
            check_element(context, access.buffer, access.indices, span)
        per_thread.require_known_threads(context, span, f"setting an element of {access.buffer.name}")
        variables, chosen = _make_element_nest(context, access, span)
        stored = as_expr(value(tile.Load(access.buffer, variables)), access.buffer.dtype)
        per_thread.require_uniform(context, stored, span, f"an element of {access.buffer.name}")
    body: tile.Stmt = tile.Store(access.buffer, variables, stored, span)
    if chosen is not None:
        body = tile.If(chosen, (body,), (), span)
    context.out.append(tile.Parallel(variables, access.buffer.shape, (body,), span))


def broadcast_element(context: Context, access: Access, span: Span) -> tile.Expr:
    """Emit a copy of a fragment element to new shared memory, warn, and return a load of it; refuse an index that
    varies. A fragment of one element is loaded directly.
    """
    buffer = access.buffer
    if buffer.extents == (1,):  # every thread has a copy
        return tile.Load(buffer, tuple(i for i in access.indices if isinstance(i, EXPR_TYPES)))
    with expected_spread(context, buffer):
        if not context.guards:
            check_element(context, buffer, access.indices, span)
        per_thread.require_known_threads(context, span, f"reading an element of {buffer.name}")
        variables, chosen = _make_element_nest(context, access, span)
    staging = context.allocate_buffer(f"{buffer.name}_element", (1,), buffer.dtype, "shared", span)
    body: tile.Stmt = tile.Store(staging, (tile.int32_const(0),), tile.Load(buffer, variables), span)
    if chosen is not None:
        body = tile.If(chosen, (body,), (), span)
    context.out.append(tile.Parallel(variables, buffer.shape, (body,), span))
    title = f"reading an element of {buffer.name} broadcasts it through shared memory"
    note = "with a barrier of all threads"
    place = Label(buffer.span, "spread over the threads")
    way_out = "use T.alloc_shared or a tensor for values that all threads read"
    context.warn(make_warning("broadcast-element", title, span, note, secondary=(place,), help=way_out))
    return tile.Load(staging, (tile.int32_const(0),))


def _make_element_nest(context: Context, access: Access, span: Span) -> tuple[tuple[tile.Var, ...], tile.Expr | None]:
    """Make loop variables over a fragment, and the condition that they equal the indices, None for always; refuse
    varying ones.
    """
    buffer = access.buffer
    variables = tuple(tile.Var(context.unique.take(f"{buffer.name}_place")) for _ in buffer.shape)
    conditions: list[tile.Expr] = []
    for var, index, extent in zip(variables, access.indices, buffer.shape, strict=True):
        assert isinstance(index, EXPR_TYPES)
        per_thread.require_uniform(context, index, span, f"the index of an element of {buffer.name}")
        if extent > 1:
            conditions.append(tile.Binary("eq", var, index, BOOL))
    return variables, per_thread.join_conditions(conditions)
