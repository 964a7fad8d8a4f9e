"""T.print.

The text of a line is that of TileLang, since scripts may search for it. One thread prints the elements of a tile, one
after another. A fragment is copied to a shared tile first, since no thread has all of it.
"""

from __future__ import annotations

import math

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import thread_values
from tilec.frontend.sema.expressions.bounds import check_access
from tilec.frontend.sema.loops import thread_loops
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ir.expr import cast_expr
from tilec.ir.groups import WARP_THREADS, WARPGROUP_THREADS
from tilec.ir.text import show_expr
from tilec.ir.types import BOOL, FLOAT32, INT32, UINT32, DType
from tilec.ops.copies.copy import Copy
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_expr
from tilec.ops.language.values import EXPR_TYPES, Access
from tilec.ops.synchronisation.sync import make_buffer_region
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

PRINT_SIGNATURE = Signature(
    "T.print", (Parameter("obj", None), Parameter("msg", ""), Parameter("warp_group_id", 0), Parameter("warp_id", 0))
)

_C_NAMES = {
    "bool": "bool", "int8": "signed char", "uint8": "unsigned char", "int16": "int16_t", "uint16": "uint16_t",
    "int32": "int", "uint32": "unsigned int", "int64": "int64_t", "uint64": "uint64_t", "float16": "half_t",
    "bfloat16": "bfloat16_t", "float32": "float", "float64": "double", "float8_e4m3fn": "fp8_e4_t",
    "float8_e5m2": "fp8_e5_t",
}  # fmt: skip
_PLACE_FORMAT = "BlockIdx=(%d, %d, %d), ThreadIdx=(%d, %d, %d)"


def elaborate_print(context: Context, call: Call) -> None:
    """Emit the statements of T.print: a line for a message or value, or a loop over a whole tile; refuse other
    arguments.
    """
    message, value = call["msg"].value, call["obj"].value
    if isinstance(value, str) and not message:
        message, value = value, None
    if not isinstance(message, str):
        call.refuse("msg", "a string")
    if isinstance(value, tile.Buffer):
        _print_tile(context, call, value, message)
        return
    if value is None:
        line = _make_line(context, f"msg='{_escape_format(message)}' {_PLACE_FORMAT}", (), call.span)
        _emit_for_threads(context, (line,), call.span)
        return
    if isinstance(value, Access) and not value.has_extent:
        check_access(context, value, call["obj"].span, "read")
    elif not isinstance(value, (int, float, *EXPR_TYPES)):
        call.refuse("obj", "a number, a tensor, a tile, or nothing")
    expr = as_expr(call["obj"])
    head = f"msg='{_escape_format(message or f'expr<{show_expr(expr)}>')}' {_PLACE_FORMAT}: "
    _emit_for_threads(context, _print_value(context, head, (), expr, call.span), call.span)


def _emit_for_threads(context: Context, statements: tuple[tile.Stmt, ...], span: Span) -> None:
    """Emit statements for the thread that has the element, inside T.Parallel, and elsewhere for every thread."""
    if context.is_parallel:
        context.out += statements
    else:
        per_thread.emit_for_each_thread(context, statements, span)


