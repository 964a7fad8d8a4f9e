"""The methods of T.TensorCoreIntrinEmitter, as the operations on tiles that they are.

ldmatrix_a and ldmatrix_b copy a slice along K of a shared tile to registers, mma multiplies the slices, and stmatrix
copies the sums out. Each thread has arrays for its elements. In their place there are fragments of the whole block: an
array is known to be one of these once a method has been called with it, and the kernel is then elaborated anew. Nothing
but the methods, T.clear and T.fill may use such an array, since the order of its elements is the compiler's choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilec.analysis.usage import find_reads, find_writes
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.expressions.emitters import METHOD_SIGNATURES
from tilec.frontend.sema.operations import operations
from tilec.frontend.sema.operations.operand_copies import list_product_steps
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.expr import cast_expr
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import INT32, DType
from tilec.ops.language.signature import Argument, Call, as_expr, bind_arguments, warn_ignored_hints
from tilec.ops.language.values import Access, IndexRange, Method, MmaEmitter, Value, WarpPolicy, show_shape
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import Label, raise_error


def elaborate_emitter_call(context: Context, method: Method, node: ast.Call) -> None:
    """Emit the operations of a method's call such as `emitter.mma(…)`; refuse T.Parallel and other thread counts."""
    emitter = method.owner
    assert isinstance(emitter, MmaEmitter)
    if context.is_parallel:
        title = f".{method.name} works on whole tiles and is not allowed inside {context.nest_name}"
        raise_error("tile-op-in-parallel", title, node.span, help="move it out of the loop")
    signature = METHOD_SIGNATURES[method.name]
    call = evaluate.bind_call(context, signature, node)
    for found in warn_ignored_hints(call, signature):
        context.warn(found)
    if context.threads != emitter.thread_count:
        rows, columns = emitter.block_row_warps, emitter.block_col_warps
        title = f".{method.name} is run by {context.threads} threads"
        note = f"the emitter divides the tile over {rows} x {columns} warps, {emitter.thread_count} threads"
        way_out = f"pass threads={emitter.thread_count} to T.Kernel, or other numbers of warps to the emitter"
        raise_error("bad-threads", title, node.span, note, help=way_out)
    _METHODS[method.name](context, emitter, call, node)


# ---- the arrays ------------------------------------------------------------------------------------------------------


def _find_fragment(
    context: Context, call: Call, name: str, shape: tuple[int, int], dtype: DType, threads: int
) -> Argument | None:
    """Check and record the T.alloc_local array that an argument is, and return its fragment, or None if it is new. The
    kernel is elaborated anew once an array is recorded. Errors: another type, too few elements for each of `threads`
    threads, another shape than elsewhere.
    """
    array, span = call[name].value, call[name].span
    if not isinstance(array, tile.Buffer) or array.scope != "local":
        call.refuse(name, "an array of T.alloc_local")
    place = (Label(array.span, "from here"),)
    if array.dtype != dtype:
        title = f"{call.name}: {array.name} has another type than the emitter's {name[0]}"
        note = f"{array.name} is {array.dtype}, the emitter has {dtype}"
        raise_error("dtype-mismatch", title, span, note, secondary=place, help=f"allocate it as {dtype}")
    count = math.prod(shape) // threads
    if len(array.extents) != 1 or math.prod(array.shape) < count:
        title = f"{call.name}: {array.name} does not hold the elements of a thread"
        note = f"it has shape {show_shape(array.extents)}, a thread has {count} elements of {name[0]}"
        raise_error("shape-mismatch", title, span, note, secondary=place, help=f"write T.alloc_local(({count},), …)")
    known = context.findings.emitter_arrays.setdefault(array.span, shape)
    if known != shape:
        title = f"{call.name}: {array.name} holds {show_shape(known)} of the block's elements elsewhere"
        note = f"here {show_shape(shape)}"
        raise_error("shape-mismatch", title, span, note, secondary=place, help="allocate an array for each of them")
    fragment = context.emitter_tiles.get(array.name)
    return None if fragment is None else Argument(fragment, span)


def refuse_other_uses(context: Context, statements: tuple[tile.Stmt, ...]) -> None:
    """Record an error for each statement that uses a local array which an emitter's methods turned into a fragment."""
    for stmt in tile.walk_statements(statements) if context.emitter_tiles else ():
        inner = tuple(s for body in tile.nested_bodies(stmt) for s in body)
        used, used_inside = _list_emitter_arrays(context, (stmt,)), _list_emitter_arrays(context, inner)
        for array in used:
            if array not in used_inside:
                title = f"{array.name} is used element by element"
                note = "methods of T.TensorCoreIntrinEmitter decide which elements of the tile a thread has"
                way_out = "use a tile of T.alloc_fragment and T.gemm, and index its elements in T.Parallel"
                place = Label(array.span, "from here")
                with context.mistakes.caught():
                    raise_error("thread-dependent", title, stmt.span, note, secondary=(place,), help=way_out)


