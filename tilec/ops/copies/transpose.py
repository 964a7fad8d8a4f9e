"""T.transpose: the transpose of a two-dimensional tile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Literal

from tilec.ir import tile, warp
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.expr import cast_expr
from tilec.ir.groups import WARP_THREADS
from tilec.ir.layout import ACCUMULATED_PERIOD, Axis, Fragment, accumulated_depth_order, column_major_fragment
from tilec.ir.operations.fields import BY_PASSES
from tilec.ir.text import show_declared
from tilec.ir.types import INT32
from tilec.ops.form import Shared, verify_whole_buffer
from tilec.ops.language.signature import ANNOTATIONS, Call, Parameter, Signature
from tilec.ops.language.values import show_shape
from tilec.ops.lowering import VECTOR_BYTES, Demand, LoweringContext, make_demand
from tilec.ops.registry import Environment, Spelling, attach_facet, define_operation, list_move_effects
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

BANK_BYTES = 4
AccumulatedOrder = Literal["as accumulated"]
"""Marks a transposition that tilec makes for an 8-bit product, and that product. The rows of `dst` are in the order of
`accumulated_order`, so that the other factor stays in the registers in which it was accumulated."""


@dataclass(frozen=True, slots=True)
class Transpose(tile.TileOp):
    """Stores the transpose of `source` in `destination`."""

    name = "transpose"
    by_warpgroups = True
    order_is_known = True
    reaches_regions = False
    source: Shared
    destination: Shared
    order: AccumulatedOrder | None = field(default=None, metadata=BY_PASSES)


def _read_tile(call: Call, name: str) -> tile.Region:
    """Return an argument as the region of a whole shared tile of two dimensions; raises an error for any other."""
    buffer = call.buffer(name)
    region = call.read_region(name) if buffer is None or buffer.scope == "shared" else None
    if buffer is not None and (region is None or not region.is_whole or len(region.extent) != 2):
        extents = buffer.extents if region is None else region.extent
        raise_error(
            "wrong-scope",
            f"T.transpose: `{name}` must be a whole shared tile of two dimensions",
            call[name].span,
            f"{buffer.name} is in {buffer.scope} memory, of shape {show_shape(extents)}",
            secondary=(Label(buffer.span, "from here"),),
            help="T.copy it to a shared tile first",
        )
    return call.read_region(name)


def _check_transpose(call: Call) -> tile.TileOp:
    """Return the operation of a call of T.transpose; raises an error for one tile twice, or shapes not transposed."""
    src, dst = _read_tile(call, "src"), _read_tile(call, "dst")
    if src.extent[::-1] != dst.extent:
        raise_error(
            "shape-mismatch",
            "T.transpose: `dst` does not have the shape of the transpose",
            call.span,
            f"from {show_shape(src.extent)} to {show_shape(dst.extent)}",
            secondary=(Label(dst.buffer.span, "from here"),),
            help=f"allocate it as {show_shape(src.extent[::-1])}",
        )
    if src.buffer == dst.buffer:
        raise_error("wrong-argument", "T.transpose cannot transpose a tile in place", call.span, help="use two tiles")
    return Transpose(src, dst, span=call.span)


def _evaluate_transpose(op: Transpose, env: Environment) -> None:
    """Write the transpose in numpy, its columns permuted by `accumulated_depth_order` if the operation has an order."""
    src, dst = op.regions
    transposed = env.read(src).T
    if op.order is not None:
        transposed = transposed[:, [accumulated_depth_order(place) for place in range(transposed.shape[1])]]
    env.write(dst, transposed)


define_operation(
    Transpose,
    list_move_effects,
    _evaluate_transpose,
    Spelling(
        Signature("T.transpose", (Parameter("src"), Parameter("dst"), ANNOTATIONS)),
        """Transpose `src` into `dst`, both whole shared tiles of two dimensions.

        Elements are converted to the dtype of `dst`.
        """,
        _check_transpose,
    ),
)


def make_sweep_layout(op: Transpose, threads: int, copies: int = 1) -> Fragment:
    """Return the layout in which all threads write `dst`, or each of `copies` warpgroups its own copy of it. For each
    element of a run, neighbouring threads read neighbouring elements of `src`."""
    destination = op.regions[1].buffer
    rows, columns = destination.shape
    one = column_major_fragment((rows, columns), threads // copies, VECTOR_BYTES // destination.dtype.bytes)
    return replace(one, threads=(*one.threads, Axis(copies, -1, 0)))


MATRIX_ROWS = (32, 16, 8)
"""Rows of 16 bytes that one ldmatrix transposes: of four, two or one matrices."""


def find_matrix_rows(op: Transpose, warps: int) -> int | None:
    """Return the most 16-byte rows that one ldmatrix transposes so that `warps` warps share the tile evenly; None if
    none. The elements must have 8 or 16 bits and keep their type.
    """
    source, destination = (region.buffer for region in op.regions)
    size = source.dtype.bytes
    rows, row_bytes = source.shape[0], source.shape[1] * size
    if source.dtype != destination.dtype or source.dtype.bits not in (8, 16) or row_bytes % VECTOR_BYTES or not warps:
        return None
    # A matrix of bytes makes rows of 8 bytes, so it takes two for 16.
    possible = (r for r in MATRIX_ROWS if r * size >= VECTOR_BYTES and rows % r == 0)
    return next((r for r in possible if rows // r * (row_bytes // VECTOR_BYTES) % warps == 0), None)


def build_matrix_transpose(op: Transpose, context: LoweringContext) -> warp.TransposeMatrix | None:
    """Build the transposition by ldmatrix and stmatrix; None where the tiles' sizes or layouts do not allow it. They
    need 16 contiguous bytes of a row."""
    source, destination = (region.buffer for region in op.regions)
    layouts = [context.shared[buffer.name] for buffer in (source, destination)]
    warps = context.threads // (layouts[1].copies * WARP_THREADS)
    rows = find_matrix_rows(op, warps)
    if rows is None or any(one.placement or one.row_bytes % VECTOR_BYTES for one in layouts):
        return None
    is_accumulated = op.order is not None
    return warp.TransposeMatrix(source, destination, warps, rows, is_accumulated, cursors=context.cursors, span=op.span)


@attach_facet(Transpose, "lower")
def lower_transpose(op: Transpose, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to a transposition by matrices where the tiles allow it, else to one element by element."""
    by_matrices = build_matrix_transpose(op, context)
    return (by_matrices or _build_element_transpose(op, context),)


