"""Allocations of a kernel: tiles, arrays, variables, reducers and barriers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.roles import explicit_roles as roles, pipelines
from tilec.frontend.sema.roles.pipeline_records import PIPELINE_SIGNATURES
from tilec.frontend.sema.statements.stores import set_variable
from tilec.frontend.syntax import ast
from tilec.ir.tile import Buffer, Scope
from tilec.ir.types import DType
from tilec.ops.language.signature import Call, Parameter, Signature, as_dtype, as_element_type, as_shape, bind_arguments
from tilec.ops.language.values import Pipeline
from tilec.ops.reductions.reducer import ALLOCATE as ALLOCATE_REDUCER, Reducer, read_kind
from tilec.support.diagnostics import raise_error

_SCOPE_PARAMETERS: dict[Scope, tuple[Parameter, ...]] = {
    "shared": (Parameter("scope", "shared.dyn"),),
    "fragment": (Parameter("scope", "local.fragment"),),
    "tmem": (),
    "global": (Parameter("scope", "global"),),
    "local": (Parameter("scope", "local"),),
}
TILE_SIGNATURES: dict[str, tuple[Scope, Signature]] = {
    f"T.alloc_{scope}": (scope, Signature(f"T.alloc_{scope}", (Parameter("shape"), Parameter("dtype"), *more)))
    for scope, more in _SCOPE_PARAMETERS.items()
}
VARIABLE_SIGNATURE = Signature(
    "T.alloc_var", (Parameter("dtype"), Parameter("init", None), Parameter("scope", "local.var"))
)
FIXED_SIZE_HELP = "give it a fixed size, and loop over parts of that size, or use `for i in T.Parallel(n):` on tensors"
"""The help for a tile whose size is known only at launch."""


def _allocate_reducer(context: Context, name: str, node: ast.Call) -> Buffer:
    """Allocate and record the reducer of `name = T.alloc_reducer(…)`, and return its result buffer."""
    call = evaluate.bind_call(context, ALLOCATE_REDUCER, node)
    shape, dtype = as_shape(call["shape"], f"the shape of {name}", FIXED_SIZE_HELP), as_dtype(call["dtype"])
    kind, everywhere = read_kind(call, dtype)
    result = context.allocate_buffer(name, shape, dtype, "fragment", node.span)
    parts = replace(result, name=context.unique.take(f"{name}_parts"), scope="reducer")
    context.reducers[result.name] = Reducer(result, parts, kind, everywhere)
    return result


def allocate_variable(context: Context, name: str, node: ast.Call) -> Buffer:
    """Allocate the variable of `name = T.alloc_var(…)`, set it to `init` if given, and return it; refuse another scope.
    It is a local array if an earlier attempt found that threads set it differently.
    """
    positional, keywords = evaluate.evaluate_arguments(context, node)
    if len(positional) == 2 and isinstance(positional[1].value, str):
        keywords["scope"] = positional.pop()
    call = bind_arguments(VARIABLE_SIGNATURE, positional, keywords, node.span)
    if call["scope"].value != "local.var":
        call.refuse("scope", '"local.var"')
    scope: Scope = "local" if node.span in context.findings.per_thread_variables else "fragment"
    buffer = context.allocate_buffer(name, (1,), as_dtype(call["dtype"]), scope, node.span)
    context.variable_names.add(buffer.name)
    context.variable_masks[buffer.name] = tuple(context.masks)
    if context.is_parallel:
        context.nest_variables.add(buffer.name)
    if call["init"].value is not None:
        set_variable(context, buffer, call["init"], node.span)
    return buffer


OTHER_ALLOCATIONS: dict[str, Callable[[Context, str, ast.Call], Buffer | Pipeline]] = {
    "T.alloc_var": allocate_variable,
    ALLOCATE_REDUCER.name: _allocate_reducer,
    **dict.fromkeys(roles.BARRIER_ALLOCATIONS, roles.allocate_barriers),
    **dict.fromkeys(PIPELINE_SIGNATURES, pipelines.make_pipeline),
}
"""By dotted name: allocations other than tiles and arrays with a shape and a dtype."""


def _check_tensor_memory(name: str, extents: tuple[int, ...], dtype: DType, call: Call) -> None:
    """Refuse a tile of tensor memory whose elements are not of 8, 16 or 32 bits or that has no two dimensions."""
    if dtype.bits not in (8, 16, 32):
        title = f"tensor memory has no elements of {dtype}"
        note = f"a column has 32 bits, {name} has elements of {dtype.bits}"
        raise_error("unsupported-type", title, call["dtype"].span, note, help="use a type of 8, 16 or 32 bits")
    if len(extents) < 2:
        title = f"{name} needs two dimensions"
        way_out = "write (rows, columns), or allocate it in shared memory"
        raise_error("wrong-shape", title, call["shape"].span, "tensor memory has rows and columns", help=way_out)


def elaborate_allocation(context: Context, name: str, path: str, node: ast.Call) -> Buffer | Pipeline:
    """Allocate what `name = T.alloc_…(…)` or a pipeline call makes, record it and return it; refuse all but a variable
    in T.Parallel. Errors: a wrong `scope=`, a size known only at launch, a shape that tensor memory cannot have.
    """
    if context.is_parallel and (path != VARIABLE_SIGNATURE.name or "T.Parallel" not in context.loops):
        title = f"{path} is not allowed inside {context.nest_name}"
        raise_error("tile-op-in-parallel", title, node.span, help="allocate before the loop")
    if path in OTHER_ALLOCATIONS:
        return OTHER_ALLOCATIONS[path](context, name, node)
    scope, signature = TILE_SIGNATURES[path]
    call = evaluate.bind_call(context, signature, node)
    if scope == "shared" and call["scope"].value not in ("shared", "shared.dyn"):
        call.refuse("scope", '"shared" or "shared.dyn"')
    if scope == "fragment":
        if call["scope"].value not in ("local.fragment", "local"):
            call.refuse("scope", '"local.fragment" or "local"')
        is_private = call["scope"].value == "local" or node.span in context.findings.private_fragments
        scope = "local" if is_private else scope
    elif scope in ("local", "global") and call["scope"].value != scope:
        call.refuse("scope", f'"{scope}"')
    shape = as_shape(call["shape"], f"the shape of {name}", FIXED_SIZE_HELP)
    if scope == "tmem" and len(shape) < 2:
        title = f"{path} needs rows and columns"
        way_out = f"write ({shape[0]}, 1), or allocate it with T.alloc_shared"
        raise_error("wrong-shape", title, call["shape"].span, f"{len(shape)} dimension", help=way_out)
    dtype, lanes = as_element_type(call["dtype"])
    extents = (*shape, lanes) if lanes > 1 else shape
    if scope == "tmem":
        _check_tensor_memory(name, extents, dtype, call)
    buffer = Buffer(context.unique.take(name), extents, dtype, scope, node.span, lanes)
    if (block_shape := context.findings.emitter_arrays.get(node.span)) is not None:
        context.emitter_tiles[buffer.name] = replace(buffer, extents=block_shape, scope="fragment")
        context.buffers.append(context.emitter_tiles[buffer.name])
    else:
        context.buffers.append(buffer)
    if scope == "local":
        context.variable_masks[buffer.name] = tuple(context.masks)
    return buffer
