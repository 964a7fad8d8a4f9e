"""Errors for kernels whose tiles do not fit into shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from tilec.ir.tile import Buffer
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.live_ranges import count_tile_bytes, list_counted_tiles
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span
from tilec.target.table import Target

_MAX_NAMED_TILES = 8
"""The most tiles named in the sum; the sizes of others are added up."""


def format_size_sum(total: int, sizes: Mapping[str, int]) -> str:
    """Return a text that sums up the tiles' sizes to `total` bytes, the largest by name, with padding or reuse."""
    ordered = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))
    shown, others = ordered[:_MAX_NAMED_TILES], ordered[_MAX_NAMED_TILES:]
    parts = [f"{size:,} ({name})" for name, size in shown]
    if others:
        parts.append(f"{sum(size for _, size in others):,} ({len(others)} smaller tiles)")
    rest = total - sum(sizes.values())
    if rest > 0:
        parts.append(f"{rest:,} (barriers and padding)")
    reused = f" - {-rest:,} (memory that several tiles use, one after another)" if rest < 0 else ""
    return f"{total:,} = {' + '.join(parts)}{reused}"


def check_kernel_without_loops(assignment: LayoutAssignment, target: Target) -> None:
    """Refuse a kernel, known to have no pipelined loops, whose tiles do not fit into shared memory."""
    needed = count_tile_bytes(assignment, target, {})
    if needed > target.limit("smem_bytes_per_cta"):
        refuse_tiles(
            assignment, target, needed, {n: assignment.shared[n].bytes for n in list_counted_tiles(assignment, target)}
        )


def refuse_tiles(assignment: LayoutAssignment, target: Target, needed: int, sizes: Mapping[str, int]) -> NoReturn:
    """Raise the error that the tiles take `needed` bytes, more than a block's shared memory, naming the largest."""

    def describe_size(tile: Buffer) -> str:
        """Return a tile's size as a label, with its purpose if the compiler has added it."""
        is_made = tile.span not in {b.span for b in assignment.kernel.buffers if "." not in b.name}
        return f"{assignment.shared[tile.name].bytes:,} bytes" + " to exchange values between threads here" * is_made

    tiles = sorted((b for b in assignment.kernel.buffers if b.scope == "shared"), key=lambda b: -b.bytes)
    capacity = target.limit("smem_bytes_per_cta")
    fits_alone = assignment.shared[tiles[0].name].bytes <= capacity
    raise_error(
        "shared-memory-overflow",
        f"the tiles take {needed:,} bytes of shared memory, {target.name} has {capacity:,} for a block",
        tiles[0].span,
        f"{tiles[0].name} alone is {assignment.shared[tiles[0].name].bytes:,} bytes",
        secondary=tuple(Label(b.span, describe_size(b)) for b in tiles[1:3]),
        notes=(format_size_sum(needed, sizes),),
        help="use smaller tiles"
        if fits_alone
        else f"no block can hold {tiles[0].name}: make it a tile of fewer rows or columns, and loop over its parts",
    )


def refuse_versions(versions: int, tiles: Sequence[Buffer], size: int, left: int, request: Span) -> NoReturn:
    """Raise the error that so many versions of tiles, of `size` bytes each, do not fit into `left` free bytes."""
    names = ", ".join(b.name for b in tiles)
    raise_error(
        "shared-memory-overflow",
        f"{versions} versions of {names} take {size * versions:,} bytes, {max(left, 0):,} of shared memory are left",
        request,
        f"asks for {versions} versions of {size:,} bytes",
        secondary=tuple(Label(b.span, f"{b.bytes:,} bytes each") for b in tiles),
        help=f"{left // size} versions fit: use fewer stages, or smaller tiles"
        if left >= size
        else "use smaller tiles",
    )
