"""The context of an operation's `lower` and `demand`, and helpers that several operations lower with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.layout import Fragment, SharedLayout, row_major_fragment
from tilec.ir.warp import PART_ROWS, BulkWait, Cursor, Elementwise, Im2colCorners, Operation, TensorMap, TmaStore
from tilec.support.records import dataclass
from tilec.support.source import Span
from tilec.target.names import InstructionKind

VECTOR_BYTES = 16  # the widest access of one thread
TMA_ALIGNMENT = 16  # bytes: global address, row strides, inner box (cuTensorMapEncodeTiled)


@dataclass(frozen=True, slots=True)
class LoweringContext:
    """The layouts of an operation's tiles, and two services. `cursors` are the positions in the rings of its tiles.
    `tensor_map(tensor, box, swizzle, corners)` registers a TMA descriptor; `scratch(bytes, span)` allocates shared
    memory for the operation alone."""

    threads: int
    fragments: Mapping[str, Fragment]
    shared: Mapping[str, SharedLayout]
    cursors: tuple[Cursor, ...]
    tensor_map: Callable[[tile.Buffer, tuple[int, ...], int, Im2colCorners | None], TensorMap]
    scratch: Callable[[int, Span], tile.Buffer]
    cluster: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True, slots=True)
class Demand:
    """An amount of one instruction kind, needed `times` times in sequence; the target file has the price."""

    kind: InstructionKind
    parameters: tuple[tuple[str, int], ...]
    times: int = 1


def make_demand(kind: InstructionKind, **parameters: int) -> Demand:
    """Return the demand of one instruction of this kind, its parameters sorted by name."""
    return Demand(kind, tuple(sorted(parameters.items())))


def list_no_demands(op: tile.TileOp, context: LoweringContext) -> tuple[Demand, ...]:
    """Return no demands, for an operation that takes only its issue slot, such as a wait, whose time others
    determine."""
    return ()


def _list_access_demands(
    kinds: Mapping[tile.Scope, InstructionKind], buffer: tile.Buffer, size: int, threads: int
) -> tuple[Demand, ...]:
    """List the demand of moving `size` bytes by `threads` threads, from or to global or shared memory; nothing for
    other memory."""
    kind = kinds.get(buffer.scope)
    return () if kind is None else (make_demand(kind, bytes=size, threads=threads),)


list_load_demands = partial(_list_access_demands, {"global": "ld.global", "shared": "ld.shared"})
list_store_demands = partial(_list_access_demands, {"global": "st.global", "shared": "st.shared"})


def make_tensor_map(global_region: tile.Region, buffer: tile.Buffer, context: LoweringContext) -> TensorMap:
    """Register and return the TMA descriptor for boxes of this region's size, one panel wide, between tensor and
    tile."""
    layout = context.shared[buffer.name]
    return context.tensor_map(global_region.buffer, (*global_region.extent[:-1], layout.panel), layout.swizzle, None)


def build_tma_store(
    op: tile.TileOp, context: LoweringContext, parts: int, at_once: bool, atomic: Literal["", "add", "min", "max"] = ""
) -> tuple[Operation, ...]:
    """Build the TMA store of a shared tile to a tensor, or its atomic reduction, with a wait behind it if `at_once`.
    Each of `parts` warpgroups stores its own rows."""
    source, destination = op.regions
    rows, box = 0, destination
    if parts > 1:
        rows = next(d for d, extent in enumerate(destination.extent) if extent != 1)
        box = replace(box, extent=(*box.extent[:rows], PART_ROWS, *box.extent[rows + 1 :]))
    store = TmaStore(
        make_tensor_map(box, source.buffer, context),
        destination.start, source.buffer, atomic, parts, rows, cursors=context.cursors, span=op.span,
    )  # fmt: skip
    return (store, BulkWait(0, span=op.span)) if at_once else (store,)


def build_elementwise(
    destination: tile.Region,
    value: tile.Region | tile.Expr,
    context: LoweringContext,
    span: Span,
    atomic: tile.Atomic | None = None,
    order: tile.Order = "relaxed",
    width: int | None = None,
) -> Elementwise:
    """Build the nest `destination = value`, or an atomic combination of the two, converting the type, element by
    element. Each thread moves the elements of a fragment that it holds; without a fragment, runs of `width` elements,
    by default 16 bytes. A part of a fragment's columns is possible if every thread holds some of them."""
    regions = [destination, value] if isinstance(value, tile.Region) else [destination]
    held = next((r for r in regions if r.buffer.scope == "fragment"), None)
    extents = destination.shape if held is None else held.extent
    variables = tuple(tile.Var(f"%e{d}") for d in range(len(extents)))
    stored = value
    if isinstance(stored, tile.Region):
        stored = tile.Load(stored.buffer, index_element(stored, variables, extents))
    if stored.dtype != destination.buffer.dtype:
        stored = tile.Cast(stored, destination.buffer.dtype)
    store = tile.Store(destination.buffer, index_element(destination, variables, extents), stored, span, atomic, order)
    nest = tile.Parallel(variables, extents, (store,), span)
    layout: Fragment | None
    if held is not None:
        whole = context.fragments[held.buffer.name]
        layout = whole if held.is_whole else whole.columns(extents[-1])
        assert layout is not None, f"some threads hold none of these columns of {held.buffer.name}"
    else:
        vector = width or VECTOR_BYTES // max(r.buffer.dtype.bytes for r in regions)
        layout = row_major_fragment(extents, context.threads, vector)
    return Elementwise(nest, layout, cursors=context.cursors, span=span)


def index_element(
    region: tile.Region, variables: tuple[tile.Var, ...], extents: tuple[int, ...]
) -> tuple[tile.Expr, ...]:
    """Return the index in the region's buffer of the element at `variables` in a box of `extents`. Dimensions of extent
    1 stay at the region's start; the others follow the box's dimensions in order."""
    moving = [v for v, extent in zip(variables, extents, strict=True) if extent != 1]
    dims = zip(region.start, region.extent, strict=True)
    return tuple(start if extent == 1 else add_exprs(start, moving.pop(0)) for start, extent in dims)
