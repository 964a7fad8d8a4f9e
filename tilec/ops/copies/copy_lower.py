"""T.copy by its mechanisms: TMA, cp.async, ldmatrix (and which copies it can make), stmatrix, tcgen05.ld and .st, and
accesses through registers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.ir.affine import affine_form, row_divisor
from tilec.ir.layout import Axis, Fragment, SharedLayout, row_major_fragment
from tilec.ir.multicast import count_multicast_blocks, sliced_dimension
from tilec.ir.tile import Region
from tilec.ir.warp import CpAsync, CpAsyncCommit, LoadMatrix, Operation, StoreMatrix, TensorLoad, TensorStore, TmaLoad
from tilec.ops.copies.copy import Copy
from tilec.ops.lowering import (
    Demand,
    LoweringContext,
    build_elementwise,
    build_tma_store,
    list_load_demands,
    list_store_demands,
    make_demand,
    make_tensor_map,
)
from tilec.ops.registry import attach_facet
from tilec.ops.synchronisation.barriers import get_barrier
from tilec.support.diagnostics import InternalError

_BLOCK = 8  # rows, and elements of a row


def can_use_ldmatrix(source: Region, destination: Region, layout: Fragment) -> bool:
    """Return whether ldmatrix can load a whole 16-bit fragment of this layout from a shared tile (PTX ISA, ldmatrix).
    The fragment must consist of blocks of 8 × 8 elements of 16 bits, of which each thread holds two neighbours of a
    row, or with .trans of a column. A row of a block must be 16 aligned bytes of a row of the shared tile."""
    tile, fragment = source.buffer, destination.buffer
    if (tile.scope, fragment.scope) != ("shared", "fragment") or tile.dtype != fragment.dtype or tile.dtype.bits != 16:
        return False
    if not destination.is_whole or source.extent[-2:] != layout.shape or any(e != 1 for e in source.extent[:-2]):
        return False
    if len(layout.shape) != 2 or any(map(layout.overhangs, (0, 1))):
        return False
    if tile.shape[-1] % _BLOCK or affine_form(source.start[-1]).divisor % _BLOCK:
        return False
    along = layout.registers[0].dim if layout.registers else -1
    lanes = (Axis(4, along, 2), Axis(8, 1 - along, 1))
    if along not in (0, 1) or layout.registers[0] != Axis(2, along, 1) or layout.threads[:2] != lanes:
        return False
    return all(axis.stride % _BLOCK == 0 for axis in (*layout.threads[2:], *layout.registers[1:]) if axis.size > 1)


@attach_facet(Copy, "lower")
def lower_copy(op: Copy, context: LoweringContext) -> tuple[Operation, ...]:
    """Lower a copy to the warp operations of the mechanism in its `via`; raises `InternalError` for an unknown
    mechanism."""
    source, destination = op.regions
    match op.via:
        case "tma":
            load = _build_tma_load(op, context)
            return (_add_barrier(load, op) if op.signals_barrier else load,)
        case "tma_store":
            return build_tma_store(op, context, op.parts, op.wait == "at once")
        case "tcgen05":
            is_load = source.buffer.scope == "tmem"
            first = (source if is_load else destination).start[-1]
            move = TensorLoad if is_load else TensorStore
            return (move(source.buffer, destination.buffer, first, cursors=context.cursors, span=op.span),)
        case "stmatrix":
            column = affine_form(source.start[-1]).constant
            return (StoreMatrix(source.buffer, destination.buffer, column, cursors=context.cursors, span=op.span),)
        case "cp_async":
            return _build_cp_async(op, context), CpAsyncCommit(span=op.span)
        case "registers" if _uses_ldmatrix(op, context):
            return (LoadMatrix(source, destination.buffer, cursors=context.cursors, span=op.span),)
        case "registers":
            return (build_elementwise(destination, source, context, op.span, width=op.width),)
        case other:
            raise InternalError(f"no lowering of T.copy by {other}")


def _uses_ldmatrix(op: Copy, context: LoweringContext) -> bool:
    """Return whether a copy through registers is made by ldmatrix: the layout fits, and the tile has no author's
    placement."""
    source, destination = op.regions
    layout = context.fragments.get(destination.buffer.name)
    if layout is None or not can_use_ldmatrix(source, destination, layout):
        return False
    return context.shared[source.buffer.name].placement is None


def _build_tma_load(op: Copy, context: LoweringContext) -> TmaLoad:
    """Build the TMA load of a tile, of some of its columns or, by multicast, of this block's slice for all blocks."""
    source, destination = op.regions
    shared = op.multicast
    box, sliced = list(source.extent), 0
    if shared:
        slices = count_multicast_blocks(context.cluster, shared)
        along = sliced_dimension(source.extent, context.shared[destination.buffer.name], slices)
        assert along is not None, "a multicast tile cannot be sliced"
        sliced = along
        box[sliced] //= slices
    tensor_map = make_tensor_map(replace(source, extent=tuple(box)), destination.buffer, context)
    start, tile, cursors = source.start, destination.buffer, context.cursors
    load = TmaLoad(tensor_map, start, tile, shared=shared, sliced=sliced, cursors=cursors, span=op.span)
    if destination.is_whole:
        return load
    return replace(load, column=destination.start[-1], panels=_count_panels(op, context))


