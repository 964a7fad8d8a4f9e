"""The time that a grid's blocks take in an order, from the estimated duration of each."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tilec.ir.tile import Kernel, Raster
from tilec.passes.cost.estimate import BlockEstimate
from tilec.passes.cost.model import simulate_dynamic
from tilec.passes.grid.rasterisation_order import list_places

Y_FIRST = Raster(1, by_rows=False)
MAX_TILES = 1 << 14
"""The largest grid for which the duration of each block is estimated."""
BALANCING = (Y_FIRST, Raster(2), Raster(4), Raster(8))
"""The orders that let blocks of unlike length end together: along y, or in low panels of rows. Every other panel goes
backwards, so that lengths that grow along x fall again."""
LEAST_GAIN = Fraction(1, 100)
"""The fraction of the cycles or of the bytes that an order of blocks has to save."""


def simulate_persistent(tiles: Sequence[BlockEstimate], at_once: int, is_dealt: bool) -> int:
    """Return the same time for persistent blocks, which load their next tile while they store the last one: by a fixed
    stride, or, if `is_dealt`, scheduled dynamically."""
    later = (each.cycles - min(each.filling, each.around) for each in tiles[at_once:])
    durations = [*(each.cycles for each in tiles[:at_once]), *later]
    if is_dealt:
        return simulate_dynamic(durations, at_once)
    return max(sum(durations[first::at_once]) for first in range(at_once))


def order_blocks(kernel: Kernel, tiles: Sequence[BlockEstimate], raster: Raster) -> list[BlockEstimate]:
    """Return the tiles of a grid, given in numbering order, in the order of a raster: for clusters, each cluster's
    longest block."""
    width, depth = (extent for extent in (*kernel.grid, 1)[:2] if isinstance(extent, int))
    across, along, _ = kernel.cluster.extents
    places = list_places(width // across, depth // along, raster)
    found = []
    for first in range(0, len(tiles), width * depth):
        for x, y in places:
            begins = (first + (y * along + row) * width + x * across for row in range(along))
            found.append(max((tile for at in begins for tile in tiles[at : at + across]), key=lambda one: one.cycles))
    return found
