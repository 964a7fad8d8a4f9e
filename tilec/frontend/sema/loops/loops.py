"""Elaboration of the loops of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

from tilec.analysis.copy_nests import mark_gathers
from tilec.frontend.sema.compile_time.functions import bind_target
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate, reading, thread_values
from tilec.frontend.sema.loops import thread_loops, thread_while, tile_scheduler
from tilec.frontend.sema.loops.loop_headers import (
    GRID_SIGNATURE,
    NEST_SIGNATURES,
    PERSISTENT_SIGNATURE,
    SEQUENTIAL_LOOPS,
    LoopHeader,
    apply_unroll_factor,
    read_loop_header,
    read_persistent_walk,
    read_target_names,
    read_unroll_factor,
)
from tilec.frontend.sema.loops.manual_schedules import build_manual_schedule, read_schedule_request
from tilec.frontend.sema.loops.nests import elaborate_parallel
from tilec.frontend.sema.scope import Binding
from tilec.frontend.sema.statements import jumps, per_thread
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import make_constant
from tilec.ir.types import BOOL
from tilec.ops.functions.python import is_iterable, list_items
from tilec.ops.functions.signatures import BINDING
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument
from tilec.ops.language.values import EXPR_TYPES, Value, describe_value
from tilec.support.diagnostics import raise_error

_UNROLLED = ("T.unroll", "T.Unroll")
_VECTORIZED = ("T.vectorized", "T.Vectorized")
_MAX_REPETITIONS = 64
"""The most iterations of a loop inside a nest, which is repeated statement by statement."""


def elaborate_for(context: Context, node: ast.For) -> None:
    """Elaborate a `for`: a loop of the language by its own rules, or once per item of a compile-time sequence; refuse
    others.
    """
    if isinstance(node.iterable, ast.Call):
        path = evaluate.find_callee(context, node.iterable)
        if path in _LOOP_ELABORATORS:
            _LOOP_ELABORATORS[path](context, node, node.iterable, path)
            return
    value = context.value(node.iterable)
    if not is_iterable(value):
        title = "a loop runs over T.serial, T.Parallel, T.Pipelined, T.unroll or range"
        raise_error("not-a-loop", title, node.iterable.span, f"this is {describe_value(value)}")
    values = reading.snapshot_value(context, value, node.iterable.span)
    _elaborate_repetitions(context, node, Argument(values, node.iterable.span), jumps.VALUES_LOOP)


def _elaborate_repetitions(context: Context, node: ast.For, values: Argument, kind: str) -> None:
    """Elaborate the body of a loop once for each of some compile-time values, bound to its target."""

    def elaborate_once(item: Value) -> None:
        """Bind the loop's target to one item and elaborate the body."""
        context.budget.step(node.span)
        bind_target(context.scope, node.target, Argument(item, values.span))
        context.block(node.body)

    bodies = (partial(elaborate_once, item) for item in list_items(values.value, values.span))
    with context.altered(with_depth=0):
        jumps.elaborate_unrolled_iterations(context, kind, node.span, bodies)


