"""Elaboration of the function of a kernel: its parameters, its launch, and the kernel that its body makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import replace

from tilec.analysis.clusters import (
    add_grid_counter,
    bind_block_rank,
    build_block_rank,
    read_cluster,
    resolve_cluster_masks,
    uses_rank,
)
from tilec.frontend.sema.compile_time.functions import is_launch
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.expressions.views import replace_views
from tilec.frontend.sema.launch import parameters
from tilec.frontend.sema.launch.out_of_bounds_fill import fill_out_of_bounds_reads
from tilec.frontend.sema.launch.parameters import warn_of_unused_parameters
from tilec.frontend.sema.launch.pointers import (
    POINTER_SIGNATURE,
    STRIDED_TENSOR_SIGNATURE,
    bind_table,
    build_tensor,
    make_pointer,
    replace_entry_tensors,
    resolve_pointers,
)
from tilec.frontend.sema.loops.loop_headers import read_target_names
from tilec.frontend.sema.loops.polling import refuse_waits_for_idle_threads
from tilec.frontend.sema.operations.emitter_methods import refuse_other_uses
from tilec.frontend.sema.operations.reducers import replace_reducers_by_parts
from tilec.frontend.sema.recover import poison_names
from tilec.frontend.sema.roles.awaits import resolve_awaited_tiles
from tilec.frontend.sema.roles.explicit_roles import warn_of_ignored_registers
from tilec.frontend.sema.roles.masked_waits import refuse_waits_for_own_threads
from tilec.frontend.sema.roles.pipeline_rules import finish_pipelines
from tilec.frontend.sema.vocabulary import refuse_name
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import SMALL_FLOATS, cast_expr, extent_to_size
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import BOOL, INT32, NARROW_TYPES, DType
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_dtype, bind_arguments
from tilec.ops.language.values import EXPR_TYPES, Member, describe_value
from tilec.ops.placeholder import make_refused
from tilec.passes.loop.stages.register_stages import apply_register_stages
from tilec.passes.loop.stages.requested_stages import apply_requested_stages
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import CompileError, make_warning, raise_error
from tilec.support.records import dataclass
from tilec.support.sizes import has_shift
from tilec.support.source import Span

_THREADS = Parameter("threads", 128, keyword_only=True)
_PRELUDE = Parameter("prelude", None, supported=False, keyword_only=True)
KERNEL_SIGNATURE = Signature(
    "T.Kernel", (_THREADS, Parameter("cluster_dims", None, keyword_only=True), _PRELUDE), variadic=True
)
CLUSTER_KERNEL_SIGNATURE = Signature(
    "T.ClusterKernel", (Parameter("cluster_dims", keyword_only=True), _THREADS, _PRELUDE), variadic=True
)
LAUNCH_SIGNATURES = {"T.Kernel": KERNEL_SIGNATURE, "T.ClusterKernel": CLUSTER_KERNEL_SIGNATURE}
TENSOR_SIGNATURE = Signature("T.Tensor", (Parameter("shape"), Parameter("dtype", "float32")))
_TENSOR_SIGNATURES = {
    "T.Tensor": TENSOR_SIGNATURE,
    "T.Buffer": TENSOR_SIGNATURE,
    STRIDED_TENSOR_SIGNATURE.name: STRIDED_TENSOR_SIGNATURE,
}

_MAX_THREADS = 1024
# y and z; x may be larger than any program needs (CUDA programming guide, technical specifications).
_MAX_GRID_YZ = 65535
_MAX_GRID_X = 2**31 - 1
Param = tile.Buffer | tile.Var


class IncompleteKernel(CompileError):
    """All mistakes in the statements of a kernel; `kernel` is what they leave of it."""

    def __init__(self, kernel: tile.Kernel, mistakes: CompileError) -> None:
        super().__init__(*mistakes.diagnostics)
        self.kernel = kernel


def elaborate_kernel(
    function: ast.Function, context: Context, params: Callable[[], tuple[Param, ...]], number: int = 0
) -> tile.Kernel:
    """Elaborate launch `number` of a function to a kernel, or raise all its mistakes, with what is left of the kernel.
    `params` is called once its statements have run. Without a launch the error has no kernel.
    """
    launch = None
    with context.mistakes.caught():
        launch = _find_launch_statement(context, function, number)
    context.unique.taken.update(parameters.list_size_names(context.scope))
    between = _take_intermediate_tensors(context)
    if launch is not None:
        shape = _elaborate_launch(context, launch)
    if launch is None or context.mistakes.met:
        if launch is not None:
            context.block(launch.body)
        context.mistakes.join(context.schedule_mistakes)
        context.mistakes.end()
    assert launch is not None
    context.launched = launch.body
    context.block(launch.body)
    built = _build_kernel(function, context, shape, lambda: (*params(), *between))
    if context.mistakes.met:
        context.mistakes.join(context.schedule_mistakes)
        try:
            context.mistakes.end()
        except CompileError as error:
            raise IncompleteKernel(_add_refused_statement(built), error) from None
    return built


def _add_refused_statement(kernel: tile.Kernel) -> tile.Kernel:
    """Return a kernel with a placeholder statement over all fragments, for those that mistakes left out."""
    fragments = tuple(b for b in kernel.buffers if b.scope == "fragment")
    return replace(kernel, body=(make_refused((), fragments, kernel.span), *kernel.body))


def _build_kernel(
    function: ast.Function, context: Context, shape: _LaunchShape, params: Callable[[], tuple[Param, ...]]
) -> tile.Kernel:
    """Build the kernel from the elaborated statements, with views, reducers, pipelines and hints resolved; record
    mistakes. It warns of unused parameters, and adds parameters for sizes. `context.out` is changed.
    """
    context.out[:] = finish_pipelines(context.out, context.pipelines, context.cluster, context.mistakes)
    context.out[:] = resolve_cluster_masks(tuple(context.out), shape.block_vars, context.cluster)
    context.out[:] = add_grid_counter(tuple(context.out), context.unique, context.buffers)
    hints = context.hints
    statements, copies = replace_views(tuple(context.out), context.views, hints.tensors, context.unique)
    refuse_other_uses(context, statements)
    refuse_waits_for_idle_threads(statements, context.thread_whiles)
    refuse_waits_for_own_threads(context, statements)
    statements, buffers = replace_reducers_by_parts(statements, context.reducers, [*context.buffers, *copies])
    if uses_rank(statements):
        rank = build_block_rank(shape.block_vars, context.cluster)
        statements = bind_block_rank(statements, rank, function.name_span)
    built = tile.Kernel(
        function.name, resolve_pointers(context, params()), shape.grid, shape.block_vars, context.threads, buffers,
        statements, function.name_span, tuple(hints.layouts.values()), cluster=context.cluster, raster=hints.raster,
        subtiles=tuple(hints.subtiles.values()), min_blocks=hints.min_blocks,
    )  # fmt: skip
    built = fill_out_of_bounds_reads(built, hints.out_of_bounds_fill, context.unique.take)
    built = replace_entry_tensors(built, context.entries)
    warn_of_ignored_registers(built, context.has_explicit_roles, context.warn)
    if not context.mistakes.met:  # a mistake may be where they were to be used
        warn_of_unused_parameters(context, function, built.params)
    if not context.mistakes.met:  # a missing statement may have been a load
        built = apply_requested_stages(built, hints.stages, context.schedule_mistakes)
        built = apply_register_stages(built, hints.stages, context.schedule_mistakes)
    return parameters.add_size_parameters(resolve_awaited_tiles(built, context.warn, context.schedule_mistakes))


# ---- the launch ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LaunchShape:
    """The grid of a launch, and the variables of its block indices."""

    grid: tuple[tile.Extent, ...]
    block_vars: tuple[tile.Var, ...]


def _find_launch_statement(context: Context, function: ast.Function, number: int) -> ast.With:
    """Return the `with T.Kernel(…)` of this number; elaborate what stands before it; refuse its absence, or code after
    the last. `context.launches` counts all.
    """
    launch: ast.With | None = None
    trailing: ast.Stmt | None = None
    for statement in _flatten_decided_ifs(context, function.body):
        with context.mistakes.caught():
            if isinstance(statement, ast.With) and _is_launch(context, statement):
                launch = statement if context.launches == number else launch
                context.launches += 1
                trailing = None
            elif launch is not None and not isinstance(statement, ast.Pass | ast.Return):
                trailing = trailing or statement
            else:
                _elaborate_before_launch(context, statement)
    if trailing is not None:
        with context.mistakes.caught():
            title = "no statement may follow the last T.Kernel block"
            raise_error("misplaced-statement", title, trailing.span.first_line())
    if launch is None:
        way_out = "write `with T.Kernel(grid, threads=128) as bx:` around the body"
        raise_error("missing-kernel", f"{function.name} launches nothing", function.name_span, help=way_out)
    return launch


def _take_intermediate_tensors(context: Context) -> tuple[Param, ...]:
    """Remove and return the T.alloc_global tensors before several launches, to become parameters; none for one launch.
    One launch fills them for the next, so whoever launches the kernels provides their memory.
    """
    if context.launches < 2:
        return ()
    tensors = tuple(context.buffers)
    context.buffers.clear()
    return tensors


def _is_launch(context: Context, statement: ast.With) -> bool:
    """Return whether a `with` statement calls T.Kernel or T.ClusterKernel."""
    call = statement.context
    return isinstance(call, ast.Call) and evaluate.find_callee(context, call) in LAUNCH_SIGNATURES


def _elaborate_before_launch(context: Context, statement: ast.Stmt) -> None:
    """Elaborate a statement before T.Kernel; refuse and undo it if it emits statements or allocates a tile."""
    context.block((statement,))
    if context.out or any(b.scope != "global" for b in context.buffers):
        context.out.clear()
        context.buffers.clear()
        poison_names(context.scope, statement)
        note = "before the launch, only constants can be computed"
        raise_error("misplaced-statement", "this belongs inside `with T.Kernel(…):`", statement.span.first_line(), note)


def _flatten_decided_ifs(context: Context, statements: tuple[ast.Stmt, ...]) -> Generator[ast.Stmt, None, bool]:
    """Yield the statements up to a `return`, replacing an `if` around a launch or return by its chosen side. Return
    whether there was a `return`.
    """
    for statement in statements:
        ends = (is_launch(n) or isinstance(n, ast.Return) for n in ast.walk_nodes(statement))
        if isinstance(statement, ast.If) and any(ends):
            chosen = statement.then if evaluate.decide_condition(context, statement.condition) else statement.orelse
            if (yield from _flatten_decided_ifs(context, chosen)):
                return True
        else:
            yield statement
            if isinstance(statement, ast.Return):
                return True
    return False


def _elaborate_launch(context: Context, launch: ast.With) -> _LaunchShape:
    """Read T.Kernel's grid, threads and cluster into the context, bind block indices, record mistakes; return the
    grid.
    """
    assert isinstance(launch.context, ast.Call)
    grid: tuple[tile.Extent, ...] = ()
    context.is_launched, context.thread_extents = True, (WARP_THREADS, 1, 1)
    block_vars: tuple[tile.Var, ...] = ()
    try:
        signature = LAUNCH_SIGNATURES[evaluate.find_callee(context, launch.context) or "T.Kernel"]
        call = evaluate.bind_call(context, signature, launch.context)
        with context.mistakes.caught():
            context.thread_extents = _read_thread_extents(call)
            context.has_threads = True
            _warn_of_partial_warp(context, call["threads"].span)
        grid = _read_grid(call)
        with context.mistakes.caught():
            context.cluster = read_cluster(call, grid, context.machine.default_cluster)
        block_vars = _bind_block_variables(context, launch, len(grid))
    except CompileError as error:
        context.mistakes.add(error)
        poison_names(context.scope, replace(launch, body=()))
        context.scope.is_incomplete = True
    context.blocks = tuple(zip(block_vars, grid, strict=False))
    context.ranges[tile.THREAD.name] = (0, math.prod(context.thread_extents) - 1)
    for var, extent in context.blocks:
        if isinstance(extent, int):
            context.ranges[var.name] = (0, extent - 1)
    return _LaunchShape(grid, block_vars)


# ---- parameters ------------------------------------------------------------------------------------------------------


def move_declared_types(function: ast.Function) -> ast.Function:
    """Return a function with `A: T.Tensor(…)` in its body moved to parameter A, where that has no type or default."""
    untyped = {p.name for p in function.params if p.annotation is None and p.default is None}
    types: dict[str, ast.Expr] = {}
    body: list[ast.Stmt] = []
    for statement in function.body:
        match statement:
            case ast.AnnotatedAssign(target=ast.Name(id=name), annotation=annotation, value=None) if (
                name in untyped and name not in types
            ):
                types[name] = annotation
            case _:
                body.append(statement)
    if not types:
        return function
    params = tuple(replace(p, annotation=types.get(p.name, p.annotation)) for p in function.params)
    return replace(function, params=params, body=tuple(body))


def elaborate_parameters(context: Context, function: ast.Function) -> tuple[Param, ...]:
    """Bind a kernel function's typed parameters and return them, but mistaken ones, which are recorded and poisoned."""
    params: list[Param] = []
    for node in function.params:
        try:
            params.append(_bind_typed_parameter(context, node))
        except CompileError as error:
            context.mistakes.add(error)
            context.scope.poison(node.name, node.span)
    return tuple(params)


