"""The time that a grid's blocks take in an order, from the estimated duration of each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction

from tilec.ir.tile import Kernel, Raster
from tilec.passes.cost.estimate import BlockEstimate

Y_FIRST = Raster(1, by_rows=False)
MAX_TILES = 1 << 14
"""The largest grid for which the duration of each block is estimated."""
LEAST_GAIN = Fraction(1, 100)
"""The fraction of the cycles or of the bytes that an order of blocks has to save."""


def simulate_dynamic(durations: Sequence[int], at_once: int) -> int:
    """Return the time at which the last tile is done, if each begins in order where one has ended."""
    free = [0] * at_once
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def simulate_persistent(tiles: Sequence[BlockEstimate], at_once: int, is_dealt: bool) -> int:
    """Return the same time for persistent blocks, which load their next tile while they store the last one: by a fixed
    stride, or, if `is_dealt`, scheduled dynamically."""
    later = (each.cycles - min(each.filling, each.around) for each in tiles[at_once:])
    durations = [*(each.cycles for each in tiles[:at_once]), *later]
    if is_dealt:
        return simulate_dynamic(durations, at_once)
    return max(sum(durations[first::at_once]) for first in range(at_once))


def order_by_columns(kernel: Kernel, tiles: Sequence[BlockEstimate]) -> list[BlockEstimate]:
    """Return the blocks along y first."""
    width, depth = (extent for extent in kernel.grid[:2] if isinstance(extent, int))
    layers = [tiles[first : first + width * depth] for first in range(0, len(tiles), width * depth)]
    return [each for layer in layers for x in range(width) for each in layer[x::width]]
