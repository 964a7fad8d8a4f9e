"""T.Parallel and T.vectorized: nests of perfectly nested loops whose iterations are independent."""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.copy_nests import analyse_gather, convert_to_copy
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.loops import split_nests, thread_loops
from tilec.frontend.sema.loops.loop_headers import NEST_SIGNATURES, read_nest_header, read_target_names
from tilec.frontend.sema.statements import jumps, per_thread
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import reads_elements
from tilec.ir.types import BOOL, INT32
from tilec.ops.atomic import merge_vector_atomics
from tilec.ops.language.values import show_shape
from tilec.support.diagnostics import Label, make_warning, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

_ITERATIONS_PER_STEP = 256  # two for each thread of most blocks


def elaborate_parallel(context: Context, node: ast.For, iterable: ast.Call, path: str) -> None:
    """Emit a T.Parallel or T.vectorized nest, inside serial loops over its run-time extents; refuse it inside a
    nest.
    """
    if context.is_parallel:
        title = f"{path} inside {context.nest_name}"
        raise_error("loop-in-parallel", title, iterable.span, help="write one loop: `for i, j in T.Parallel(m, n):`")
    nest = _collect_nest(context, node, iterable, path)
    steps: dict[int, _StepLoop] = {}
    for place, (name, (_, stop)) in enumerate(zip(nest.names, nest.bounds, strict=True)):
        if not isinstance(stop, int):
            var = tile.Var(context.unique.take(f"{name.id}.first"))
            # The body may write the elements that a bound reads.
            bound = context.bind_value("stop", stop, node.span) if reads_elements(stop) else stop
            steps[place] = _StepLoop(var, nest.count_step_iterations(place), bound)
    if not steps:
        _elaborate_iterations(context, node, iterable, path, nest, steps)
        return
    with context.region("the loop", is_loop=True) as out, context.guarded():
        _elaborate_iterations(context, node, iterable, path, nest, steps)
    body = tuple(out)
    for step in reversed(steps.values()) if body else ():
        body = (tile.For("serial", step.var, tile.int32_const(0), step.stop, step.size, body, span=node.span),)
    context.out += body


def _elaborate_iterations(
    context: Context, node: ast.For, iterable: ast.Call, path: str, nest: _Nest, steps: dict[int, _StepLoop]
) -> None:
    """Emit a nest, or its step of each run-time extent, elementwise or as asynchronous copy; refuse a layout of another
    shape. A nest with loops in it is emitted as loops around nests. `steps` has the step loop of each dimension with a
    run-time extent.
    """
    variables = tuple(tile.Var(context.unique.take(name.id)) for name in nest.names)
    extents: list[int] = []
    is_in_extent: tile.Expr | None = None  # the condition that an iteration of the last step lies within the extent
    with context.region("the loop", is_loop=True) as out:
        for place, (name, var, (start, stop)) in enumerate(zip(nest.names, variables, nest.bounds, strict=True)):
            value: tile.Expr = var if start == 0 else tile.Binary("add", var, tile.int32_const(start), INT32)
            extent = stop - start if isinstance(stop, int) else steps[place].size
            if place in steps:
                value = tile.Binary("add", var, steps[place].var, INT32)
                if extent > 1:
                    is_in_extent = tile.Binary("lt", value, steps[place].stop, BOOL)
            context.scope.bind(name.id, value, name.span)
            context.ranges[var.name] = (0, extent - 1)
            extents.append(extent)
        with context.altered(is_parallel=True), jumps.enter_loop(context, path, iterable.span):
            jumps.elaborate_iteration(context, path, nest.body)
    if not out:
        return
    if nest.layout is not None and nest.layout.shape != tuple(extents):
        title = f"a layout of {show_shape(nest.layout.shape)} for a nest of {show_shape(tuple(extents))}"
        note = f"{len(nest.layout.shape)} inputs"
        loops = Label(iterable.span, f"{len(extents)} loops, those directly inside included")
        way_out = "the layout of a nest has one input per loop, with the loop's extent"
        raise_error("loop-layout", title, nest.layout.span, note, secondary=(loops,), help=way_out)
    body = tuple(out) if is_in_extent is None else (tile.If(is_in_extent, tuple(out), (), node.span),)
    whole = tile.Parallel(variables, tuple(extents), body, node.span, nest.width, nest.layout)
    body = (whole := split_nests.place_variables(context, whole)).body
    if split_nests.holds_loop(body):
        context.out += _emit_parts(context, split_nests.split_nest(context, whole), path)
        return
    if nest.layout is None:
        extents[-1], body = merge_vector_atomics(variables, tuple(extents), body)
    made = tile.Parallel(variables, tuple(extents), body, node.span, nest.width, nest.layout)
    copy = convert_to_copy(made, parts=True) if nest.asynchronous is not None else None
    if nest.asynchronous is not None and copy is None:
        reason = analyse_gather(made)
        if isinstance(reason, str):
            example = "S[i, j] = A[a + i, b + j]"
            way_out = f"only a nest that fills a shared tile from a tensor can be asynchronous, as {example}"
            title = "this nest cannot be an asynchronous copy"
            context.warn(make_warning("hint-not-used", title, nest.asynchronous, reason, help=way_out))
        else:
            made = replace(made, asynchronous=True)
    if copy is not None:
        per_thread.require_known_threads(context, copy.span, "T.Parallel")
        context.out.append(copy)
    else:
        thread_loops.emit_nest(context, made, path)