def _bind_typed_parameter(context: Context, node: ast.Parameter) -> Param:
    """Bind a parameter by its type and return it; refuse a missing type, a default or a repeated name."""
    if node.name in context.scope.names:
        raise_error("duplicate-definition", f"parameter `{node.name}` appears twice", node.span)
    if node.annotation is None:
        way_out = f"write `{node.name}: T.Tensor((M, N), dtype)` or `{node.name}: T.float32`"
        raise_error("missing-type", f"parameter `{node.name}` has no type", node.span, help=way_out)
    if node.default is not None:
        raise_error("unsupported-syntax", "kernel parameters have no defaults", node.default.span)
    return bind_parameter(context, node.name, node.annotation, node.span)


def bind_parameter(context: Context, name: str, annotation: ast.Expr, span: Span) -> Param:
    """Bind a name to a new tensor, pointer or scalar parameter by its annotation, and return that; refuse other
    annotations.
    """
    buffer = read_tensor_type(context, annotation, name, span)
    if buffer is not None and buffer.table_rank:
        table = replace(buffer, name=context.unique.take(name))
        context.scope.bind(name, bind_table(context, table), span)
        return table
    if buffer is not None:
        param: Param = replace(buffer, name=context.unique.take(name))
    elif _is_pointer(context, annotation):
        param = make_pointer(context, name)
    else:
        param = tile.Var(context.unique.take(name), _read_scalar_type(context, annotation))
        context.scalars.add(param)
    context.scope.bind(name, param, span)
    return param


