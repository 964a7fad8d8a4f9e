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
    """Emit the setting of a variable for all threads, or only record that the value differs by thread; refuse
    T.Parallel. With that finding the next attempt makes the variable a local array, which each thread sets. A variable
    that the nest itself allocates is set by each iteration.
    """
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
    """Emit a nest that stores one value to every thread's copy of a variable."""
    each = tile.Var(context.unique.take(f"{variable.name}_copy"))
    context.out.append(tile.Parallel((each,), (1,), (tile.Store(variable, (each,), value, span),), span))


def emit_store(context: Context, access: Access, argument: Argument, span: Span) -> None:
    """Emit the store of a value, converted to the buffer's dtype, to one element, by each thread if it differs."""
    indices = tuple(i for i in access.indices if isinstance(i, EXPR_TYPES))
    store = tile.Store(access.buffer, indices, as_expr(argument, access.buffer.dtype), span)
    emit_element_statements(context, (store,), per_thread.is_per_thread_store(context, store), span)


def emit_element_statements(context: Context, statements: tuple[tile.Stmt, ...], is_own: bool, span: Span) -> None:
    """Emit statements on elements: plainly in T.Parallel, for each thread if `is_own`, else for one thread."""
    if context.is_parallel:
        context.out += statements
    elif is_own:
        per_thread.emit_for_each_thread(context, statements, span)
    else:
        context.out.append(tile.Parallel((tile.Var(context.unique.take("once")),), (1,), statements, span))
