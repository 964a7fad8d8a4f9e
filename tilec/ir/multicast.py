"""Blocks of a cluster that load the same tiles. `axes` are the axes along which they differ, as in "x" or "xy"."""

from __future__ import annotations

import math
from functools import cache

from tilec.ir.layout import SharedLayout

Extents = tuple[int, int, int]


def multicast_ranks(cluster: Extents, axes: str) -> tuple[int, ...]:
    """Return the ranks of the blocks, block 0 included, that differ from block 0 along these axes of the cluster only.
    For any other block the distances are the same."""
    x, y, z = (range(size if axis in axes else 1) for axis, size in zip("xyz", cluster, strict=True))
    return tuple(i + cluster[0] * (j + cluster[1] * k) for k in z for j in y for i in x)


@cache
def multicast_ranks_of_any(cluster: Extents, shared: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ranks of the blocks, block 0 included, that share at least one of several tiles with block 0. `shared`
    has the axes of each tile."""
    return tuple(sorted({0, *(mate for axes in shared for mate in multicast_ranks(cluster, axes))}))


def count_multicast_blocks(cluster: Extents, axes: str) -> int:
    """Return the number of blocks that load a tile together: the product of the cluster's extents along `axes`."""
    return math.prod(size for axis, size in zip("xyz", cluster, strict=True) if axis in axes)


SWIZZLE_BYTES = 1024  # the period of the widest bank swizzle
BOX_BYTES = 128  # a box begins at a multiple of it (PTX ISA, cp.async.bulk.tensor)


def sliced_dimension(extents: tuple[int, ...], layout: SharedLayout, slices: int) -> int | None:
    """Return the dimension along which a tile splits into `slices` slices of whole boxes; None if there is none.
    `extents` are those of the tile's box. The contiguous dimension is taken where that leaves whole panels, else the
    first longer than 1, if every slice begins at a repetition of the swizzle."""
    unit = SWIZZLE_BYTES if layout.swizzle else BOX_BYTES
    if layout.panels % slices == 0 and layout.panel_bytes % unit == 0:
        return len(extents) - 1
    rows = next((d for d, extent in enumerate(extents[:-1]) if extent > 1), None)
    fits = rows is not None and extents[rows] % slices == 0 and layout.panel_bytes // slices % unit == 0
    return rows if fits else None
