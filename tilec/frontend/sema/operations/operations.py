"""Elaboration of operations on tiles and elements."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from tilec.analysis.usage import list_expressions
from tilec.frontend.sema.context import Context, Mask
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.expressions.bounds import check_access, check_box, check_loads
from tilec.frontend.sema.expressions.calls import refuse_unknown_call
from tilec.frontend.sema.operations import tensor_updates
from tilec.frontend.sema.operations.operand_copies import list_product_steps, list_reduction_steps
from tilec.frontend.sema.roles import explicit_roles as roles, masked_waits, pipelines
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.sema.statements.assignments import store_element
from tilec.frontend.sema.statements.stores import emit_element_statements, set_variable
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.ops import registry
from tilec.ops.device_assert import DEVICE_ASSERT, DeviceAssert
from tilec.ops.functions.signatures import build_dp4a
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument, Call, as_expr, bind_arguments, warn_ignored_hints
from tilec.ops.language.values import EXPR_TYPES, Access, Lanes, Value
from tilec.ops.lowering import index_element
from tilec.ops.reductions.reducer import build_contribution, read_update
from tilec.ops.synchronisation.barriers import TAKING_BARRIERS
from tilec.support.diagnostics import Label, make_warning, raise_error
from tilec.support.source import Span

_LOCAL_ARRAY_OPERATIONS = ("T.fill", "T.clear", "T.copy")
"""The tile operations that a thread can do on its local array."""
DEVICE_ASSERT_NAME = DEVICE_ASSERT.spellings[0].signature.name
_FILL_OPERATIONS = ("T.fill", "T.clear")
"""The tile operations that accept a single element."""
_TENSOR_MEMORY_OPERATIONS = (
    "T.tcgen05_gemm", "T.copy", "T.tcgen05_gemm_blockscaled", "T.tcgen05_cp_warpx4", "T.gemm", "T.clear", "T.fill",
)  # fmt: skip
"""The operations that accept tiles in tensor memory."""


def find_spelling(path: str | None) -> registry.Spelling | None:
    """Return the registered operation with this dotted `T.` name, or None."""
    return registry.find_spelling(path.removeprefix("T.")) if path is not None and path.startswith("T.") else None


def get_spelling(path: str) -> registry.Spelling:
    """Return the registered operation with this dotted `T.` name, which must exist."""
    spelling = find_spelling(path)
    assert spelling is not None
    return spelling


def elaborate_operation(context: Context, spelling: registry.Spelling, path: str, node: ast.Call) -> None:
    """Emit a tile operation with the copies and clears it needs, or an element operation's stores; check its operands.
    Errors: a tile operation inside T.Parallel, a wrong scope.
    """
    arguments = evaluate.evaluate_arguments(context, node)
    bind = partial(bind_arguments, spelling.signature, *arguments, node.span)
    if context.is_parallel and spelling.element is not None:
        context.out += _check_element_stores(context, spelling.element(bind()), node.span)[0]
        return
    if path == "T.copy" and _try_copy_element(context, arguments, node.span):
        return
    if spelling.element is not None and (spelling.check is None or _has_element_operands(arguments)):
        _run_in_each_thread(context, spelling.element(bind()), path, node.span)
        return
    if path in _FILL_OPERATIONS:
        arguments = _replace_emitter_arrays(context, arguments)
    if context.is_parallel and path == DEVICE_ASSERT_NAME:
        elaborate_tile_operation(context, spelling, path, arguments, node)
        return
    if context.is_parallel:
        title = f"{path} works on whole tiles and is not allowed inside {context.nest_name}"
        way_out = "move it out of the loop, or access the elements one by one"
        raise_error("tile-op-in-parallel", title, node.span, help=way_out)
    if path in _FILL_OPERATIONS and _try_set_element(context, bind(), node.span):
        return
    pipelines.add_stage_barrier(path, arguments)
    call = bind()
    _check_tile_scopes(spelling.signature.name, arguments)
    steps = (*list_reduction_steps(context, path, call), *list_product_steps(context, path, call))
    if steps:
        for name, positional, keywords in steps:
            elaborate_tile_operation(context, get_spelling(name), name, (positional, keywords), node)
        return
    if tensor_updates.try_update_by_values(context, spelling, call, path):
        return
    if (holds := _find_clear_condition(call)) is not None:
        _emit_conditional_clear(context, call, holds, node)
        arguments = [], {**call.arguments, "clear_accum": Argument(False, node.span)}
    elaborate_tile_operation(context, spelling, path, arguments, node)
    if path == "T.copy_cluster" and call["remote_barrier"].value is not None:
        _emit_remote_arrival(context, call, node)


def _replace_emitter_arrays(
    context: Context, arguments: tuple[list[Argument], dict[str, Argument]]
) -> tuple[list[Argument], dict[str, Argument]]:
    """Return a call's arguments with fragments in place of the arrays that T.TensorCoreIntrinEmitter's methods use."""

    def replace_array(given: Argument) -> Argument:
        """Return an argument with its emitter array replaced by the fragment, or any other argument as it is."""
        array = given.value
        if not isinstance(array, tile.Buffer) or array.scope != "local" or array.name not in context.emitter_tiles:
            return given
        return replace(given, value=context.emitter_tiles[array.name])

    positional, keywords = arguments
    return [replace_array(a) for a in positional], {name: replace_array(a) for name, a in keywords.items()}


def _emit_remote_arrival(context: Context, call: Call, node: ast.Call) -> None:
    """Emit a barrier of all threads, then one thread's arrival at T.copy_cluster's barrier in the other block."""
    elaborate_tile_operation(context, get_spelling("T.sync_threads"), "T.sync_threads", ([], {}), node)
    leader = tile.int32_const(roles.find_leader(context, node.span))
    path, operands = "T.mbarrier_arrive", [call["remote_barrier"], call["dst_block"]]
    is_leader = tile.Binary("eq", tile.THREAD, leader, BOOL)
    with per_thread.mask_threads(context, Mask(is_leader, is_leader)):
        elaborate_tile_operation(context, get_spelling(path), path, (operands, {}), node)


def _find_clear_condition(call: Call) -> tile.Expr | None:
    """Return a product's `clear_accum` if known only at run time, else None; None too for tensor memory, which takes
    it.
    """
    given = call.arguments.get("clear_accum")
    if given is None or not isinstance(arithmetic.as_condition(given), EXPR_TYPES):
        return None
    return None if call.read_region("C").buffer.scope == "tmem" else as_expr(given, BOOL)


def _emit_conditional_clear(context: Context, call: Call, holds: tile.Expr, node: ast.Call) -> None:
    """Emit an `if` that clears a product's C under its `clear_accum` condition, which must be uniform."""
    per_thread.require_uniform(context, holds, call["clear_accum"].span, "`clear_accum`")
    with context.guarded(), context.region("the branch", is_loop=False) as body:
        elaborate_tile_operation(context, get_spelling("T.clear"), "T.clear", ([call["C"]], {}), node)
    context.out.append(tile.If(holds, tuple(body), (), node.span))


