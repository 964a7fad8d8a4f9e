"""Elaboration of operations on tiles and elements, and reductions whose result has another type than their source.

The reduction runs in the wider of both types: the source is converted first, or the result last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.analysis.usage import list_expressions
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate, fragment_elements
from tilec.frontend.sema.expressions.bounds import check_access, check_box, check_loads
from tilec.frontend.sema.expressions.calls import refuse_unknown_call
from tilec.frontend.sema.roles import explicit_roles as roles, pipelines
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.sema.statements.stores import emit_element_statements, emit_store, set_variable
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.tile import Buffer
from tilec.ir.types import BOOL, DType
from tilec.ops import registry
from tilec.ops.device_assert import DeviceAssert
from tilec.ops.functions.signatures import build_dp4a
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument, Call, as_expr, bind_arguments, warn_ignored_hints
from tilec.ops.language.values import EXPR_TYPES, Access, Value
from tilec.ops.reductions.reduce import REDUCE, get_kept_extents
from tilec.ops.reductions.reducer import build_contribution, read_update
from tilec.ops.synchronisation.barriers import TAKING_BARRIERS
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

_LOCAL_ARRAY_OPERATIONS = ("T.fill", "T.clear", "T.copy")
"""The tile operations that a thread can do on its local array."""
_FILL_OPERATIONS = ("T.fill", "T.clear")
"""The tile operations that accept a single element."""
_TENSOR_MEMORY_OPERATIONS = (
    "T.tcgen05_gemm", "T.copy", "T.tcgen05_gemm_blockscaled", "T.tcgen05_cp_warpx4", "T.gemm", "T.clear", "T.fill",
)  # fmt: skip
"""The operations that accept tiles in tensor memory."""


def find_spelling(path: str | None) -> registry.Spelling | None:
    """Return the operation with this dotted name, or None."""
    return registry.find_spelling(path.removeprefix("T.")) if path is not None and path.startswith("T.") else None


def elaborate_operation(context: Context, spelling: registry.Spelling, path: str, node: ast.Call) -> None:
    """Emit the statements of an operation of `ops.registry`."""
    arguments = evaluate.evaluate_arguments(context, node)
    if context.is_parallel and spelling.element is not None:
        stores, _ = _check_element_stores(
            context, spelling.element(bind_arguments(spelling.signature, *arguments, node.span)), node.span
        )
        context.out += stores
        return
    if path == "T.copy" and _try_copy_element(context, arguments, node.span):
        return
    if spelling.element is not None and _has_element_operands(arguments):
        stores, given = _check_element_stores(
            context, spelling.element(bind_arguments(spelling.signature, *arguments, node.span)), node.span
        )
        if _is_per_thread(context, stores):
            _keep_previous_values(context, stores, given, node.span)
            return
    if context.is_parallel:
        raise_error(
            "tile-op-in-parallel",
            f"{path} works on whole tiles and is not allowed inside {context.nest_name}",
            node.span,
            help="move it out of the loop, or access the elements one by one",
        )
    if path in _FILL_OPERATIONS and _try_set_element(
        context, bind_arguments(spelling.signature, *arguments, node.span), arguments, node
    ):
        return
    pipelines.add_stage_barrier(path, arguments)
    call = bind_arguments(spelling.signature, *arguments, node.span)
    _check_tile_scopes(spelling.signature.name, arguments, node.span)
    if steps := tuple(list_reduction_steps(context, path, call)):
        for step in steps:
            found = find_spelling(step.name)
            assert found is not None
            _elaborate_tile_operation(context, found, step.name, (list(step.positional), dict(step.keywords)), node)
        return
    if (holds := _find_clear_condition(call)) is not None:
        _emit_conditional_clear(context, call, holds, node)
        arguments = [], {**call.arguments, "clear_accum": Argument(False, node.span)}
    _elaborate_tile_operation(context, spelling, path, arguments, node)


def _find_clear_condition(call: Call) -> tile.Expr | None:
    """Return the run-time condition under which a product clears C, or None. A product in tensor memory clears C by
    itself."""
    given = call.arguments.get("clear_accum")
    if given is None or not isinstance(arithmetic.as_condition(given), EXPR_TYPES):
        return None
    return None if call.read_region("C").buffer.scope == "tmem" else as_expr(given, BOOL)


def _emit_conditional_clear(context: Context, call: Call, holds: tile.Expr, node: ast.Call) -> None:
    """Emit T.clear of C under a condition, before the product."""
    per_thread.require_uniform(context, holds, call["clear_accum"].span, "`clear_accum`")
    clear = find_spelling("T.clear")
    assert clear is not None
    with context.guarded(), context.region("the branch", is_loop=False) as body:
        _elaborate_tile_operation(context, clear, "T.clear", ([call["C"]], {}), node)
    context.out.append(tile.If(holds, tuple(body), (), node.span))


def _elaborate_tile_operation(
    context: Context,
    spelling: registry.Spelling,
    path: str,
    arguments: tuple[list[Argument], dict[str, Argument]],
    node: ast.Call,
) -> None:
    """Check and emit one operation on whole tiles."""
    call = bind_arguments(spelling.signature, *arguments, node.span)
    op = spelling.check(call)
    for region in op.regions if not context.guards else ():
        if region.buffer.scope != "global":
            check_box(context, region)
    for found in warn_ignored_hints(call, spelling.signature):
        context.warn(found)
    if any(region.buffer.scope == "local" for region in op.regions):
        _elaborate_local_operation(context, op)
        return
    if isinstance(op, DeviceAssert):
        context.out.append(per_thread.mask_assertion(context, op))
        return
    op = roles.resolve_block_barrier(context, pipelines.apply_stage_rules(context, op, arguments))
    own = roles.assign_executing_threads(context, op)
    if own is None:
        per_thread.require_all_threads(context, node.span, path)
    for expr in list_expressions(op):
        per_thread.require_uniform(context, expr, node.span, f"the indices and arguments of {path}")
        check_loads(context, expr, node.span)
    context.out.append(own or op)


def _assign_element(context: Context, target: Access, value: Argument, place: Span, span: Span) -> None:
    """Assign a value to one element."""
    if fragment_elements.is_distributed_element(context, target):
        fragment_elements.store_element(context, target, lambda _: value, span)
        return
    check_access(context, target, place, "written")
    emit_store(context, target, value, span)


def _try_set_element(
    context: Context, call: Call, arguments: tuple[list[Argument], dict[str, Argument]], node: ast.Call
) -> bool:
    """Set the element or variable that T.fill or T.clear is given, and return whether it is given one."""
    target, value = call["buffer"].value, call.arguments.get("value", Argument(0, node.span))
    if isinstance(target, Access) and not target.has_extent and not target.is_vector:
        _assign_element(context, target, value, call["buffer"].span, node.span)
        return True
    if isinstance(target, tile.Load) and target.buffer.name in context.variable_names:
        set_variable(context, target.buffer, value, node.span)
        return True
    return False


def evaluate_element_operation(context: Context, path: str, node: ast.Call) -> Value:
    """Evaluate an operation on single elements that returns a value. Any other name is refused."""
    spelling = find_spelling(path)
    if spelling is None or spelling.element is None:
        return refuse_unknown_call(context, path, node)
    call = bind_arguments(spelling.signature, *evaluate.evaluate_arguments(context, node), node.span)
    stores, given = _check_element_stores(context, spelling.element(call), node.span)
    if context.is_parallel:
        context.out += stores
        if given is not None:
            return given
        if "return_prev" in (p.name for p in spelling.signature.parameters):
            raise_error("not-a-value", f"{path} gives no value", node.span, help="pass return_prev=True")
    elif given is not None and _is_per_thread(context, stores):
        return _keep_previous_values(context, stores, given, node.span)
    return refuse_unknown_call(context, path, node)


def _is_per_thread(context: Context, stores: tuple[tile.Store, ...]) -> bool:
    """Return whether each thread runs these stores for itself, or there is only one thread."""
    is_alone = context.is_launched and math.prod(context.thread_extents) == 1
    return is_alone or any(per_thread.is_per_thread_store(context, store) for store in stores)


def elaborate_dp4a(context: Context, call: Call) -> None:
    """Emit the store of T.dp4a."""
    store = build_dp4a(call)
    check_access(context, Access(store.buffer, store.indices), call.span, "written")
    check_loads(context, store.value, call.span)
    emit_element_statements(context, (store,), per_thread.is_per_thread_store(context, store), call.span)


def elaborate_reducer_update(context: Context, call: Call) -> None:
    """Emit T.reducer_update as an atomic store to the partial results."""
    access, value = read_update(call)
    reducer = context.reducers.get(access.buffer.name)
    if reducer is None:
        call.refuse("target", "an element of a T.alloc_reducer buffer")
    if not context.is_parallel:
        raise_error(
            "fragment-index",
            f"{call.name} is outside of T.Parallel",
            call.span,
            "T.Parallel distributes the updates over the threads",
            help="write `for i in T.Parallel(n):` around it",
        )
    check_access(context, access, call.span, "written")
    store = build_contribution(reducer, access, value, call)
    check_loads(context, store.value, call.span)
    context.out.append(store)


def _try_copy_element(context: Context, arguments: tuple[list[Argument], dict[str, Argument]], span: Span) -> bool:
    """Emit `T.copy(A[i], B[j])` as a store if both sides are single elements, and return whether they are."""
    values = [a.value for a in arguments[0]]
    if arguments[1] or len(values) != 2:
        return False
    source, destination = values
    if not isinstance(source, Access) or not isinstance(destination, Access):
        return False
    if source.has_extent or destination.has_extent:
        return False
    value = evaluate.read_element(context, arguments[0][0])
    _assign_element(context, destination, Argument(as_expr(value), span), arguments[0][1].span, span)
    return True


def _check_element_stores(
    context: Context, made: tuple[tile.Store, ...], span: Span
) -> tuple[tuple[tile.Store, ...], tile.Var | None]:
    """Check the stores of an operation on single elements. Return them, and the variable for the previous value."""
    given: tile.Var | None = None
    stores: list[tile.Store] = []
    for store in made:
        if store.previous is not None:
            given = tile.Var(context.unique.take("previous"), store.previous.dtype)
            store = replace(store, previous=given)
        check_access(context, Access(store.buffer, store.indices), span, "written")
        for expr in (*store.indices, store.value):
            check_loads(context, expr, span)
        stores.append(store)
    return tuple(stores), given


def _has_element_operands(arguments: tuple[list[Argument], dict[str, Argument]]) -> bool:
    """Return whether all operands of an operation are single elements."""
    parts = [a.value for a in (*arguments[0], *arguments[1].values())]
    if not parts or not isinstance(parts[0], Access):
        return False
    return not any(isinstance(v, tile.Buffer) or (isinstance(v, Access) and v.has_extent) for v in parts)


def _keep_previous_values(
    context: Context, stores: tuple[tile.Store, ...], given: tile.Var | None, span: Span
) -> Value:
    """Emit the stores, and keep the previous value of each thread in a local array for later statements."""
    if given is None:
        per_thread.emit_for_each_thread(context, stores, span)
        return None
    held = per_thread.allocate_local_array(context, "previous", (1,), given.dtype, span)
    per_thread.emit_for_each_thread(context, (*stores, tile.Store(held, (tile.int32_const(0),), given, span)), span)
    return tile.Load(held, (tile.int32_const(0),))


def _check_tile_scopes(name: str, arguments: tuple[list[Argument], dict[str, Argument]], span: Span) -> None:
    """Refuse tiles in scopes that the operation does not accept: barriers, tensor memory and local arrays. Barrier
    operations check their operands themselves."""
    for argument in (*arguments[0], *arguments[1].values()):
        value = argument.value.buffer if isinstance(argument.value, Access) else argument.value
        if isinstance(value, tile.Buffer) and value.scope == "barrier" and name not in TAKING_BARRIERS:
            raise_error(
                "wrong-scope",
                f"{name} of a barrier",
                argument.span,
                f"{value.name} holds no values",
                secondary=(Label(value.span, "from here"),),
                help="write T.barrier_arrive or T.barrier_wait",
            )
        if isinstance(value, tile.Buffer) and value.scope == "tmem" and name not in _TENSOR_MEMORY_OPERATIONS:
            raise_error(
                "wrong-scope",
                f"{name} of a tile in tensor memory",
                argument.span,
                f"{value.name} is written by T.gemm or T.tcgen05_gemm, and read by T.copy to a fragment",
                secondary=(Label(value.span, "from here"),),
                help="T.copy it to a fragment first",
            )
        if isinstance(value, tile.Buffer) and value.scope == "local" and name not in _LOCAL_ARRAY_OPERATIONS:
            raise_error(
                "thread-dependent",
                f"{name} works on tiles of the whole block",
                argument.span,
                f"each thread has an array {value.name} of its own",
                secondary=(Label(value.span, "from here"),),
                help="allocate it with T.alloc_fragment",
            )


def _elaborate_local_operation(context: Context, op: tile.TileOp) -> None:
    """Emit T.fill or T.copy of local arrays, element by element."""
    *sources, destination = op.regions
    variables = tuple(tile.Var(context.unique.take("element")) for _ in destination.shape)
    loads = tuple(tile.Load(source.buffer, _locate_element(source, variables)) for source in sources)
    store = op.element(_locate_element(destination, variables), loads)
    per_thread.emit_for_each_thread(context, (store,), op.span, variables, destination.shape)


def _locate_element(region: tile.Region, variables: tuple[tile.Var, ...]) -> tuple[tile.Expr, ...]:
    """Return the indices of an element of a box. `variables` are its offsets along the dimensions of extent > 1."""
    if all(extent == 1 for extent in region.extent):
        return region.start
    walked = iter(variables)
    moving = (
        add_exprs(start, next(walked)) if extent != 1 else start
        for start, extent in zip(region.start, region.extent, strict=True)
    )
    return tuple(moving)


_REDUCTION_NAMES = {spelling.signature.name for spelling in REDUCE.spellings}


@dataclass(frozen=True, slots=True)
class ReductionStep:
    """An operation by its name, with its arguments."""

    name: str
    positional: tuple[Argument, ...]
    keywords: Mapping[str, Argument]


def list_reduction_steps(context: Context, path: str, call: Call) -> Iterator[ReductionStep]:
    """Yield the steps of a reduction between two types, and none for any other operation."""
    if path not in _REDUCTION_NAMES:
        return
    source, result = call.buffer("buffer"), call.buffer("out")
    if source is None or result is None:
        return
    is_of_numbers = "bool" not in (source.dtype.kind, result.dtype.kind)
    if source.dtype == result.dtype or "global" in (source.scope, result.scope) or not is_of_numbers:
        return
    others = {key: call[key] for key in ("dim", "clear") if key in call.arguments}
    if result.dtype.bits >= source.dtype.bits:
        given = _allocate_fragment(context, call, "buffer", result.dtype)
        yield ReductionStep("T.copy", (call["buffer"], given), {})
        yield ReductionStep(path, (given, call["out"]), others)
        return
    made = _allocate_fragment(context, call, "out", source.dtype)
    if "clear" in call.arguments and not call.read_boolean("clear"):
        yield ReductionStep("T.copy", (call["out"], made), {})
    yield ReductionStep(path, (call["buffer"], made), others)
    yield ReductionStep("T.copy", (made, call["out"]), {})


def _allocate_fragment(context: Context, call: Call, name: str, dtype: DType) -> Argument:
    """Allocate a fragment with the shape of an argument and another type."""
    region = call.read_region(name)
    span: Span = call[name].span
    made = Buffer(
        context.unique.take(f"{region.buffer.name}_{dtype}"), get_kept_extents(region), dtype, "fragment", span
    )
    context.buffers.append(made)
    return Argument(made, span)
