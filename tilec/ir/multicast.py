"""Blocks of a cluster that load the same tiles. `axes` are those along which they differ, as in "x" or "xy"."""

from __future__ import annotations

import math
from functools import cache

from tilec.ir.layout import SharedLayout

Extents = tuple[int, int, int]


def mates(cluster: Extents, axes: str) -> tuple[int, ...]:
    """The ranks of the blocks that differ from the first one along these axes only, itself among them; those of any
    other block's mates lie as far apart."""
    x, y, z = (range(size if axis in axes else 1) for axis, size in zip("xyz", cluster, strict=True))
    return tuple(i + cluster[0] * (j + cluster[1] * k) for k in z for j in y for i in x)


@cache
def mates_by_any(cluster: Extents, shared: tuple[str, ...]) -> tuple[int, ...]:
    """The ranks of the blocks that share one of several tiles with the first one; of no tiles, its own."""
    return tuple(sorted({0, *(mate for axes in shared for mate in mates(cluster, axes))}))


def number(cluster: Extents, axes: str) -> int:
    """How many they are."""
    return math.prod(size for axis, size in zip("xyz", cluster, strict=True) if axis in axes)


SWIZZLE_BYTES = 1024  # after as many the widest bank swizzle repeats
BOX_BYTES = 128  # a box begins at a multiple of it (PTX ISA, cp.async.bulk.tensor)


def sliced_dimension(extents: tuple[int, ...], layout: SharedLayout, slices: int) -> int | None:
    """The dimension along which a tile that holds a box of these extents is cut into so many slices of whole boxes, or
    None: the contiguous one where that leaves whole panels, else the first, if a swizzle begins anew in each slice."""
    unit = SWIZZLE_BYTES if layout.swizzle else BOX_BYTES
    if layout.panels % slices == 0 and layout.panel_bytes % unit == 0:
        return len(extents) - 1
    rows = next((d for d, extent in enumerate(extents[:-1]) if extent > 1), None)
    fits = rows is not None and extents[rows] % slices == 0 and layout.panel_bytes // slices % unit == 0
    return rows if fits else None