def elaborate_tile_operation(
    context: Context,
    spelling: registry.Spelling,
    path: str,
    arguments: tuple[list[Argument], dict[str, Argument]],
    node: ast.Call,
) -> None:
    """Check one operation on whole tiles and emit it, with its executing threads, stage rules and warnings applied.
    Fills of tensors and operations on local arrays become nests.
    """
    call = bind_arguments(spelling.signature, *arguments, node.span)
    assert spelling.check is not None, f"{path} works on elements only"
    op = spelling.check(call)
    for region in op.regions if not context.guards else ():
        if region.buffer.scope != "global":
            check_box(context, region)
    for found in warn_ignored_hints(call, spelling.signature):
        context.warn(found)
    if tensor_updates.try_fill_tensor(context, op, path):
        return
    if any(region.buffer.scope == "local" for region in op.regions):
        _elaborate_local_operation(context, op)
        return
    if isinstance(op, DeviceAssert):
        per_thread.emit_assertion(context, op)
        return
    op = roles.resolve_block_barrier(context, pipelines.apply_stage_rules(context, op, arguments))
    own = roles.assign_executing_threads(context, op)
    waiting = masked_waits.find_wait_condition(context, op)
    if own is None and waiting is None:
        per_thread.require_known_threads(context, node.span, path)
    for expr in list_expressions(op):
        per_thread.require_uniform(context, expr, node.span, f"the indices and arguments of {path}")
        check_loads(context, expr, node.span)
    masked_waits.record_partial_synchronisation(context, op)
    context.out.append((own or op) if waiting is None else tile.If(waiting, (op,), (), op.span))


