"""Elaboration of the function of a kernel: its parameters, its launch, and the kernel that its body makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import replace

from tilec.frontend.sema import dynamic, evaluate
from tilec.frontend.sema.awaits import with_awaited
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.explicit_roles import without_effect
from tilec.frontend.sema.functions import is_launch
from tilec.frontend.sema.loops import target_names
from tilec.frontend.sema.out_of_bounds_fill import with_values
from tilec.frontend.sema.pipeline_rules import settled
from tilec.frontend.sema.pointers import POINTER, STRIDED, described, pointer, resolved
from tilec.frontend.sema.recover import poison
from tilec.frontend.sema.reducers import with_parts
from tilec.frontend.sema.unused_parameters import warn_of_unused
from tilec.frontend.sema.views import without_views
from tilec.frontend.sema.vocabulary import refuse_name
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import SMALL_FLOATS, as_size, cast
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import BOOL, INT32, NARROW, DType
from tilec.ops.refused import refused
from tilec.ops.signature import Argument, Call, Parameter, Signature, as_dtype, bind
from tilec.ops.values import EXPR_TYPES, Member, describe
from tilec.passes.analysis.clusters import cluster_of, rank, uses_rank, with_counter, with_masks, with_rank
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.passes.loop.register_stages import with_register_stages
from tilec.passes.loop.requested_stages import with_stages
from tilec.support.diagnostics import CompileError, fail, warning
from tilec.support.records import dataclass
from tilec.support.source import Span

_THREADS = Parameter("threads", 128, keyword_only=True)
_PRELUDE = Parameter("prelude", None, supported=False, keyword_only=True)
KERNEL = Signature("T.Kernel", (_THREADS, Parameter("cluster_dims", None, keyword_only=True), _PRELUDE), variadic=True)
CLUSTER_KERNEL = Signature(
    "T.ClusterKernel", (Parameter("cluster_dims", keyword_only=True), _THREADS, _PRELUDE), variadic=True
)
LAUNCHES = {"T.Kernel": KERNEL, "T.ClusterKernel": CLUSTER_KERNEL}
TENSOR = Signature("T.Tensor", (Parameter("shape"), Parameter("dtype", "float32")))
_TENSORS = {"T.Tensor": TENSOR, "T.Buffer": TENSOR, STRIDED.name: STRIDED}

_MAX_THREADS = 1024
# y and z; x may be larger than any program needs (CUDA programming guide, technical specifications).
_MAX_GRID_YZ = 65535
_MAX_GRID_X = 2**31 - 1


Param = tile.Buffer | tile.Var


class Incomplete(CompileError):
    """All mistakes in the statements of a kernel; `kernel` is what they leave of it."""

    def __init__(self, kernel: tile.Kernel, mistakes: CompileError) -> None:
        super().__init__(*mistakes.diagnostics)
        self.kernel = kernel


def kernel(
    function: ast.Function, context: Context, params: Callable[[], tuple[Param, ...]], number: int = 0
) -> tile.Kernel:
    """Elaborate launch `number` of a function. `params` is called once its statements have run. Errors: all mistakes of
    the kernel, as an `IncompleteKernel` where something is left of it."""
    launch = None
    with context.mistakes.caught():
        launch = _launch_statement(context, function, number)
    context.unique.taken.update(dynamic.names(context.scope))
    between = _between_launches(context)
    if launch is not None:
        shape = _launched(context, launch)
    if launch is None or context.mistakes.met:
        if launch is not None:
            context.block(launch.body)
        context.mistakes.join(context.schedule_mistakes)
        context.mistakes.end()
    assert launch is not None
    context.block(launch.body)
    built = _made(function, context, shape, lambda: (*params(), *between))
    if context.mistakes.met:
        context.mistakes.join(context.schedule_mistakes)
        try:
            context.mistakes.end()
        except CompileError as error:
            raise Incomplete(_without_layouts(built), error) from None
    return built


def _without_layouts(kernel: tile.Kernel) -> tile.Kernel:
    """Add a statement in place of the missing ones, which would have shaped the layouts of all fragments."""
    fragments = tuple(b for b in kernel.buffers if b.scope == "fragment")
    return replace(kernel, body=(refused((), fragments, kernel.span), *kernel.body))


def _made(
    function: ast.Function, context: Context, shape: _Launch, params: Callable[[], tuple[Param, ...]]
) -> tile.Kernel:
    context.out[:] = settled(context.out, context.pipelines, context.cluster, context.mistakes)
    context.out[:] = with_masks(tuple(context.out), shape.block_vars, context.cluster)
    context.out[:] = with_counter(tuple(context.out), context.unique, context.buffers)
    statements, copies = without_views(tuple(context.out), context.views, context.hints.tensors, context.unique)
    statements, buffers = with_parts(statements, context.reducers, [*context.buffers, *copies])
    if uses_rank(statements):
        statements = with_rank(statements, rank(shape.block_vars, context.cluster), function.name_span)
    built = tile.Kernel(
        function.name,
        resolved(context, params()),
        shape.grid,
        shape.block_vars,
        context.threads,
        buffers,
        statements,
        function.name_span,
        tuple(context.hints.layouts.values()),
        cluster=context.cluster,
        raster=context.hints.raster,
        subtiles=tuple(context.hints.subtiles.values()),
    )
    built = with_values(built, context.hints.out_of_bounds_fill, context.unique.take)
    without_effect(built, context.has_explicit_roles, context.warn)
    if not context.mistakes.met:  # a mistake may be where they were to be used
        warn_of_unused(context, function, built.params)
    if not context.mistakes.met:  # a missing statement may have been a load
        built = with_stages(built, context.hints.stages, context.schedule_mistakes)
        built = with_register_stages(built, context.hints.stages, context.schedule_mistakes)
    return dynamic.with_sizes(with_awaited(built, context.warn, context.schedule_mistakes))


# ---- the launch ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Launch:
    """The grid of a launch, and the variables of its block indices."""

    grid: tuple[tile.Extent, ...]
    block_vars: tuple[tile.Var, ...]


def _launch_statement(context: Context, function: ast.Function, number: int) -> ast.With:
    """Return the `with T.Kernel(…)` of this number. Statements before it are elaborated: they compute constants."""
    launch: ast.With | None = None
    trailing: ast.Stmt | None = None
    for statement in _decided(context, function.body):
        with context.mistakes.caught():
            if isinstance(statement, ast.With) and _is_launch(context, statement):
                launch = statement if context.launches == number else launch
                context.launches += 1
                trailing = None
            elif launch is not None and not isinstance(statement, ast.Pass | ast.Return):
                trailing = trailing or statement
            else:
                _before(context, statement)
    if trailing is not None:
        with context.mistakes.caught():
            fail("misplaced-statement", "nothing may follow the last T.Kernel block", trailing.span.first_line())
    if launch is None:
        fail(
            "missing-kernel",
            f"{function.name} launches nothing",
            function.name_span,
            help="write `with T.Kernel(grid, threads=128) as bx:` around the body",
        )
    return launch


def _between_launches(context: Context) -> tuple[Param, ...]:
    """Take the tensors that T.alloc_global makes before several launches. One launch fills them for the next, so
    whoever launches the kernels provides their memory: they become the last parameters."""
    if context.launches < 2:
        return ()
    tensors = tuple(context.buffers)
    context.buffers.clear()
    return tensors


def _is_launch(context: Context, statement: ast.With) -> bool:
    return isinstance(statement.context, ast.Call) and evaluate.callee(context, statement.context) in LAUNCHES


def _before(context: Context, statement: ast.Stmt) -> None:
    context.block((statement,))
    if context.out or any(b.scope != "global" for b in context.buffers):
        context.out.clear()
        context.buffers.clear()
        poison(context.scope, statement)
        fail(
            "misplaced-statement",
            "this belongs inside `with T.Kernel(…):`",
            statement.span.first_line(),
            "before the launch, only constants can be computed",
        )


def _decided(context: Context, statements: tuple[ast.Stmt, ...]) -> Generator[ast.Stmt, None, bool]:
    """Yield the statements of a function up to its `return`, with the chosen side of each `if` that decides about a
    launch or a return. Return whether there was a `return`."""
    for statement in statements:
        ends = (is_launch(n) or isinstance(n, ast.Return) for n in ast.walk(statement))
        if isinstance(statement, ast.If) and any(ends):
            chosen = statement.then if evaluate.decided(context, statement.condition) else statement.orelse
            if (yield from _decided(context, chosen)):
                return True
        else:
            yield statement
            if isinstance(statement, ast.Return):
                return True
    return False


def _launched(context: Context, launch: ast.With) -> _Launch:
    assert isinstance(launch.context, ast.Call)
    grid: tuple[tile.Extent, ...] = ()
    context.is_launched, context.thread_extents = True, (WARP_THREADS, 1, 1)
    block_vars: tuple[tile.Var, ...] = ()
    try:
        signature = LAUNCHES[evaluate.callee(context, launch.context) or "T.Kernel"]
        call = bind(signature, *evaluate.arguments(context, launch.context), launch.context.span)
        with context.mistakes.caught():
            context.thread_extents = _threads(call)
            context.has_threads = True
            _tell_of_others(context, call["threads"].span)
        grid = _grid(call)
        with context.mistakes.caught():
            context.cluster = cluster_of(call, grid, context.default_cluster)
        block_vars = _block_vars(context, launch, len(grid))
    except CompileError as error:
        context.mistakes.add(error)
        poison(context.scope, replace(launch, body=()))
        context.scope.is_incomplete = True
    context.blocks = tuple(zip(block_vars, grid, strict=False))
    context.ranges[tile.THREAD.name] = (0, math.prod(context.thread_extents) - 1)
    for var, extent in context.blocks:
        if isinstance(extent, int):
            context.ranges[var.name] = (0, extent - 1)
    return _Launch(grid, block_vars)


# ---- parameters ------------------------------------------------------------------------------------------------------


def header(context: Context, function: ast.Function) -> tuple[Param, ...]:
    """Bind the parameters of a function that gives each a type."""
    params: list[Param] = []
    for node in function.params:
        try:
            params.append(_parameter(context, node))
        except CompileError as error:
            context.mistakes.add(error)
            context.scope.poison(node.name, node.span)
    return tuple(params)


def _parameter(context: Context, node: ast.Parameter) -> Param:
    if node.name in context.scope.names:
        fail("duplicate-definition", f"parameter `{node.name}` appears twice", node.span)
    if node.annotation is None:
        fail(
            "missing-type",
            f"parameter `{node.name}` has no type",
            node.span,
            help=f"write `{node.name}: T.Tensor((M, N), dtype)` or `{node.name}: T.float32`",
        )
    if node.default is not None:
        fail("unsupported-syntax", "kernel parameters have no defaults", node.default.span)
    return parameter(context, node.name, node.annotation, node.span)


def parameter(context: Context, name: str, annotation: ast.Expr, span: Span) -> Param:
    """Bind a parameter: a tensor, a pointer or a scalar, as its annotation says."""
    buffer = tensor(context, annotation, name, span)
    if buffer is not None:
        param: Param = replace(buffer, name=context.unique.take(name))
    elif _is_pointer(context, annotation):
        param = pointer(context, name, span)
    else:
        param = tile.Var(context.unique.take(name), _scalar_type(context, annotation))
        context.scalars.add(param)
    context.scope.bind(name, param, span)
    return param


def tensor(context: Context, annotation: ast.Expr, name: str, span: Span) -> tile.Buffer | None:
    """Return the tensor that an annotation describes, if any: `T.Tensor((M, K), dtype)`, `T.Tensor[(M, K), dtype]` or
    the same of T.StridedTensor."""
    match annotation:
        case ast.Call() if (signature := _TENSORS.get(evaluate.callee(context, annotation) or "")) is not None:
            return described(bind(signature, *evaluate.arguments(context, annotation), annotation.span), name, span)
        case ast.Subscript(value=value, indices=indices) if (signature := _tensor_type(context, value)) is not None:
            items = [i for i in indices if not isinstance(i, ast.Slice)]
            return described(
                bind(signature, [evaluate.argument(context, i) for i in items], {}, annotation.span), name, span
            )
        case _:
            return None


def _is_pointer(context: Context, annotation: ast.Expr) -> bool:
    """Return whether the annotation is T.ptr, or T.ptr(dtype)."""
    if isinstance(annotation, ast.Call) and evaluate.callee(context, annotation) == POINTER.name:
        bind(POINTER, *evaluate.arguments(context, annotation), annotation.span)
        return True
    return isinstance(annotation, ast.Attribute | ast.Name) and context.value(annotation) == Member(POINTER.name)


def folded(extent: tile.Extent) -> tile.Extent:
    return extent if isinstance(extent, int) else fold_expr(extent)


def _tensor_type(context: Context, node: ast.Expr) -> Signature | None:
    value = context.value(node)
    return _TENSORS.get(value.path) if isinstance(value, Member) else None


def _scalar_type(context: Context, annotation: ast.Expr) -> DType:
    argument = evaluate.argument(context, annotation)
    if isinstance(argument.value, Member) and argument.value.path.startswith("T."):
        refuse_name(argument.value.path, annotation.span)
    if not isinstance(argument.value, DType | str):
        fail(
            "wrong-argument",
            "a parameter is a tensor or a scalar",
            annotation.span,
            f"this is {describe(argument.value)}",
            help="write T.Tensor((M, N), dtype) or T.float32",
        )
    dtype = as_dtype(argument)
    if dtype == BOOL or dtype in SMALL_FLOATS or dtype in NARROW:
        help_text = "pass T.int32" if dtype == BOOL else "pass T.float32"
        fail("wrong-dtype", f"a scalar parameter cannot be a {dtype}", annotation.span, help=help_text)
    return dtype


def _grid(call: Call) -> tuple[tile.Extent, ...]:
    if not 1 <= len(call.variadic) <= 3:
        fail("wrong-argument", f"a grid has one to three dimensions, not {len(call.variadic)}", call.span)
    limits = (_MAX_GRID_X, _MAX_GRID_YZ, _MAX_GRID_YZ)
    return tuple(_grid_extent(a, limit) for a, limit in zip(call.variadic, limits, strict=False))


def _grid_extent(argument: Argument, limit: int) -> tile.Extent:
    value = argument.value
    if isinstance(value, EXPR_TYPES):
        if as_size(value) is None:
            fail(
                "dynamic-grid",
                "the grid must be known at launch",
                argument.span,
                f"depends on {describe(value)}",
                help="make it of integers and of integer parameters, with + - * // % T.min and T.max",
            )
        return folded(cast(value, INT32))
    if not isinstance(value, int) or isinstance(value, bool):
        fail("wrong-argument", "grid extents are integers", argument.span, f"this is {describe(value)}")
    if not 1 <= value <= limit:
        fail("wrong-shape", f"a grid extent lies between 1 and {limit}", argument.span, f"this is {value}")
    return value


def _threads(call: Call) -> tuple[int, int, int]:
    """Read the threads of a block along x, y and z."""
    argument = call["threads"]
    dims = argument.value if isinstance(argument.value, tuple) else (argument.value,)
    extents = [dim for dim in dims if isinstance(dim, int) and not isinstance(dim, bool)]
    if len(extents) < len(dims) or not 1 <= len(dims) <= 3:
        call.refuse("threads", "an integer, or up to three, known at compile time")
    threads = math.prod(extents)
    if not 1 <= threads <= _MAX_THREADS:
        title = f"a block has 1 to {_MAX_THREADS} threads"
        fail("bad-threads", title, argument.span, f"this is {threads}")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _tell_of_others(context: Context, span: Span) -> None:
    count = math.prod(context.thread_extents)
    if context.threads > count:
        title = f"a block of {count} {'thread' if count == 1 else 'threads'} takes as long as one of {context.threads}"
        context.warn(
            warning(
                "partial-warp",
                title,
                span,
                f"they run in warps of {WARP_THREADS}",
                help=f"write threads={context.threads}, unless each thread does something of its own",
            )
        )


def _block_vars(context: Context, launch: ast.With, rank: int) -> tuple[tile.Var, ...]:
    target = launch.target
    if target is None:
        # The kernel uses no block index.
        return tuple(tile.Var(context.unique.take(name)) for name in ("bx", "by", "bz")[:rank])
    names = target_names(target, rank, "as ({})")
    variables = tuple(tile.Var(context.unique.take(name.id)) for name in names)
    for name, var in zip(names, variables, strict=True):
        context.scope.bind(name.id, var, name.span)
    return variables