def _print_tile(context: Context, call: Call, buffer: tile.Buffer, message: str) -> None:
    """Emit the loop in which one thread prints a tile or tensor, or every thread its local array; refuse it in
    T.Parallel. A fragment is copied to shared memory first. Errors also: a barrier, tensor memory, a thread outside the
    block.
    """
    if context.is_parallel:
        title = f"T.print of the whole {buffer.name} is not allowed inside {context.nest_name}"
        raise_error("tile-op-in-parallel", title, call.span, help="print an element, or move it out of the loop")
    if buffer.scope in ("tmem", "barrier"):
        title, place = f"T.print of {buffer.name}, which no thread can read", Label(buffer.span, "allocated here")
        note, way_out = "a barrier holds no values", "print the tile that the barrier guards"
        if buffer.scope == "tmem":
            note, way_out = "it is in tensor memory", "T.copy it to a fragment first"
        raise_error("wrong-scope", title, call["obj"].span, note, secondary=(place,), help=way_out)
    printer = WARPGROUP_THREADS * call.read_integer("warp_group_id") + WARP_THREADS * call.read_integer("warp_id")
    if not 0 <= printer < context.threads:
        title = "the printing thread is outside the block"
        raise_error("wrong-argument", title, call.span, f"T.Kernel has {context.threads} threads")
    source = buffer
    if buffer.scope == "fragment":
        per_thread.require_known_threads(context, call.span, f"T.print of {buffer.name}")
        source = context.allocate_buffer(f"{buffer.name}_printed", buffer.shape, buffer.dtype, "shared", call.span)
        whole_fragment, whole_copy = (make_buffer_region(b, call.span) for b in (buffer, source))
        context.out.append(Copy(whole_fragment, whole_copy, span=call.span))
    # One thread of each block prints a tile or tensor; every thread prints its local array.
    guard = None if buffer.scope == "local" else tile.Binary("eq", tile.THREAD, tile.int32_const(printer), BOOL)
    if not message and buffer.scope != "global":
        message = f"buffer<{buffer.name}, {buffer.dtype}>"
    index = tile.Var(context.unique.take("printed"))
    size: tile.Expr = tile.int32_const(math.prod(buffer.shape)) if not buffer.is_dynamic else _count_elements(buffer)
    head = f"msg='{_escape_format(message)}' {_PLACE_FORMAT}: buffer={buffer.name}, index=%d, "
    printed = _print_value(context, head, (index,), tile.Load(source, _split_linear_index(index, buffer)), call.span)
    body = printed if guard is None else (tile.If(guard, printed, (), call.span),)
    with context.altered(out=[]):
        per_thread.emit_for_each_thread(context, body, call.span)
        loop = tile.For("serial", index, tile.int32_const(0), size, 1, tuple(context.out), span=call.span)
    context.out.append(thread_loops.unroll_register_loop(loop))


def _count_elements(buffer: tile.Buffer) -> tile.Expr:
    """Return the product of a buffer's extents, also run-time ones, as an int32 expression."""
    total: tile.Expr = tile.int32_const(1)
    for extent in buffer.extents:
        total = tile.Binary("mul", total, tile.extent_expr(extent), INT32)
    return total


def _split_linear_index(index: tile.Expr, buffer: tile.Buffer) -> tuple[tile.Expr, ...]:
    """Return an element's indices along each dimension, computed from its row-major number in the buffer."""
    found: list[tile.Expr] = []
    for extent in reversed(buffer.extents[1:]):
        found.insert(0, tile.Binary("floormod", index, tile.extent_expr(extent), INT32))
        index = tile.Binary("floordiv", index, tile.extent_expr(extent), INT32)
    return (index, *found)


# ---- one line --------------------------------------------------------------------------------------------------------


def _print_value(
    context: Context, head: str, before: tuple[tile.Expr, ...], value: tile.Expr, span: Span
) -> tuple[tile.Stmt, ...]:
    """Return the statements that print a value after the printf format `head` of the values `before`; a bool by two
    `if`s.
    """
    dtype = value.dtype
    head += f"dtype={_C_NAMES.get(dtype.name, dtype.name)} value="
    if dtype == BOOL:
        yes, no = (_make_line(context, head + word, before, span) for word in ("true", "false"))
        return (tile.If(value, (yes,), (), span), tile.If(tile.Unary("not", value, BOOL), (no,), (), span))
    conversion, wide = _choose_conversion(dtype)
    return (_make_line(context, head + conversion, (*before, cast_expr(value, wide)), span),)


def _choose_conversion(dtype: DType) -> tuple[str, DType]:
    """Return printf's conversion for a dtype, as "%u", and the wider dtype to convert the value to."""
    if dtype.is_float:
        return "%f", dtype if dtype.bits == 64 else FLOAT32
    if dtype.bits == 64:
        return ("%lld" if dtype.kind == "int" else "%llu"), dtype
    return ("%d", INT32) if dtype.kind == "int" else ("%u", UINT32)


def _make_line(context: Context, text: str, values: tuple[tile.Expr, ...], span: Span) -> tile.Print:
    """Make the print statement of a line with the printf format `text`; block and thread indices come before its
    values.
    """
    blocks: list[tile.Expr] = [var for var, _ in context.blocks]
    blocks += [tile.int32_const(0)] * (3 - len(blocks))
    threads = [as_expr(Argument(thread_values.compute_thread_index(context, dim), span)) for dim in range(3)]
    return tile.Print(f"{text}\n", (*blocks, *threads, *values), span)


def _escape_format(text: str) -> str:
    return text.replace("%", "%%")