def _try_set_element(context: Context, call: Call, span: Span) -> bool:
    """Emit T.fill or T.clear of an element or variable as a store; return False if it is given anything else."""
    target, value = call["buffer"].value, call.arguments.get("value", Argument(0, span))
    if isinstance(target, Access) and not target.has_extent and not target.is_vector:
        store_element(context, target, value, call["buffer"].span, span)
        return True
    if isinstance(target, tile.Load) and target.buffer.name in context.variable_names:
        set_variable(context, target.buffer, value, span)
        return True
    return False


def evaluate_element_operation(context: Context, path: str, node: ast.Call) -> Value:
    """Emit an operation on single elements, such as an atomic one, and return the value it gives; refuse other names.
    Without `return_prev=True` there is no value, which is an error.
    """
    spelling = find_spelling(path)
    if spelling is None or spelling.element is None:
        return refuse_unknown_call(context, path, node)
    call = evaluate.bind_call(context, spelling.signature, node)
    if not context.is_parallel:
        value = _run_in_each_thread(context, spelling.element(call), path, node.span)
    else:
        stores, value = _check_element_stores(context, spelling.element(call), node.span)
        context.out += stores
    if value is None and "return_prev" in (p.name for p in spelling.signature.parameters):
        raise_error("not-a-value", f"{path} gives no value", node.span, help="pass return_prev=True")
    return value


def elaborate_dp4a(context: Context, call: Call) -> None:
    """Emit the store of T.dp4a, in each thread, after checking its accesses."""
    store = build_dp4a(call)
    check_access(context, Access(store.buffer, store.indices), call.span, "written")
    check_loads(context, store.value, call.span)
    emit_element_statements(context, (store,), per_thread.is_per_thread_store(context, store), call.span)


def elaborate_reducer_update(context: Context, call: Call) -> None:
    """Emit T.reducer_update as an atomic store to the reducer's partial results; refuse it outside T.Parallel."""
    access, value = read_update(call)
    reducer = context.reducers.get(access.buffer.name)
    if reducer is None:
        call.refuse("target", "an element of a T.alloc_reducer buffer")
    if not context.is_parallel:
        title = f"{call.name} is outside of T.Parallel"
        note = "T.Parallel distributes the updates over the threads"
        raise_error("fragment-index", title, call.span, note, help="write `for i in T.Parallel(n):` around it")
    check_access(context, access, call.span, "written")
    store = build_contribution(reducer, access, value, call)
    check_loads(context, store.value, call.span)
    context.out.append(store)


def _try_copy_element(context: Context, arguments: tuple[list[Argument], dict[str, Argument]], span: Span) -> bool:
    """Emit `T.copy(A[i], B[j])` of two single elements as a store; return False for any other copy."""
    values = [a.value for a in arguments[0]]
    if arguments[1] or len(values) != 2:
        return False
    source, destination = values
    if not (isinstance(source, Access) and isinstance(destination, Access)):
        return False
    if source.has_extent or destination.has_extent:
        return False
    value = evaluate.read_element(context, arguments[0][0])
    store_element(context, destination, Argument(as_expr(value), span), arguments[0][1].span, span)
    return True


def _check_element_stores(
    context: Context, made: tuple[tile.Store, ...], span: Span
) -> tuple[tuple[tile.Store, ...], Value]:
    """Check an element operation's stores; return them, and the variable or vector of previous values asked for. The
    value is None if none is asked for.
    """
    given: list[tile.Expr] = []
    stores: list[tile.Store] = []
    for store in made:
        if store.previous is not None:
            variable = tile.Var(context.unique.take("previous"), store.previous.dtype)
            given.append(variable)
            store = replace(store, previous=variable)
        check_access(context, Access(store.buffer, store.indices), span, "written")
        for expr in (*store.indices, store.value):
            check_loads(context, expr, span)
        stores.append(store)
    return tuple(stores), given[0] if len(given) == 1 else Lanes(tuple(given)) if given else None