def read_tensor_type(context: Context, annotation: ast.Expr, name: str, span: Span) -> tile.Buffer | None:
    """Return the tensor that a `T.Tensor` or `T.StridedTensor` annotation describes, or None for other annotations. It
    is `T.Tensor((M, K), dtype)` or `T.Tensor[(M, K), dtype]`.
    """
    match annotation:
        case ast.Call() if (
            signature := _TENSOR_SIGNATURES.get(evaluate.find_callee(context, annotation) or "")
        ) is not None:
            return build_tensor(evaluate.bind_call(context, signature, annotation), name, span)
        case ast.Subscript(value=value, indices=indices) if (
            signature := _find_tensor_signature(context, value)
        ) is not None:
            items = [evaluate.evaluate_argument(context, i) for i in indices if not isinstance(i, ast.Slice)]
            return build_tensor(bind_arguments(signature, items, {}, annotation.span), name, span)
        case _:
            return None


def _is_pointer(context: Context, annotation: ast.Expr) -> bool:
    """Return whether an annotation is `T.ptr` or `T.ptr(dtype)`."""
    name = POINTER_SIGNATURE.name
    if isinstance(annotation, ast.Call) and evaluate.find_callee(context, annotation) == name:
        evaluate.bind_call(context, POINTER_SIGNATURE, annotation)
        return True
    return isinstance(annotation, ast.Attribute | ast.Name) and context.value(annotation) == Member(name)


