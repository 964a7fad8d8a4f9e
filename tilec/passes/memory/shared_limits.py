"""What is said where shared memory has no room for what a kernel asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from tilec.ir.multicast import SWIZZLE_BYTES
from tilec.ir.tile import Buffer
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.shared_reuse import over_rings
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span
from tilec.target.table import Target

_SUMMED = 8
"""Tiles that are named in the sum; the sizes of others are added up."""


def sum_note(total: int, sizes: Mapping[str, int]) -> str:
    """Return how the sizes of tiles, by name, add up to the bytes that a kernel takes."""
    ordered = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))
    shown, others = ordered[:_SUMMED], ordered[_SUMMED:]
    parts = [f"{size:,} ({name})" for name, size in shown]
    if others:
        parts.append(f"{sum(size for _, size in others):,} ({len(others)} smaller tiles)")
    if rest := total - sum(sizes.values()):
        parts.append(f"{rest:,} (barriers, and what lies between tiles)")
    return f"{total:,} = {' + '.join(parts)}"


def check_without_loops(assignment: LayoutAssignment, target: Target) -> None:
    """Refuse a kernel without pipelined loops whose tiles have no room."""
    late = over_rings(assignment.kernel)
    sizes = {name: layout.bytes for name, layout in assignment.shared.items() if name not in late}
    needed = sum(-(-size // SWIZZLE_BYTES) * SWIZZLE_BYTES for size in sizes.values())
    if needed > target.limit("smem_bytes_per_cta"):
        refuse_tiles(assignment, target, needed, sizes)


def refuse_tiles(assignment: LayoutAssignment, target: Target, needed: int, sizes: Mapping[str, int]) -> NoReturn:
    """Refuse tiles that take `needed` bytes, among them these `sizes` by name, even with one version of each."""

    def size(tile: Buffer) -> str:
        """Of a tile that nobody wrote down, what it is for."""
        is_made = tile.span not in {b.span for b in assignment.kernel.buffers if "." not in b.name}
        return f"{assignment.shared[tile.name].bytes:,} bytes" + " to pass values through here" * is_made

    tiles = sorted((b for b in assignment.kernel.buffers if b.scope == "shared"), key=lambda b: -b.bytes)
    capacity = target.limit("smem_bytes_per_cta")
    raise_error(
        "shared-memory-overflow",
        f"the tiles take {needed:,} bytes of shared memory, {target.name} has {capacity:,} for a block",
        tiles[0].span,
        f"{tiles[0].name} alone is {assignment.shared[tiles[0].name].bytes:,} bytes",
        secondary=tuple(Label(b.span, size(b)) for b in tiles[1:3]),
        notes=(sum_note(needed, sizes),),
        help="use smaller tiles",
    )


def refuse_versions(versions: int, tiles: Sequence[Buffer], size: int, left: int, asked: Span) -> NoReturn:
    """So many versions, of `size` bytes each, of tiles that are loaded together are asked for; `left` bytes are
    left."""
    names = ", ".join(b.name for b in tiles)
    raise_error(
        "shared-memory-overflow",
        f"{versions} versions of {names} take {size * versions:,} bytes, {max(left, 0):,} of shared memory are left",
        asked,
        f"asks for {versions} versions of {size:,} bytes",
        secondary=tuple(Label(b.span, f"{b.bytes:,} bytes each") for b in tiles),
        help=f"{left // size} versions fit: use fewer stages, or smaller tiles"
        if left >= size
        else "use smaller tiles",
    )