def _list_emitter_arrays(context: Context, statements: tuple[tile.Stmt, ...]) -> dict[tile.Buffer, None]:
    """Return the T.alloc_local arrays replaced by fragments that statements still use, each once, in order."""
    used = (buffer for stmt in statements for buffer in (*find_reads(stmt), *find_writes(stmt)))
    return dict.fromkeys(b for b in used if b.scope == "local" and b.name in context.emitter_tiles)


# ---- the methods -----------------------------------------------------------------------------------------------------


def _load_a(context: Context, emitter: MmaEmitter, call: Call, node: ast.Call) -> None:
    """Emit the copy of `ldmatrix_a`: slice `ki` of A to its fragment; nothing if there is no fragment yet."""
    fragment = _find_a(context, emitter, call)
    if fragment is not None:
        source = _read_slice(context, emitter, call, "A", fragment, depth_axis=0 if emitter.a_transposed else 1)
        _emit_operation(context, "T.copy", [source, fragment], {}, node)


def _load_b(context: Context, emitter: MmaEmitter, call: Call, node: ast.Call) -> None:
    """Emit the copy of `ldmatrix_b`: slice `ki` of B to its fragment; nothing if there is no fragment yet."""
    fragment = _find_b(context, emitter, call)
    if fragment is not None:
        source = _read_slice(context, emitter, call, "B", fragment, depth_axis=1 if emitter.b_transposed else 0)
        _emit_operation(context, "T.copy", [source, fragment], {}, node)


def _multiply_slices(context: Context, emitter: MmaEmitter, call: Call, node: ast.Call) -> None:
    """Emit the T.gemm of `mma`, which adds two slices' product to C; nothing if a fragment is not there yet. `k_inner`
    is ignored: only fragments of TileLang have more than one slice.
    """
    a, b, c = (find(context, emitter, call) for find in (_find_a, _find_b, _find_c))
    if a is None or b is None or c is None:
        return
    policy = "full_row" if emitter.block_col_warps == 1 else "full_col" if emitter.block_row_warps == 1 else "square"
    choices: dict[str, Value] = {
        "transpose_A": emitter.a_transposed, "transpose_B": emitter.b_transposed, "policy": WarpPolicy(policy),
    }  # fmt: skip
    place = node.function.span  # not that of the call, which would mean that they are not given
    _emit_operation(context, "T.gemm", [a, b, c], {k: Argument(v, place) for k, v in choices.items()}, node)


def _store_sums(context: Context, emitter: MmaEmitter, call: Call, node: ast.Call) -> None:
    """Emit the copy of `stmatrix`: C to a matrix's tile (`pid_m`, `pid_n`), or to micro tiles; refuse other targets."""
    fragment, target = _find_c(context, emitter, call), call["C_buf"].value
    if not isinstance(target, tile.Buffer) or target.scope not in ("shared", "global"):
        call.refuse("C_buf", "a shared tile or a tensor")
    numbers = (call["pid_m"], call["pid_n"])
    if len({number.value is None for number in numbers}) == 2:
        raise_error("missing-argument", f"{call.name} needs both pid_m and pid_n, or none", node.span)
    is_placed = numbers[0].value is not None
    if len(target.extents) not in ((2,) if is_placed else (2, 4)):
        title = f"{call.name}: C_buf must be a matrix" + ("" if is_placed else ", or a tile of micro tiles")
        note = f"{target.name} has shape {show_shape(target.extents)}"
        raise_error("wrong-rank", title, call["C_buf"].span, note, secondary=(Label(target.span, "from here"),))
    if fragment is None:
        return
    if len(target.extents) == 4:
        _store_micro_tiles(context, emitter, call, fragment, target)
        return
    starts = (
        _scale_index(context, number, extent) if is_placed else tile.int32_const(0)
        for number, extent in zip(numbers, emitter.block_shape, strict=True)
    )
    box = Access(target, tuple(map(IndexRange, starts, emitter.block_shape)))
    _emit_operation(context, "T.copy", [fragment, Argument(box, call["C_buf"].span)], {}, node)