def _emit_parts(context: Context, parts: tuple[tile.Stmt, ...], path: str) -> list[tile.Stmt]:
    """Return the loops of a split nest with its parts emitted inside them, each part as a nest of its own."""
    with context.altered(out=[]):
        for part in parts:
            if isinstance(part, tile.For):
                context.out.append(replace(part, body=tuple(_emit_parts(context, part.body, path))))
            else:
                assert isinstance(part, tile.Parallel)
                thread_loops.emit_nest(context, part, path)
        return context.out


def _collect_nest(context: Context, node: ast.For, iterable: ast.Call, path: str) -> _Nest:
    """Return a loop and the loops directly inside it as one nest; refuse options of the nest that an inner loop is
    given. Only binds may precede an inner T.vectorized.
    """
    with context.held():
        call = evaluate.bind_call(context, NEST_SIGNATURES[path], iterable)
    head = read_nest_header(call, context.warn)
    names = read_target_names(node.target, len(head.bounds))
    nest = _Nest(names, head.bounds, node.body, head.width, head.asynchronous, head.layout)
    *statements, last = node.body
    if not isinstance(last, ast.For) or not isinstance(last.iterable, ast.Call):
        return nest
    inner_path = evaluate.find_callee(context, last.iterable)
    binds = all(isinstance(s, ast.Assign | ast.AnnotatedAssign) and _has_only_name_targets(s) for s in statements)
    if inner_path not in NEST_SIGNATURES or (statements and (inner_path in ("T.Parallel", "T.parallel") or not binds)):
        return nest
    # The inner extents may not depend on the outer variables, so they are evaluated out here.
    inner = _collect_nest(context, last, last.iterable, inner_path)
    for key in ("coalesced_width", "loop_layout", "prefer_async"):
        keyword = next((k for k in last.iterable.keywords if k.name == key), None)
        if keyword is not None and path != "T.vectorized":
            title = f"`{key}` belongs to the outermost loop of a nest"
            place = Label(iterable.span, "the outermost loop")
            way_out = "move it there: it applies to the whole nest"
            raise_error("wrong-argument", title, keyword.span, secondary=(place,), help=way_out)
    return _Nest(
        names + inner.names, head.bounds + inner.bounds, (*statements, *inner.body), head.width or inner.width,
        head.asynchronous, head.layout,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Nest:
    """An elementwise nest: loop variables, the half-open bounds of each, and the innermost body. `asynchronous` is the
    span of `prefer_async`."""

    names: tuple[ast.Name, ...]
    bounds: tuple[tuple[int, int | tile.Expr], ...]
    body: tuple[ast.Stmt, ...]
    width: int | None
    asynchronous: Span | None
    layout: tile.LoopLayout | None

    def count_step_iterations(self, place: int) -> int:
        """Return how many iterations of a run-time extent one step takes: 1, but about 256 in the innermost
        dimension.
        """
        if place < len(self.bounds) - 1:
            return 1
        return max(_ITERATIONS_PER_STEP // (self.width or 1), 1) * (self.width or 1)


@dataclass(frozen=True, slots=True)
class _StepLoop:
    """The loop over the steps of one dimension with a run-time extent. `var` is the first of the `size` iterations."""

    var: tile.Var
    size: int
    stop: tile.Expr


def _has_only_name_targets(node: ast.Assign | ast.AnnotatedAssign) -> bool:
    """Return whether an assignment sets only plain names."""
    targets = node.targets if isinstance(node, ast.Assign) else (node.target,)
    return all(isinstance(t, ast.Name) for t in targets)
