"""Refuse T.tma_gather4 and T.tma_scatter4 that cannot be done: each has one instruction and no fallback."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilec.analysis.box_starts import Coordinates
from tilec.ir.text import show_expr
from tilec.ir.tile import Buffer
from tilec.ops.copies.four_rows import ROWS, Gather4, Scatter4
from tilec.passes.layout.atoms import can_hold_boxes
from tilec.passes.layout.tensor_maps import NO_BOXES_REASON, why_no_tensor_map
from tilec.support.diagnostics import Label, raise_error
from tilec.target.table import Target

_ALIGNMENT_BYTES = 128
"""Alignment in bytes of a TMA box in shared memory (PTX ISA, cp.async.bulk.tensor)."""


def check_four_rows(
    op: Gather4 | Scatter4,
    target: Target,
    placed: Collection[Buffer],
    ordered: Collection[str],
    coordinates: Coordinates,
) -> None:
    """Refuse an operation that TMA cannot do. `placed` are tiles whose layout TMA does not know, `ordered` the tensors
    whose accesses by threads have an order. Errors: `unsupported-operand`."""
    if reason := _why_not_by_tma(op, target, placed, ordered, coordinates):
        raise_error(
            "unsupported-operand",
            f"TMA cannot do this T.tma_{op.name}",
            op.span,
            reason,
            secondary=tuple(Label(r.buffer.span, "from here") for r in op.regions if r.buffer.scope == "shared"),
            help="write T.copy for each row",
        )


def _why_not_by_tma(
    op: Gather4 | Scatter4,
    target: Target,
    placed: Collection[Buffer],
    ordered: Collection[str],
    coordinates: Coordinates,
) -> str | None:
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