def fold_extent(extent: tile.Extent) -> tile.Extent:
    """Return an extent with its constant parts computed; a number is returned as it is."""
    return extent if isinstance(extent, int) else fold_expr(extent)


def _find_tensor_signature(context: Context, node: ast.Expr) -> Signature | None:
    """Return the call signature of the tensor type that an expression names, or None for other values."""
    value = context.value(node)
    return _TENSOR_SIGNATURES.get(value.path) if isinstance(value, Member) else None


def _read_scalar_type(context: Context, annotation: ast.Expr) -> DType:
    """Return the dtype of a scalar parameter's annotation; refuse bool, narrow types and anything but a dtype."""
    argument = evaluate.evaluate_argument(context, annotation)
    if isinstance(argument.value, Member) and argument.value.path.startswith("T."):
        refuse_name(argument.value.path, annotation.span)
    if not isinstance(argument.value, DType | str):
        title = "a parameter is a tensor or a scalar"
        note = f"this is {describe_value(argument.value)}"
        raise_error("wrong-argument", title, annotation.span, note, help="write T.Tensor((M, N), dtype) or T.float32")
    dtype = as_dtype(argument)
    if dtype == BOOL or dtype in SMALL_FLOATS or dtype in NARROW_TYPES:
        help_text = "pass T.int32" if dtype == BOOL else "pass T.float32"
        raise_error("wrong-dtype", f"a scalar parameter cannot be a {dtype}", annotation.span, help=help_text)
    return dtype


