"""What each thread does for itself: statements that name the thread, or an array of which every thread has its own.

Such a statement becomes a nest of its own over all threads (`Parallel` with `THREAD` as its first variable), so that
barriers can be put between any two of them. Control flow stays that of the whole block: under a condition on which
threads do not agree every statement is guarded by it, and a loop whose bounds differ runs as often as any thread needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn, TypeVar

from tilec.frontend.sema.context import Context
from tilec.ir import tile
from tilec.ir.affine import Interval, interval
from tilec.ir.types import BOOL, DType
from tilec.ops.device_assert import DeviceAssert
from tilec.support.diagnostics import CompileError, Diagnostic, Warn, fail
from tilec.support.source import Span

T = TypeVar("T")

MOST_SUBSTITUTED = 64  # operators; a longer value that differs from thread to thread is computed once


def is_varying(context: Context, expr: tile.Expr) -> bool:
    """Whether threads may have different values of it."""
    if isinstance(expr, tile.Call) and expr.fn in tile.BLOCK_WIDE:
        return False
    if expr == tile.THREAD or expr in context.varying or (isinstance(expr, tile.Call) and expr.fn in tile.WARP_WIDE):
        return True
    is_local = isinstance(expr, tile.Load) and expr.buffer.scope == "local"
    return is_local or any(is_varying(context, c) for c in tile.children(expr))


def is_own(context: Context, store: tile.Store) -> bool:
    """Whether each thread stores something of its own, or some threads do not."""
    parts = (store.value, *store.indices)
    return store.buffer.scope == "local" or bool(context.masks) or any(is_varying(context, e) for e in parts)


def conditions(context: Context) -> tuple[tile.Expr, ...]:
    """What holds in the threads that run this, the outermost first."""
    counted = context.is_counted
    return (() if counted is None else (counted,)) + tuple(context.masks)


def alike(context: Context, expr: tile.Expr, span: Span, what: str) -> None:
    """Refuse a value on which threads do not agree."""
    if is_varying(context, expr):
        _differs(span, what)


def _differs(span: Span, what: str) -> NoReturn:
    fail(
        "thread-dependent",
        f"{what} must be the same for all threads",
        span,
        "depends on the thread",
        help="let it depend on the block and on loops only, and on the thread what is stored",
    )


def together(context: Context, span: Span, what: str) -> None:
    """Refuse what all threads do together where only some of them are."""
    if context.masks:
        fail(
            "thread-dependent",
            f"{what} stands under a condition on the thread",
            span,
            "all threads of the block do it together",
            help="move it out of the `if`",
        )


def each_thread(
    context: Context,
    body: tuple[tile.Stmt, ...],
    span: Span,
    variables: tuple[tile.Var, ...] = (),
    extents: tuple[int, ...] = (),
) -> None:
    """Every thread that runs this does the statements, for all values of the variables."""
    for mask in reversed(conditions(context)):
        body = (tile.If(mask, body, (), span),)
    context.out.append(tile.Parallel((tile.THREAD, *variables), (context.threads, *extents), body, span))


@contextmanager
def masked(context: Context, condition: tile.Expr) -> Iterator[None]:
    """Inside, only the threads run for which the condition holds."""
    context.masks.append(condition)
    try:
        with context.guarded():
            yield
    finally:
        context.masks.pop()


def kept(context: Context, name: str, value: tile.Expr, span: Span) -> tile.Expr:
    """The value as it is now, in a register of each thread that runs this."""
    buffer = local(context, name, (1,), value.dtype, span)
    each_thread(context, (tile.Store(buffer, (tile.integer(0),), value, span),), span)
    return tile.Load(buffer, (tile.integer(0),))


def local(context: Context, name: str, shape: tuple[int, ...], dtype: DType, span: Span) -> tile.Buffer:
    """An array of which every thread has its own."""
    buffer = tile.Buffer(context.unique.take(name), shape, dtype, "local", span)
    context.buffers.append(buffer)
    return buffer


def named(context: Context, name: str, value: tile.Expr, span: Span) -> tile.Expr:
    """What a name stands for that is given a value on which threads do not agree."""
    loads = [e for e in tile.walk_expr(value) if isinstance(e, tile.Load)]
    if not loads and not is_common(value) and sum(1 for _ in tile.walk_expr(value)) <= MOST_SUBSTITUTED:
        return value
    if (context.masks or (context.is_counted is not None and is_varying(context, value))) and any(
        not e.buffer.in_registers for e in loads
    ):
        return kept(context, name, value, span)  # the other threads need not have such elements
    var = tile.Var(context.unique.take(name), value.dtype)
    if is_varying(context, value):
        context.varying.add(var)
        context.limits[var] = limits(context, value)
    context.out.append(tile.Bind(var, value, span))
    return var


def limits(context: Context, value: tile.Expr) -> Interval:
    """Return bounds on what the value is in any thread."""
    ranges = {tile.Var(name): (float(low), float(high)) for name, (low, high) in context.ranges.items()}
    return interval(value, {**ranges, **context.limits})


def frozen(context: Context, value: tile.Expr, span: Span) -> tile.Expr:
    """The value as it is now, whatever is stored afterwards."""
    return named(context, "now", value, span) if any(isinstance(e, tile.Load) for e in tile.walk_expr(value)) else value


def asserted(context: Context, op: DeviceAssert) -> DeviceAssert:
    """The assertion, of the threads that run this."""
    condition = op.condition
    for mask in conditions(context) if is_varying(context, condition) else context.masks:
        condition = tile.Binary("or", tile.Unary("not", mask, BOOL), condition, BOOL)
    return replace(op, condition=condition)


def settled(attempt: Callable[[set[Span], Warn], T], warn: Warn) -> T:
    """What `attempt` makes, once it is known which variables differ from thread to thread: it adds to the set those
    that it finds out about, and is then made again. `warn` hears what the last attempt says."""
    known: set[Span] = set()
    while True:
        found, heard = set(known), list[Diagnostic]()
        try:
            made = attempt(found, heard.append)
        except CompileError:
            if found == known:
                for warning in heard:
                    warn(warning)
                raise
        else:
            if found == known:
                for warning in heard:
                    warn(warning)
                return made
        known = found


def is_common(value: tile.Expr) -> bool:
    """Whether threads compute it together, so that it is computed once."""
    return any(
        isinstance(e, tile.Call) and (e.fn in tile.WARP_WIDE or e.fn in tile.BLOCK_WIDE) for e in tile.walk_expr(value)
    )
