"""Blocks of a cluster that load the same tiles. `axes` are those along which they differ, as in "x" or "xy"."""

from __future__ import annotations

import math

Extents = tuple[int, int, int]


def mates(cluster: Extents, axes: str) -> tuple[int, ...]:
    """The ranks of the blocks that differ from the first one along these axes only, itself among them; those of any
    other block's mates lie as far apart."""
    x, y, z = (range(size if axis in axes else 1) for axis, size in zip("xyz", cluster, strict=True))
    return tuple(i + cluster[0] * (j + cluster[1] * k) for k in z for j in y for i in x)


def mates_by_any(cluster: Extents, shared: tuple[str, ...]) -> tuple[int, ...]:
    """The ranks of the blocks that share one of several tiles with the first one; of no tiles, its own."""
    return tuple(sorted({0, *(mate for axes in shared for mate in mates(cluster, axes))}))


def number(cluster: Extents, axes: str) -> int:
    """How many they are."""
    return math.prod(size for axis, size in zip("xyz", cluster, strict=True) if axis in axes)


def sliced_dimension(extents: tuple[int, ...]) -> int | None:
    """The dimension along which a box of a tensor is cut into slices: its first, but not the contiguous one."""
    return next((d for d, extent in enumerate(extents[:-1]) if extent > 1), None)
