"""Elaboration of the loops of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

from tilec.frontend.sema import evaluate, jumps, per_thread, reading, thread_loops, thread_values, tile_scheduler
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.functions import bind_target
from tilec.frontend.sema.loops import (
    NESTS,
    PERSISTENT,
    SEQUENTIAL,
    Header,
    header,
    persistent,
    target_names,
    unroll_factor,
    unrolled,
)
from tilec.frontend.sema.manual_schedules import asked, manual_schedule
from tilec.frontend.sema.nests import parallel
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import constant
from tilec.ir.types import BOOL
from tilec.ops import arithmetic
from tilec.ops.python import is_iterable, items
from tilec.ops.signature import Argument, bind
from tilec.ops.threads import BINDING
from tilec.ops.values import EXPR_TYPES, Value, describe
from tilec.support.diagnostics import fail

_UNROLLED = ("T.unroll", "T.Unroll")
_VECTORIZED = ("T.vectorized", "T.Vectorized")
_MOST_REPEATED = 64
"""The most iterations of a loop inside a nest, which is repeated statement by statement."""


def for_(context: Context, node: ast.For) -> None:
    """Elaborate a loop over a header of the language, or over values known at compile time."""
    if isinstance(node.iterable, ast.Call):
        path = evaluate.callee(context, node.iterable)
        if path in _LOOPS:
            _LOOPS[path](context, node, node.iterable, path)
            return
    value = context.value(node.iterable)
    if not is_iterable(value):
        fail(
            "not-a-loop",
            "a loop runs over T.serial, T.Parallel, T.Pipelined, T.unroll or range",
            node.iterable.span,
            f"this is {describe(value)}",
        )
    values = reading.kept(context, value, node.iterable.span)
    _unrolled(context, node, Argument(values, node.iterable.span), jumps.VALUES)


def _unrolled(context: Context, node: ast.For, values: Argument, kind: str) -> None:
    """Elaborate the body of a loop once for each value, all of them known at compile time."""

    def once(item: Value) -> None:
        context.budget.step(node.span)
        bind_target(context.scope, node.target, Argument(item, values.span))
        context.block(node.body)

    bodies = (partial(once, item) for item in items(values.value, values.span))
    outer, context.withs = context.withs, 0
    jumps.written_out(context, kind, node.span, bodies)
    context.withs = outer


def _threads(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    """Elaborate T.thread_binding: each thread runs one iteration, that of its index."""
    (name,) = target_names(node.target, 1)
    index = thread_values.place(context, bind(BINDING, *evaluate.operands(context, iterable), iterable.span))
    with context.region("the loop", is_loop=False) as out:
        context.scope.bind(name.id, index, name.span)
        jumps.iteration(context, path, node.span, node.body)
    context.out += out


def while_(context: Context, node: ast.While) -> None:
    """Elaborate a `while`, or the loop of a tile scheduler."""
    per_thread.together(context, node.condition.span, "a while")
    if context.is_parallel:
        fail(
            "loop-in-parallel",
            f"a while cannot stand inside {context.nest_name}",
            node.condition.span,
            "each thread would run as often as it likes",
            help=f"put the loop outside and {context.nest_name} inside",
        )
    if (scheduler := tile_scheduler.of_loop(context, node)) is not None:
        tile_scheduler.loop(context, node, scheduler)
        return
    with context.region("the loop", is_loop=True) as out:
        condition = arithmetic.condition(evaluate.operand(context, node.condition))
        if out:
            fail(
                "misplaced-statement",
                "this condition takes more than reading: a `while` has no place for that",
                node.condition.span,
                help="write `while True:`, and in it `if` and `break`; or set what T.alloc_var makes in each iteration",
            )
        if condition is False:
            return
        if condition is True and not jumps.leaves(context, node.body):
            fail(
                "infinite-loop",
                "the condition of this loop never changes",
                node.condition.span,
                "always True",
                help="let it depend on what T.alloc_var makes or on a buffer that the loop writes, or use `break`",
            )
        if isinstance(condition, EXPR_TYPES):
            per_thread.alike(context, condition, node.condition.span, "the condition of a while")
        with context.guarded(), jumps.loop(context, "while", node.condition.span):
            jumps.iteration(context, "while", node.span, node.body)
    test = constant(condition, BOOL) if isinstance(condition, bool) else condition
    assert isinstance(test, EXPR_TYPES), "a condition is a bool or an expression"
    context.out.append(tile.While(test, tuple(out), node.span))


def _sequential(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    kind, signature = SEQUENTIAL[path]
    if context.is_parallel and kind != "pipelined":
        bounds = header(bind(signature, *evaluate.arguments(context, iterable), iterable.span))
        _repeated(context, node, iterable, path, bounds)
        return
    _check_alone(context, iterable, path)
    with context.held():
        call = bind(signature, *evaluate.arguments(context, iterable), iterable.span)
    requests = asked(call, context.warn)
    written_bounds = header(call)
    own = thread_loops.own(context, written_bounds, iterable.span)
    bounds = thread_loops.common(context, own, written_bounds, iterable.span)
    (name,) = target_names(node.target, 1)
    var = tile.Var(context.unique.take(name.id))
    mistakes_before = context.mistakes.met
    with context.region("the loop", is_loop=True) as out:
        if bounds.values is not None:
            context.ranges[var.name] = bounds.values
        with jumps.loop(context, path, iterable.span), thread_loops.own_iterations(context, own, bounds, var) as value:
            context.scope.bind(name.id, value, name.span)
            jumps.iteration(context, path, node.span, node.body)
    body = tuple(out)
    loop = thread_loops.over_registers(
        tile.For(kind, var, bounds.start, bounds.stop, bounds.step, body, span=node.span)
    )
    if context.mistakes.met > mistakes_before:
        # A schedule for its statements cannot be checked where some are missing.
        context.out.append(replace(loop, kind="serial"))
        return
    if path in _UNROLLED:
        factor = unroll_factor(call, bounds)
        loop = unrolled(loop, factor, iterable.span)
    if requests.arguments or kind == "pipelined":
        names = tuple(named for named in context.names if named.out is out)
        manual = manual_schedule(requests, body, context.warn, context.converted_ifs, names, context.schedule_mistakes)
        pipelined = kind == "pipelined" or manual.num_stages is not None or manual.stage is not None
        loop = replace(
            loop,
            kind="pipelined" if pipelined else kind,
            body=manual.body,
            num_stages=manual.num_stages,
            stage=manual.stage,
            order=manual.order,
            scheduling_hints=manual.scheduling_hints,
        )
    context.out.append(loop)


def _nested(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    """Elaborate a nest. A T.vectorized inside one, after other statements, is a loop that each element runs."""
    if not context.is_parallel or path not in _VECTORIZED:
        parallel(context, node, iterable, path)
        return
    bounds = header(bind(NESTS[path], *evaluate.arguments(context, iterable), iterable.span))
    _repeated(context, node, iterable, path, bounds)


def _persistent(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    """Elaborate T.Persistent as a serial loop over waves, which skips tiles outside the domain."""
    _check_alone(context, iterable, path)
    with context.held():
        call = bind(PERSISTENT, *evaluate.arguments(context, iterable), iterable.span)
    for argument in call.arguments.values():
        if isinstance(argument.value, EXPR_TYPES):
            per_thread.alike(context, argument.value, argument.span, "the tiles of a block")
    walk = persistent(call)
    names = target_names(node.target, len(walk.domain))
    wave = tile.Var(context.unique.take("wave"))
    with context.region("the loop", is_loop=True) as out:
        for name, value, extent in zip(names, walk.coordinates(wave), walk.domain, strict=True):
            var = tile.Var(context.unique.take(name.id))
            context.out.append(tile.Bind(var, value, name.span))
            context.scope.bind(name.id, var, name.span)
            size = getattr(extent, "value", None)
            if size is not None:
                context.ranges[var.name] = (0, size - 1)
        coordinates = tuple(s.var for s in context.out if isinstance(s, tile.Bind))
        with context.region("the loop", is_loop=False) as inner, jumps.loop(context, PERSISTENT.name, iterable.span):
            jumps.iteration(context, PERSISTENT.name, node.span, node.body)
        exists = walk.exists(wave, coordinates[-1])
        context.out += inner if exists is None else [tile.If(exists, tuple(inner), (), node.span)]
    distinct_by = tuple(var.name for var in coordinates)
    context.out.append(
        tile.For("serial", wave, tile.integer(0), walk.waves, 1, tuple(out), span=node.span, distinct_by=distinct_by)
    )


def _repeated(context: Context, node: ast.For, iterable: ast.Call, path: str, bounds: Header) -> None:
    """Elaborate a loop that each element of a nest runs: its body once for each of a few known values."""
    values = bounds.iterations
    if values is None or len(values) > _MOST_REPEATED:
        count = "how often it runs is known at run time only" if values is None else f"it runs {len(values)} times"
        _refuse_in_nest(context, iterable, path, f"{count}, at most {_MOST_REPEATED} times can be written out")
    _unrolled(context, node, Argument(values, iterable.span), path)


def _check_alone(context: Context, iterable: ast.Call, path: str) -> None:
    """Refuse a sequential loop inside a nest."""
    if context.is_parallel:
        _refuse_in_nest(context, iterable, path)


def _refuse_in_nest(context: Context, iterable: ast.Call, path: str, why: str = "") -> NoReturn:
    fail(
        "loop-in-parallel",
        f"{path} cannot stand inside {context.nest_name}",
        iterable.span,
        why,
        help=f"put the loop outside and {context.nest_name} inside"
        + ", or use T.reduce_sum and its like" * (context.nest_name == "T.Parallel"),
    )


_LOOPS: dict[str, Callable[[Context, ast.For, ast.Call, str], None]] = {
    **dict.fromkeys(SEQUENTIAL, _sequential),
    **dict.fromkeys(NESTS, _nested),
    PERSISTENT.name: _persistent,
    BINDING.name: _threads,
}
"""By the name that a loop runs over."""