def _store_micro_tiles(
    context: Context, emitter: MmaEmitter, call: Call, fragment: Argument, target: tile.Buffer
) -> None:
    """Emit a T.Parallel nest that copies C to micro tiles of x by y, as [M / x, N / y, x, y]; refuse fewer of them."""
    micro = emitter.micro_shape[:2]
    wanted = (*(extent // size for extent, size in zip(emitter.block_shape, micro, strict=True)), *micro)
    if any(isinstance(extent, int) and extent < least for extent, least in zip(target.extents, wanted, strict=True)):
        title = f"{call.name}: {target.name} does not have the shape of the micro tiles"
        note, place = f"it has shape {show_shape(target.extents)}", (Label(target.span, "from here"),)
        way_out = f"allocate it as {show_shape(wanted)}"
        raise_error("shape-mismatch", title, call["C_buf"].span, note, secondary=place, help=way_out)
    per_thread.require_known_threads(context, call.span, call.name)
    source = fragment.value
    assert isinstance(source, tile.Buffer)
    variables = tuple(tile.Var(context.unique.take("element")) for _ in micro)
    parts = tuple(zip(variables, map(tile.int32_const, micro), strict=True))
    outer = tuple(tile.Binary("floordiv", variable, size, INT32) for variable, size in parts)
    inner = tuple(tile.Binary("floormod", variable, size, INT32) for variable, size in parts)
    value = cast_expr(tile.Load(source, variables), target.dtype)
    store = tile.Store(target, (*outer, *inner), value, call.span)
    context.out.append(tile.Parallel(variables, emitter.block_shape, (store,), call.span))


_METHODS: dict[str, Callable[[Context, MmaEmitter, Call, ast.Call], None]] = {
    "ldmatrix_a": _load_a,
    "ldmatrix_b": _load_b,
    "mma": _multiply_slices,
    "stmatrix": _store_sums,
}


# ---- operands --------------------------------------------------------------------------------------------------------


def _find_a(context: Context, emitter: MmaEmitter, call: Call) -> Argument | None:
    """Return the fragment of A's slice that stands for the argument `A_local_buf`, or None if there is none yet."""
    rows, depth = emitter.block_shape[0], emitter.micro_shape[2]
    shape = (depth, rows) if emitter.a_transposed else (rows, depth)
    sharers = WARP_THREADS * emitter.block_row_warps
    return _find_fragment(context, call, "A_local_buf", shape, emitter.a_dtype, sharers)


def _find_b(context: Context, emitter: MmaEmitter, call: Call) -> Argument | None:
    """Return the fragment of B's slice that stands for the argument `B_local_buf`, or None if there is none yet."""
    columns, depth = emitter.block_shape[1], emitter.micro_shape[2]
    shape = (columns, depth) if emitter.b_transposed else (depth, columns)
    sharers = WARP_THREADS * emitter.block_col_warps
    return _find_fragment(context, call, "B_local_buf", shape, emitter.b_dtype, sharers)


def _find_c(context: Context, emitter: MmaEmitter, call: Call) -> Argument | None:
    """Return the fragment of the block's sums that stands for `C_local_buf`, or None if there is none yet."""
    return _find_fragment(context, call, "C_local_buf", emitter.block_shape, emitter.accum_dtype, emitter.thread_count)


def _read_slice(
    context: Context, emitter: MmaEmitter, call: Call, operand: str, fragment: Argument, depth_axis: int
) -> Argument:
    """Return slice `ki` along K of the shared tile of A or B, as an argument; refuse other buffers and smaller tiles.
    It has the fragment's shape, and lies in part `rk` of the tile, each of `chunk` elements along K.
    """
    name, wanted = f"{operand}_shared_buf", fragment.value
    assert isinstance(wanted, tile.Buffer)
    buffer = call.buffer(name)
    if buffer is None or buffer.scope != "shared" or len(buffer.extents) < 2:
        call.refuse(name, "a shared tile, or a part of one, of at least two dimensions")
    place = (Label(buffer.span, "from here"),)
    if buffer.dtype != wanted.dtype:
        title = f"{call.name}: {buffer.name} has another type than the emitter's {operand}"
        note = f"{buffer.name} is {buffer.dtype}, the emitter has {wanted.dtype}"
        way_out = f"allocate it as {wanted.dtype}"
        raise_error("dtype-mismatch", title, call[name].span, note, secondary=place, help=way_out)
    region = call.read_region(name, like=wanted.shape)
    if region.extent[-2:][1 - depth_axis] < wanted.shape[1 - depth_axis]:
        title = f"{call.name}: {buffer.name} is smaller than the block's part of {operand}"
        note = f"the emitter's warps take {wanted.shape[1 - depth_axis]} {'columns' if depth_axis == 0 else 'rows'}"
        raise_error("shape-mismatch", title, call[name].span, note, secondary=place)
    offset = add_exprs(
        _scale_index(context, call["rk"], emitter.chunk), _scale_index(context, call["ki"], emitter.micro_shape[2])
    )
    *outer, row, column = region.start
    corner = [row, column]
    corner[depth_axis] = fold_expr(add_exprs(corner[depth_axis], offset))
    return Argument(Access(buffer, (*outer, *map(IndexRange, corner, wanted.shape))), call[name].span)


def _scale_index(context: Context, argument: Argument, factor: int) -> tile.Expr:
    """Return an integer argument times `factor` as an index expression; refuse an argument of another type."""
    value = as_expr(evaluate.read_element(context, argument))
    if value.dtype.kind not in ("int", "uint"):
        raise_error("wrong-dtype", "an index must be an integer", argument.span, f"this is {value.dtype}")
    return fold_expr(scale_expr(evaluate.as_index(value, context.ranges), factor))


def _emit_operation(
    context: Context, path: str, operands: list[Argument], choices: dict[str, Argument], node: ast.Call
) -> None:
    """Emit the tile operation named `path`, T.copy or T.gemm, after the operand copies that a product needs."""
    call = bind_arguments(operations.get_spelling(path).signature, operands, choices, node.span)
    for name, positional, keywords in tuple(list_product_steps(context, path, call)) or ((path, operands, choices),):
        spelling = operations.get_spelling(name)
        operations.elaborate_tile_operation(context, spelling, name, (positional, keywords), node)
