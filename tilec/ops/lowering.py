"""What an operation's `lower` and `demand` are given: the layouts chosen for its tiles, and what may be asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilec.ir.affine import add
from tilec.ir.layout import Fragment, SharedLayout, row_major
from tilec.ir.tile import Atomic, Buffer, Cast, Expr, Load, Order, Parallel, Region, Store, Var
from tilec.ir.warp import Corners, Cursor, Elementwise, TensorMap
from tilec.records import dataclass
from tilec.source import Span

VECTOR_BYTES = 16  # the widest access of one thread
TMA_ALIGNMENT = 16  # bytes: global address, row strides, inner box (cuTensorMapEncodeTiled)


@dataclass(frozen=True, slots=True)
class Context:
    """`cursors` are the positions of the rings that the operation's tiles belong to; `tensor_map(tensor, box, swizzle,
    corners)` registers a TMA descriptor; `scratch(bytes, span)` asks for shared memory of the operation's own."""

    threads: int
    fragments: Mapping[str, Fragment]
    shared: Mapping[str, SharedLayout]
    cursors: tuple[Cursor, ...]
    tensor_map: Callable[[Buffer, tuple[int, ...], int, Corners | None], TensorMap]
    scratch: Callable[[int, Span], Buffer]
    cluster: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True, slots=True)
class Demand:
    """So much of one priced instruction kind; the target file has the price."""

    kind: str
    parameters: tuple[tuple[str, int], ...]


def demand(kind: str, **parameters: int) -> Demand:
    return Demand(kind, tuple(sorted(parameters.items())))


def tensor_map_of(outside: Region, tile: Buffer, context: Context) -> TensorMap:
    """The TMA descriptor between this region of a tensor and the tile."""
    layout = context.shared[tile.name]
    return context.tensor_map(outside.buffer, (*outside.extent[:-1], layout.panel), layout.swizzle, None)


def sweep(
    destination: Region,
    value: Region | Expr,
    context: Context,
    span: Span,
    atomic: Atomic | None = None,
    order: Order = "relaxed",
    width: int | None = None,
) -> Elementwise:
    """`destination = value`, or an atomic combination of the two, element by element, each thread moving the elements
    it holds (or runs of `width` elements, by default of 16 bytes)."""
    regions = [destination, value] if isinstance(value, Region) else [destination]
    fragment = next((r.buffer for r in regions if r.buffer.scope == "fragment"), None)
    extents = destination.shape if fragment is None else fragment.shape
    variables = tuple(Var(f"%e{d}") for d in range(len(extents)))
    stored = Load(value.buffer, element(value, variables, extents)) if isinstance(value, Region) else value
    if stored.dtype != destination.buffer.dtype:
        stored = Cast(stored, destination.buffer.dtype)
    store = Store(destination.buffer, element(destination, variables, extents), stored, span, atomic, order)
    nest = Parallel(variables, extents, (store,), span)
    if fragment is not None:
        layout = context.fragments[fragment.name]
    else:
        vector = width or VECTOR_BYTES // max(r.buffer.dtype.bytes for r in regions)
        layout = row_major(extents, context.threads, vector)
    return Elementwise(nest, layout, cursors=context.cursors, span=span)


def element(region: Region, variables: tuple[Var, ...], extents: tuple[int, ...]) -> tuple[Expr, ...]:
    """The index, in the region's buffer, of the element at `variables` of a box of `extents`: dimensions of extent 1
    stay at the region's start, the others follow the box's in order."""
    moving = [v for v, extent in zip(variables, extents, strict=True) if extent != 1]
    indices: list[Expr] = []
    for start, extent in zip(region.start, region.extent, strict=True):
        if extent == 1:
            indices.append(start)
        else:
            indices.append(add(start, moving.pop(0)))
    return tuple(indices)