def _count_panels(op: Copy, context: LoweringContext) -> int:
    """Return how many panels of a tile's layout a copy to some of its columns fills, all of them whole."""
    part, panel = op.destination, context.shared[op.destination.buffer.name].panel
    is_possible = affine_form(part.start[-1]).divisor % panel == part.extent[-1] % panel == 0
    assert is_possible, "a part of a tile is whole panels of its layout"
    return part.extent[-1] // panel


def _add_barrier(load: TmaLoad, op: Copy) -> TmaLoad:
    """Return the load with the copy's own barrier, leader, announcement and block."""
    assert op.leader is not None
    return replace(load, barrier=get_barrier(op), leader=op.leader, announces=bool(op.announces), block=op.block)


def _build_cp_async(op: Copy, context: LoweringContext) -> CpAsync:
    """Build the cp.async of a copy, in the widest chunks that its alignment allows, row-major over all threads."""
    source, destination = op.regions
    size = source.buffer.dtype.bytes
    layout = context.shared[destination.buffer.name]
    width = _select_chunk_bytes(source, destination, layout)
    swept = row_major_fragment(source.shape, context.threads, width // size)
    return CpAsync(source, destination, swept, width, cursors=context.cursors, span=op.span)


def _select_chunk_bytes(source: Region, destination: Region, layout: SharedLayout) -> int:
    """Return the bytes of one cp.async: the largest of 16, 8 and 4 to which tensor, tile and starts are aligned. The
    mechanism's selection ensures one (`layout.select_mechanisms`)."""
    size = source.buffer.dtype.bytes
    edge = row_divisor(source.buffer) * size
    first = math.gcd(affine_form(source.start[-1]).divisor, affine_form(destination.start[-1]).divisor) * size
    row = math.gcd(layout.shape[-1], destination.extent[-1]) * size
    together = min(layout.run, layout.shape[-1]) * size
    return next(w for w in (16, 8, 4) if all(v % w == 0 for v in (edge, first, row, together)))


@attach_facet(Copy, "demand")
def list_copy_demands(op: Copy, context: LoweringContext) -> tuple[Demand, ...]:
    """List the demands of a copy by the mechanism in its `via`: bytes moved, or elements where neither side is in
    memory."""
    source, destination = op.regions
    elements = math.prod(destination.extent)
    read, written = elements * source.buffer.dtype.bytes, elements * destination.buffer.dtype.bytes
    match op.via:
        case "tma":
            return (make_demand("tma.load", bytes=read),)
        case "tma_store":
            return (make_demand("tma.store", bytes=written),)
        case "tcgen05":
            return (make_demand("tcgen05.ld" if source.buffer.scope == "tmem" else "tcgen05.st", bytes=read),)
        case "cp_async":
            return (make_demand("cp.async", bytes=read, threads=context.threads),)
        case _ if _uses_ldmatrix(op, context):
            held = context.threads * context.fragments[destination.buffer.name].register_count
            return (make_demand("ldmatrix", bytes=held * source.buffer.dtype.bytes),)
        case _:
            accesses = (
                *list_load_demands(source.buffer, read, context.threads),
                *list_store_demands(destination.buffer, written, context.threads),
            )
            return accesses or (make_demand("elementwise", ops=1, elements=elements, threads=context.threads),)
