"""Copies that TMA can do: they need a tensor map (cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col). T.tma_gather4 and
T.tma_scatter4, which have one instruction and no fallback, are refused where they cannot be done."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from tilec.analysis.box_starts import Coordinates
from tilec.ir.affine import affine_form, row_divisor
from tilec.ir.multicast import BOX_BYTES
from tilec.ir.text import show_expr
from tilec.ir.tile import Buffer, Const, Expr, Region, TileOp
from tilec.ops.copies import im2col
from tilec.ops.copies.copy import Copy
from tilec.ops.copies.four_rows import ROWS, Gather4, Scatter4
from tilec.ops.copies.im2col import Im2col
from tilec.ops.lowering import TMA_ALIGNMENT
from tilec.passes.layout.shared.atoms import MAX_BOX_EXTENT, can_hold_boxes
from tilec.target.table import Target

NO_BOXES_REASON = (
    f"the tile cannot be divided into boxes of at most {MAX_BOX_EXTENT} columns that begin at "
    f"multiples of {BOX_BYTES} bytes"
)


def why_not_tma(op: TileOp, placed: frozenset[Buffer], coordinates: Coordinates) -> str | None:
    """Return why TMA cannot, or should not, load this copy's shared tile from its tensor; None if it can."""
    source, destination = op.regions
    if destination.buffer in placed:
        return f"the given layout of {destination.buffer.name} is none that TMA has"
    if is_tma_disabled(op):
        return "disable_tma is set"
    if isinstance(op, Im2col):
        return im2col.find_tma_obstacle(op) or (None if can_hold_boxes(destination.buffer) else NO_BOXES_REASON)
    if destination.is_whole:
        return why_no_tensor_map(source, destination.buffer, coordinates, least_dimensions=1)
    if not isinstance(op, Copy) or op.barrier is None:
        return "it fills only a part of a tile"
    if not are_whole_panels(destination):
        return "it fills only a part of a tile, and not all rows of columns in steps of 128 bytes"
    part = replace(destination.buffer, extents=destination.extent)
    return why_no_tensor_map(source, part, coordinates)


def are_whole_panels(part: Region) -> bool:
    """Return whether a part of a tile is all its rows, in columns that begin and end at multiples of 128 bytes. These
    are the widest panels of a layout with a swizzle.
    """
    *rows, column = part.start
    if part.extent[:-1] != part.buffer.extents[:-1] or any(not _is_constant(start, 0) for start in rows):
        return False
    size = part.buffer.dtype.bytes
    return all(units * size % MAX_PANEL_BYTES == 0 for units in (affine_form(column).divisor, part.extent[-1]))


def _is_constant(expr: Expr, value: int) -> bool:
    """Return whether an expression is a constant with this value."""
    return isinstance(expr, Const) and expr.value == value


MAX_PANEL_BYTES = 128
"""The row of the widest swizzle of a tensor map in bytes."""


def is_tma_disabled(op: TileOp) -> bool:
    return isinstance(op, Copy | Im2col) and op.tma is not None


def why_no_tensor_map(
    global_region: Region, tile: Buffer, coordinates: Coordinates, least_dimensions: int = 2
) -> str | None:
    """Return why TMA cannot copy between a tensor's region and a tile: types, shapes or alignment; None if it can."""
    tensor = global_region.buffer
    if tensor.table_rank:
        return f"{tensor.name} is a table of addresses, and a tensor map describes one tensor"
    if tensor.dtype != tile.dtype:
        return f"it converts {tensor.dtype} to {tile.dtype}"
    if len(tile.shape) < least_dimensions or len(tensor.extents) > 5:
        return f"the tile has {len(tile.shape)} dimension(s) and the tensor {len(tensor.extents)}"
    size = tensor.dtype.bytes
    long_dims = tuple(e for e in tile.shape if e != 1) or (1,)
    if global_region.extent[-1] != tile.shape[-1] or global_region.shape != long_dims:
        return "the region and the tile differ in shape"
    row = size * row_divisor(tensor)
    if len(tensor.extents) > 1 and row % TMA_ALIGNMENT:
        if isinstance(tensor.extents[-1], int):
            return f"{tensor.name}'s rows are {row} bytes, not a multiple of {TMA_ALIGNMENT}"
        return (
            f"whether {tensor.name}'s rows are a multiple of {TMA_ALIGNMENT} bytes is known only at launch: to promise "
            f'it, declare that extent as {TMA_ALIGNMENT // math.gcd(row, TMA_ALIGNMENT)} * T.dynamic("n")'
        )
    column = global_region.start[-1]
    if coordinates.find_divisor(column) * size % TMA_ALIGNMENT:
        where = f"{show_expr(column)} of {tensor.name}"
        return f"its first column, {where}, is not known to be a multiple of {TMA_ALIGNMENT} bytes"
    if tile.shape[-1] * size % TMA_ALIGNMENT:
        return f"a tile row is {tile.shape[-1] * size} bytes, not a multiple of {TMA_ALIGNMENT}"
    if any(e > MAX_BOX_EXTENT for e in global_region.extent[:-1]):
        return f"a box has at most {MAX_BOX_EXTENT} rows"
    if not can_hold_boxes(tile):
        return NO_BOXES_REASON
    return None


def why_no_tma_store(global_region: Region, tile: Buffer, coordinates: Coordinates) -> str | None:
    """Return why TMA cannot store the tile to this region of a tensor; None if it can."""
    for start in global_region.start:
        if not coordinates.is_never_negative(start):
            name = global_region.buffer.name
            return f"it begins at {show_expr(start)} of {name}, which may be negative, where TMA stores nothing"
    return why_no_tensor_map(global_region, tile, coordinates)


_ALIGNMENT_BYTES = 128
"""Alignment in bytes of a TMA box in shared memory (PTX ISA, cp.async.bulk.tensor)."""


def why_not_four_rows(
    op: Gather4 | Scatter4,
    target: Target,
    placed: Collection[Buffer],
    ordered: Collection[str],
    coordinates: Coordinates,
) -> str | None:
    """Return why TMA cannot gather or scatter four rows by index; None if it can. `placed` are tiles whose layout TMA
    does not know, `ordered` the tensors whose accesses by threads have an order."""
    line, part = op.regions if isinstance(op, Gather4) else op.regions[::-1]
    tile, size = part.buffer, part.buffer.dtype.bytes
    if not target.has("tma.gather4"):
        return f"{target.name} has no TMA copies of rows by index"
    if tile in placed:
        return f"the given layout of {tile.name} is none that TMA has"
    if isinstance(op, Scatter4) and line.buffer.name in ordered:
        return f"another statement of the kernel also accesses {line.buffer.name}"
    if isinstance(op, Scatter4) and not coordinates.is_never_negative(line.start[-1]):
        return f"its first column, {show_expr(line.start[-1])} of {line.buffer.name}, may be negative"
    row = tile.shape[-1]
    if not part.is_whole and row * size * ROWS % _ALIGNMENT_BYTES:
        return f"four rows of {tile.name} are {row * size * ROWS} bytes, not a multiple of {_ALIGNMENT_BYTES}"
    if not can_hold_boxes(tile):
        return NO_BOXES_REASON
    return why_no_tensor_map(line, replace(tile, extents=(row,)), coordinates, least_dimensions=1)