def _elaborate_grid(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    """Elaborate T.grid as nested serial loops, whose extents are all read before the first begins; refuse it without
    extents.
    """
    if len(iterable.args) == 1 and not iterable.keywords and not isinstance(iterable.args[0], ast.Starred):
        _elaborate_sequential(context, node, iterable, path)
        return
    with context.held():
        call = evaluate.bind_operands(context, GRID_SIGNATURE, iterable)
    if not call.variadic:
        raise_error("missing-argument", "T.grid needs at least one extent", call.span)
    names = read_target_names(node.target, len(call.variadic))
    with context.region("the loop", is_loop=False) as out:
        loop = node
        for place, (name, extent) in reversed(tuple(enumerate(zip(names, call.variadic, strict=True)))):
            extent_name = f"extent {place}"  # with a space, so that no name of the kernel is the same
            context.scope.names[extent_name] = Binding(extent.value, extent.span)
            header = replace(iterable, args=(ast.Name(extent_name, span=extent.span),))
            body = node.body if loop is node else (loop,)
            loop = replace(node, target=name, iterable=header, body=body)
        elaborate_for(context, loop)
    context.out += out


def _elaborate_thread_binding(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    """Elaborate a T.thread_binding loop: its body once, with the variable bound to the thread's index."""
    (name,) = read_target_names(node.target, 1)
    index = thread_values.evaluate_thread_value(context, evaluate.bind_operands(context, BINDING, iterable))
    with context.region("the loop", is_loop=False) as out:
        context.scope.bind(name.id, index, name.span)
        jumps.elaborate_iteration(context, path, node.body)
    context.out += out


def elaborate_while(context: Context, node: ast.While) -> None:
    """Emit a `while`, none if it is known to be false; refuse it in T.Parallel, or without an end. The loop of a tile
    scheduler is one too. Errors: a condition that needs statements.
    """
    if context.is_parallel:
        title = f"a `while` is not allowed inside {context.nest_name}"
        note = "its trip count could differ from thread to thread"
        way_out = f"put the loop outside and {context.nest_name} inside"
        raise_error("loop-in-parallel", title, node.condition.span, note, help=way_out)
    if (scheduler := tile_scheduler.find_loop_scheduler(context, node)) is not None:
        per_thread.require_known_threads(context, node.condition.span, "a while")
        tile_scheduler.elaborate_scheduler_loop(context, node, scheduler)
        return
    if thread_while.differs_by_thread(context, node):
        thread_while.elaborate_thread_while(context, node)
        return
    per_thread.require_known_threads(context, node.condition.span, "a while")
    with context.region("the loop", is_loop=True) as out:
        condition = arithmetic.as_condition(evaluate.evaluate_operand(context, node.condition))
        if out:
            title = "the condition of a `while` may only read values, and this one needs other statements"
            way_out = "write `while True:`, and in it `if` and `break`; or set a T.alloc_var variable in each iteration"
            raise_error("misplaced-statement", title, node.condition.span, help=way_out)
        if condition is False:
            return
        if condition is True and not jumps.may_break(context, node.body):
            title = "the condition of this loop never changes"
            way_out = "use a T.alloc_var variable or a buffer that the loop writes in it, or use `break`"
            raise_error("infinite-loop", title, node.condition.span, "always True", help=way_out)
        with context.guarded(), jumps.enter_loop(context, "while", node.condition.span):
            jumps.elaborate_iteration(context, "while", node.body)
    test = make_constant(condition, BOOL) if isinstance(condition, bool) else condition
    assert isinstance(test, EXPR_TYPES), "a condition is a bool or an expression"
    context.out.append(tile.While(test, tuple(out), node.span))


def _elaborate_sequential(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    """Emit the loop of range, T.serial, T.unroll or T.Pipelined, scheduled; in T.Parallel repeat its body, refuse
    T.Pipelined. A T.unroll that `break` may leave is a T.serial.
    """
    kind, signature = SEQUENTIAL_LOOPS[path]
    if context.is_parallel and kind != "pipelined":
        bounds = read_loop_header(evaluate.bind_call(context, signature, iterable))
        _repeat_in_nest(context, node, iterable, path, bounds)
        return
    _check_outside_nest(context, iterable, path)
    if path in _UNROLLED and jumps.may_break(context, node.body):
        kind, path = "serial", "T.serial"  # a copy of each iteration would need a way out
    with context.held():
        call = evaluate.bind_call(context, signature, iterable)
    requests = read_schedule_request(call, context.warn)
    written_bounds = read_loop_header(call)
    own = thread_loops.freeze_bounds(context, written_bounds, iterable.span)
    bounds = thread_loops.compute_common_bounds(context, own, written_bounds, iterable.span)
    (name,) = read_target_names(node.target, 1)
    var = tile.Var(context.unique.take(name.id))
    mistakes_before = context.mistakes.met
    with context.region("the loop", is_loop=True) as out:
        if bounds.values is not None:
            context.ranges[var.name] = bounds.values
        with (
            jumps.enter_loop(context, path, iterable.span),
            thread_loops.mask_own_iterations(context, own, bounds, var) as value,
        ):
            context.scope.bind(name.id, value, name.span)
            jumps.elaborate_iteration(context, path, node.body)
    body = tuple(out)
    loop = thread_loops.unroll_register_loop(
        tile.For(kind, var, bounds.start, bounds.stop, bounds.step, body, span=node.span)
    )
    if context.mistakes.met > mistakes_before:
        # A schedule for its statements cannot be checked where some are missing.
        context.out.append(replace(loop, kind="serial"))
        return
    if path in _UNROLLED:
        factor = read_unroll_factor(call, bounds)
        loop = apply_unroll_factor(loop, factor, iterable.span)
    if requests.arguments or kind == "pipelined":
        names = tuple(named for named in context.names if named.out is out)
        manual = build_manual_schedule(
            requests, body, context.warn, context.converted_ifs, names, context.schedule_mistakes
        )
        pipelined = kind == "pipelined" or manual.num_stages is not None or manual.stage is not None
        body = mark_gathers(manual.body) if pipelined and manual.stage is None else manual.body
        loop = replace(
            loop, kind="pipelined" if pipelined else kind, body=body, num_stages=manual.num_stages,
            stage=manual.stage, order=manual.order, scheduling_hints=manual.scheduling_hints,
        )  # fmt: skip
    context.out.append(loop)


def _elaborate_parallel_or_vectorized(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    """Elaborate a T.Parallel or T.vectorized nest; a T.vectorized inside another nest is repeated per iteration."""
    if not context.is_parallel or path not in _VECTORIZED:
        elaborate_parallel(context, node, iterable, path)
        return
    bounds = read_loop_header(evaluate.bind_call(context, NEST_SIGNATURES[path], iterable))
    _repeat_in_nest(context, node, iterable, path, bounds)


def _elaborate_persistent(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    """Emit T.Persistent as a serial loop over waves, its body skipped outside the domain; refuse it inside
    T.Parallel.
    """
    _check_outside_nest(context, iterable, path)
    with context.held():
        call = evaluate.bind_call(context, PERSISTENT_SIGNATURE, iterable)
    for argument in call.arguments.values():
        if isinstance(argument.value, EXPR_TYPES):
            per_thread.require_uniform(context, argument.value, argument.span, "the tiles of a block")
    walk = read_persistent_walk(call)
    names = read_target_names(node.target, len(walk.domain))
    wave = tile.Var(context.unique.take("wave"))
    with context.region("the loop", is_loop=True) as out:
        for name, value, extent in zip(names, walk.coordinates(wave), walk.domain, strict=True):
            var = context.bind_value(name.id, value, name.span)
            context.scope.bind(name.id, var, name.span)
            size = getattr(extent, "value", None)
            if size is not None:
                context.ranges[var.name] = (0, size - 1)
        coordinates = tuple(s.var for s in context.out if isinstance(s, tile.Bind))
        with (
            context.region("the loop", is_loop=False) as inner,
            jumps.enter_loop(context, PERSISTENT_SIGNATURE.name, iterable.span),
        ):
            jumps.elaborate_iteration(context, PERSISTENT_SIGNATURE.name, node.body)
        exists = walk.exists(wave, coordinates[-1])
        context.out += inner if exists is None else [tile.If(exists, tuple(inner), (), node.span)]
    distinct_by = tuple(var.name for var in coordinates)
    loop = tile.For("serial", wave, tile.int32_const(0), walk.waves, 1, tuple(out), span=node.span)
    context.out.append(replace(loop, distinct_by=distinct_by))


def _repeat_in_nest(context: Context, node: ast.For, iterable: ast.Call, path: str, bounds: LoopHeader) -> None:
    """Elaborate a loop in a nest: repeat its body up to 64 times, or keep a longer loop inside T.Parallel. Refuse a
    longer or run-time loop in T.vectorized, with a `break`, or of a kind that is not sequential.
    """
    values = bounds.iterations
    if values is None or len(values) > _MAX_REPETITIONS:
        if path in SEQUENTIAL_LOOPS and "T.Parallel" in context.loops and not jumps.may_break(context, node.body):
            _elaborate_loop_in_nest(context, node, path, bounds)
            return
        count = "its trip count is known only at run time" if values is None else f"its trip count is {len(values)}"
        _refuse_in_nest(context, iterable, path, f"{count}, and at most {_MAX_REPETITIONS} iterations can be unrolled")
    _elaborate_repetitions(context, node, Argument(values, iterable.span), path)


def _elaborate_loop_in_nest(context: Context, node: ast.For, path: str, bounds: LoopHeader) -> None:
    """Emit a loop in T.Parallel that is too long to be repeated, around which the nest is split later. `split_nests`
    splits it.
    """
    (name,) = read_target_names(node.target, 1)
    var = tile.Var(context.unique.take(name.id))
    with context.region("the loop", is_loop=True) as out, context.guarded():
        if bounds.values is not None:
            context.ranges[var.name] = bounds.values
        with jumps.enter_loop(context, path, node.iterable.span):
            context.scope.bind(name.id, bounds.value(var), name.span)
            jumps.elaborate_iteration(context, path, node.body)
    kind = SEQUENTIAL_LOOPS[path][0]
    context.out.append(tile.For(kind, var, bounds.start, bounds.stop, bounds.step, tuple(out), span=node.span))


def _check_outside_nest(context: Context, iterable: ast.Call, path: str) -> None:
    """Raise `loop-in-parallel` if the current statement is inside T.Parallel or T.vectorized."""
    if context.is_parallel:
        _refuse_in_nest(context, iterable, path)


def _refuse_in_nest(context: Context, iterable: ast.Call, path: str, why: str = "") -> NoReturn:
    """Raise `loop-in-parallel`: this loop may not stand inside the current T.Parallel or T.vectorized."""
    title = f"{path} is not allowed inside {context.nest_name}"
    way_out = f"put the loop outside and {context.nest_name} inside"
    if context.nest_name == "T.Parallel":
        way_out += ", or use a reduction such as T.reduce_sum"
    raise_error("loop-in-parallel", title, iterable.span, why, help=way_out)


_LOOP_ELABORATORS: dict[str, Callable[[Context, ast.For, ast.Call, str], None]] = {
    **dict.fromkeys(SEQUENTIAL_LOOPS, _elaborate_sequential),
    GRID_SIGNATURE.name: _elaborate_grid,
    **dict.fromkeys(NEST_SIGNATURES, _elaborate_parallel_or_vectorized),
    PERSISTENT_SIGNATURE.name: _elaborate_persistent,
    BINDING.name: _elaborate_thread_binding,
}
"""By the name that a loop runs over."""
