"""Stores to variables and to elements."""

from __future__ import annotations

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ops.language.signature import Argument, as_expr
from tilec.ops.language.values import EXPR_TYPES, Access
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span


def set_variable(context: Context, buffer: tile.Buffer, argument: Argument, span: Span) -> None:
    """Set a variable, of which every thread has a copy. A value that varies between threads makes it a local array."""
    value = as_expr(argument, buffer.dtype)
    if buffer.scope == "local" or buffer.name in context.nest_variables:
        emit_store(context, Access(buffer, (tile.int32_const(0),)), Argument(value, argument.span), span)
        return
    is_own = context.is_divergent or tuple(context.masks) != context.variable_masks[buffer.name]
    if is_own or per_thread.is_varying(context, value):
        context.findings.per_thread_variables.add(buffer.span)
        return
    if context.is_parallel:
        title = f"{buffer.name} is set inside {context.nest_name}"
        place = Label(buffer.span, "the block has only one")
        way_out = "use a fragment, and a reduction such as T.reduce_sum"
        raise_error("wrong-scope", title, span, "every iteration would set it", secondary=(place,), help=way_out)
    emit_uniform_set(context, buffer, value, span)


def emit_uniform_set(context: Context, variable: tile.Buffer, value: tile.Expr, span: Span) -> None:
    """Emit a store to a variable, of the same value in every thread's copy."""
    each = tile.Var(context.unique.take(f"{variable.name}_copy"))
    context.out.append(tile.Parallel((each,), (1,), (tile.Store(variable, (each,), value, span),), span))


def emit_store(context: Context, access: Access, argument: Argument, span: Span) -> None:
    """Emit a store of a value to an element."""
    indices = tuple(i for i in access.indices if isinstance(i, EXPR_TYPES))
    store = tile.Store(access.buffer, indices, as_expr(argument, access.buffer.dtype), span)
    emit_element_statements(context, (store,), per_thread.is_per_thread_store(context, store), span)


def emit_element_statements(context: Context, statements: tuple[tile.Stmt, ...], is_own: bool, span: Span) -> None:
    """Emit statements on elements. Inside T.Parallel the thread that has the element runs them, elsewhere each thread
    if `is_own`, or else one thread."""
    if context.is_parallel:
        context.out += statements
    elif is_own:
        per_thread.emit_for_each_thread(context, statements, span)
    else:
        context.out.append(tile.Parallel((tile.Var(context.unique.take("once")),), (1,), statements, span))