def _read_grid(call: Call) -> tuple[tile.Extent, ...]:
    """Return the one to three extents of the grid in a T.Kernel call, one block without any; refuse more."""
    if not call.variadic:
        return (1,)
    if len(call.variadic) > 3:
        raise_error("wrong-argument", f"a grid has one to three dimensions, not {len(call.variadic)}", call.span)
    limits = (_MAX_GRID_X, _MAX_GRID_YZ, _MAX_GRID_YZ)
    return tuple(_read_grid_extent(a, limit) for a, limit in zip(call.variadic, limits, strict=False))


def _read_grid_extent(argument: Argument, limit: int) -> tile.Extent:
    """Return one grid extent: an integer from 1 to `limit`, or an int32 expression known at launch; refuse others."""
    value = argument.value
    if isinstance(value, EXPR_TYPES):
        if (size := extent_to_size(value)) is None or has_shift(size):
            title = "the grid must be known at launch"
            way_out = "compute it from integers and integer parameters, with + - * // % T.min and T.max"
            raise_error("dynamic-grid", title, argument.span, f"depends on {describe_value(value)}", help=way_out)
        return fold_extent(cast_expr(value, INT32))
    if not isinstance(value, int) or isinstance(value, bool):
        raise_error("wrong-argument", "grid extents are integers", argument.span, f"this is {describe_value(value)}")
    if not 1 <= value <= limit:
        raise_error("wrong-shape", f"a grid extent lies between 1 and {limit}", argument.span, f"this is {value}")
    return value


def _read_thread_extents(call: Call) -> tuple[int, int, int]:
    """Return the threads of a block along x, y and z, absent ones 1; refuse fewer than 1 or more than 1024 in all."""
    argument = call["threads"]
    dims = argument.value if isinstance(argument.value, tuple) else (argument.value,)
    extents = [dim for dim in dims if isinstance(dim, int) and not isinstance(dim, bool)]
    if len(extents) < len(dims) or not 1 <= len(dims) <= 3:
        call.refuse("threads", "an integer, or up to three, known at compile time")
    threads = math.prod(extents)
    if not 1 <= threads <= _MAX_THREADS:
        title = f"a block has 1 to {_MAX_THREADS} threads"
        raise_error("bad-threads", title, argument.span, f"this is {threads}")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _warn_of_partial_warp(context: Context, span: Span) -> None:
    """Warn if the block's threads do not fill its last warp."""
    count = math.prod(context.thread_extents)
    if context.threads > count:
        title = f"a block of {count} {'thread' if count == 1 else 'threads'} takes as long as one of {context.threads}"
        way_out = f"write threads={context.threads}, unless the threads do different work"
        context.warn(make_warning("partial-warp", title, span, f"they run in warps of {WARP_THREADS}", help=way_out))


def _bind_block_variables(context: Context, launch: ast.With, rank: int) -> tuple[tile.Var, ...]:
    """Bind the names after `as` to new block-index variables, and return these; without `as` no names; refuse another
    number.
    """
    target = launch.target
    if target is None:
        # The kernel uses no block index.
        return tuple(tile.Var(context.unique.take(name)) for name in ("bx", "by", "bz")[:rank])
    names = read_target_names(target, rank, "as ({})")
    variables = tuple(tile.Var(context.unique.take(name.id)) for name in names)
    for name, var in zip(names, variables, strict=True):
        context.scope.bind(name.id, var, name.span)
    return variables
