"""T.copy by its four mechanisms: TMA in, TMA out, cp.async, stmatrix, and plain accesses through registers."""

from __future__ import annotations

import math

from tilec.diag import InternalError
from tilec.ir.affine import affine, divisor
from tilec.ir.layout import SharedLayout, row_major
from tilec.ir.tile import Region, TileOp
from tilec.ir.warp import BulkWait, CpAsync, CpAsyncCommit, Operation, StoreMatrix, TmaLoad, TmaStore
from tilec.ops.lowering import Context, Demand, demand, sweep, tensor_map_of
from tilec.ops.registry import facet


@facet("copy", "lower")
def lower(op: TileOp, context: Context) -> tuple[Operation, ...]:
    source, destination = op.regions
    match op.attr("via"):
        case "tma":
            tensor_map = tensor_map_of(source, destination.buffer, context)
            return (TmaLoad(tensor_map, source.start, destination.buffer, cursors=context.cursors, span=op.span),)
        case "tma_store":
            tensor_map = tensor_map_of(destination, source.buffer, context)
            store = TmaStore(tensor_map, destination.start, source.buffer, cursors=context.cursors, span=op.span)
            return (store, BulkWait(0, span=op.span)) if ("wait", "at once") in op.attrs else (store,)
        case "stmatrix":
            return (StoreMatrix(source.buffer, destination.buffer, cursors=context.cursors, span=op.span),)
        case "cp_async":
            return _cp_async(op, context), CpAsyncCommit(span=op.span)
        case "registers":
            return (sweep(destination, source, context, op.span, width=_width(op)),)
        case other:
            raise InternalError(f"no lowering of T.copy by {other}")


def _width(op: TileOp) -> int | None:
    width = dict(op.attrs).get("width")
    return width if isinstance(width, int) else None


def _cp_async(op: TileOp, context: Context) -> CpAsync:
    source, destination = op.regions
    size = source.buffer.dtype.bytes
    layout = context.shared[destination.buffer.name]
    width = _chunk(source, destination, layout)
    return CpAsync(
        source,
        destination,
        row_major(source.shape, context.threads, width // size),
        width,
        cursors=context.cursors,
        span=op.span,
    )


def _chunk(source: Region, destination: Region, layout: SharedLayout) -> int:
    """The bytes one cp.async moves: 16 where everything is aligned to it, else 8 or 4 (see `passes.select`)."""
    size = source.buffer.dtype.bytes
    edge = divisor(source.buffer.extents[-1]) * size
    first = math.gcd(affine(source.start[-1]).divisor, affine(destination.start[-1]).divisor) * size
    row = math.gcd(layout.shape[-1], destination.extent[-1]) * size
    together = min(layout.run, layout.shape[-1]) * size
    return next(w for w in (16, 8, 4) if all(v % w == 0 for v in (edge, first, row, together)))


@facet("copy", "demand")
def price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    source, destination = op.regions
    elements = math.prod(destination.extent)
    read, written = elements * source.buffer.dtype.bytes, elements * destination.buffer.dtype.bytes
    match op.attr("via"):
        case "tma":
            return (demand("tma.load", bytes=read),)
        case "tma_store":
            return (demand("tma.store", bytes=written),)
        case "cp_async":
            return (demand("cp.async", bytes=read, threads=context.threads),)
        case _:
            accesses = []
            if source.buffer.scope != "fragment":
                accesses.append(demand(f"ld.{source.buffer.scope}", bytes=read, threads=context.threads))
            if destination.buffer.scope != "fragment":
                accesses.append(demand(f"st.{destination.buffer.scope}", bytes=written, threads=context.threads))
            return tuple(accesses) or (demand("elementwise", ops=1, elements=elements, threads=context.threads),)