def _build_element_transpose(op: Transpose, context: LoweringContext) -> warp.Elementwise:
    """Build the transposition element by element, converting the type, as an elementwise nest over `dst`."""
    source, destination = (r.buffer for r in op.regions)
    row, column = tile.Var("%e0"), tile.Var("%e1")
    from_row = _build_accumulated_row(column) if op.order is not None else column
    value = tile.Load(source, (from_row, row))
    store = tile.Store(destination, (row, column), cast_expr(value, destination.dtype), op.span)
    nest = tile.Parallel((row, column), destination.shape, (store,), op.span)
    layout = make_sweep_layout(op, context.threads, context.shared[destination.name].copies)
    return warp.Elementwise(nest, layout, cursors=context.cursors, span=op.span)


def _build_accumulated_row(place: tile.Var) -> tile.Expr:
    """Build `accumulated_depth_order(place)` as an expression."""

    def build_digit(divisor: int, modulus: int, times: int) -> tile.Expr:
        """Build the digit `place // divisor % modulus`, times `times`."""
        shifted = tile.Binary("floordiv", place, tile.int32_const(divisor), INT32)
        return scale_expr(tile.Binary("floormod", shifted, tile.int32_const(modulus), INT32), times)

    block = scale_expr(tile.Binary("floordiv", place, tile.int32_const(ACCUMULATED_PERIOD), INT32), ACCUMULATED_PERIOD)
    parity = tile.Binary("floormod", place, tile.int32_const(2), INT32)
    return add_exprs(add_exprs(block, build_digit(2, 2, 8)), add_exprs(build_digit(4, 4, 2), parity))


@attach_facet(Transpose, "demand")
def list_transpose_demands(op: Transpose, context: LoweringContext) -> tuple[Demand, ...]:
    """List the demands of a transposition: by matrices, or of loading, permuting and storing each element."""
    source, destination = (r.buffer for r in op.regions)
    elements = math.prod(destination.shape) * context.shared[destination.name].copies
    if build_matrix_transpose(op, context) is not None:
        permuted = elements // BANK_BYTES if source.dtype.bits == 8 else 0
        return (
            make_demand("ldmatrix", bytes=elements * source.dtype.bytes),
            *([make_demand("elementwise", ops=1, elements=permuted, threads=context.threads)] if permuted else []),
            make_demand("st.shared", bytes=elements * source.dtype.bytes, threads=context.threads),
        )
    # Each element, however small, takes a word of a bank; small elements are packed afterwards (in the machine code of
    # an fp8 attention: 128 loads and 112 permutations a thread for a tile of 128 x 128 and a warpgroup).
    return (
        make_demand("ld.shared", bytes=elements * max(source.dtype.bytes, BANK_BYTES), threads=context.threads),
        make_demand("elementwise", ops=2, elements=elements, threads=context.threads),
        make_demand("st.shared", bytes=elements * destination.dtype.bytes, threads=context.threads),
    )


@attach_facet(Transpose, "agrees")
def verify_transpose(op: Transpose) -> Iterator[str]:
    """Yield a message where a tile is not whole, both are one, or the shapes are not transposed."""
    source, result = op.regions
    for region in op.regions:
        yield from verify_whole_buffer(region)
    if source.buffer == result.buffer or len(source.extent) != 2 or source.extent[::-1] != result.extent:
        yield (
            f"the transpose of {show_declared(source.buffer)} does not have the shape of {show_declared(result.buffer)}"
        )