def _has_element_operands(arguments: tuple[list[Argument], dict[str, Argument]]) -> bool:
    """Return whether an operation's first operand is an element and none of its operands a tile or a slice."""
    parts = [a.value for a in (*arguments[0], *arguments[1].values())]
    has_tiles = any(isinstance(v, tile.Buffer) or (isinstance(v, Access) and v.has_extent) for v in parts)
    return bool(parts) and isinstance(parts[0], Access) and not has_tiles


def _run_in_each_thread(context: Context, made: tuple[tile.Store, ...], path: str, span: Span) -> Value:
    """Emit checked stores that each thread runs, and return the previous values asked for, in a local array, or None.
    It warns of an addition that every thread repeats.
    """
    stores, given = _check_element_stores(context, made, span)
    is_own = any(per_thread.is_per_thread_store(context, store) for store in stores)
    if not is_own and math.prod(context.thread_extents) > 1:
        _warn_of_repeated_addition(context, stores, path, span)
    if given is None:
        per_thread.emit_for_each_thread(context, stores, span)
        return None
    values = given.parts if isinstance(given, Lanes) else (as_expr(Argument(given, span)),)
    held = per_thread.allocate_local_array(context, "previous", (len(values),), values[0].dtype, span)
    places = tuple((tile.int32_const(lane),) for lane in range(len(values)))
    keeping = tuple(tile.Store(held, place, value, span) for place, value in zip(places, values, strict=True))
    per_thread.emit_for_each_thread(context, (*stores, *keeping), span)
    loads = tuple(tile.Load(held, place) for place in places)
    return Lanes(loads) if isinstance(given, Lanes) else loads[0]


def _warn_of_repeated_addition(context: Context, stores: tuple[tile.Store, ...], path: str, span: Span) -> None:
    """Warn if the stores contain an atomic addition, which every thread of the block would repeat."""
    if any(store.atomic == "add" for store in stores):
        title = f"{path} outside T.Parallel is run by every thread"
        note = f"{context.threads} threads add the same"
        way_out = "write `for i in T.Parallel(1):` around it to add once"
        context.warn(make_warning("repeated-atomic", title, span, note, help=way_out))


def _check_tile_scopes(name: str, arguments: tuple[list[Argument], dict[str, Argument]]) -> None:
    """Refuse operands that are barriers, in tensor memory or local arrays, where the operation does not accept them.
    Barrier operations check their operands themselves.
    """
    for argument in (*arguments[0], *arguments[1].values()):
        value = argument.value.buffer if isinstance(argument.value, Access) else argument.value
        if isinstance(value, tile.Buffer) and value.scope == "barrier" and name not in TAKING_BARRIERS:
            note = f"{value.name} holds no values"
            place = Label(value.span, "from here")
            way_out = "write T.barrier_arrive or T.barrier_wait"
            raise_error("wrong-scope", f"{name} of a barrier", argument.span, note, secondary=(place,), help=way_out)
        if isinstance(value, tile.Buffer) and value.scope == "tmem" and name not in _TENSOR_MEMORY_OPERATIONS:
            title = f"{name} of a tile in tensor memory"
            note = f"{value.name} is written by T.gemm or T.tcgen05_gemm, and read by T.copy to a fragment"
            place = Label(value.span, "from here")
            way_out = "T.copy it to a fragment first"
            raise_error("wrong-scope", title, argument.span, note, secondary=(place,), help=way_out)
        if isinstance(value, tile.Buffer) and value.scope == "local" and name not in _LOCAL_ARRAY_OPERATIONS:
            title = f"{name} works on tiles of the whole block"
            note = f"each thread has an array {value.name} of its own"
            place = Label(value.span, "from here")
            way_out = "allocate it with T.alloc_fragment"
            raise_error("thread-dependent", title, argument.span, note, secondary=(place,), help=way_out)


def _elaborate_local_operation(context: Context, op: tile.TileOp) -> None:
    """Emit T.fill or T.copy of local arrays as stores of each element, run by each thread."""
    *sources, destination = op.regions
    variables = tuple(tile.Var(context.unique.take("element")) for _ in destination.shape)
    loads = tuple(tile.Load(s.buffer, index_element(s, variables, destination.shape)) for s in sources)
    store = op.element(index_element(destination, variables, destination.shape), loads)
    per_thread.emit_for_each_thread(context, (store,), op.span, variables, destination.shape)
