"""In which order blocks should walk over a grid, for the sake of the L2 cache.

The blocks that run at once, a wave, go through the depth of a product in step, so the L2 cache serves as many loads of
a footprint from one read of the memory as there are blocks of the wave in its row or column. What a wave reads of the
memory is therefore the distinct rows and columns that it touches: for n blocks that stand in h rows, h footprints of A
and n / h of B, fewest near h = √(n · bytes of a footprint of B / bytes of one of A). Numbered as CUDA does, x first, a
wave of a wide grid stands in few rows and as many columns as it has blocks; in panels of h rows it is about as wide as
high (Hopper's CUTLASS and Triton's matmul tutorial do the same under the names of swizzle and grouped ordering).

The model counts those footprints for each wave by itself, exactly, for all panels near the best height, and takes the
fewest bytes in all. Where everything that the kernel touches fits into the cache together, each byte is read once in
any order, and the plain one costs no arithmetic. An order along Hilbert's curve is not among the candidates: a
stretch of it is no squarer than a wave in panels of the best height, and a test counts that on all grids of powers of
two it touches no fewer bytes; it would take a loop over bits, or a table, for each tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from tilec.ir import tile
from tilec.passes.grid.rasterise import AS_NUMBERED
from tilec.passes.memory.load_footprints import Footprint
from tilec.support.records import dataclass
from tilec.target.table import Target

UNKNOWN_EXTENT = 64
"""Blocks along an axis of which only the launch knows how many there are: 8192 rows, in tiles of 128."""
MOST_WAVES = 16
"""That candidates are compared on; the best of them is compared with the plain order on all."""

Rectangle = tuple[int, int, int, int]
"""Of tiles: the first column and the one past the last, and so for rows."""


@dataclass(frozen=True, slots=True)
class Walk:
    """`width` × `depth` × `height` tiles, of which `at_once` make a wave, and the footprints that each of them
    reads."""

    width: int
    depth: int
    height: int
    at_once: int
    footprints: tuple[Footprint, ...]

    @property
    def tiles(self) -> int:
        return self.width * self.depth * self.height

    def bytes_of_waves(self, raster: tile.Raster, most: int | None = None) -> int:
        """The bytes of the distinct footprints that waves touch, each wave by itself, summed over the first so many."""
        firsts = range(0, self.tiles, self.at_once)[:most]
        return sum(self.bytes_of(raster, first, min(first + self.at_once, self.tiles)) for first in firsts)

    def bytes_of(self, raster: tile.Raster, first: int, last: int) -> int:
        """Those of the tiles with the numbers `first` to `last`, which is not among them."""
        area = self.width * self.depth
        layers = range(first // area, (last - 1) // area + 1)
        found = [
            tuple(rectangles(self.width, self.depth, raster, max(first - z * area, 0), min(last - z * area, area)))
            for z in layers
        ]
        return sum(footprint.bytes * _distinct(footprint.axes, found, last - first) for footprint in self.footprints)


def rectangles(width: int, depth: int, raster: tile.Raster, first: int, last: int) -> Iterator[Rectangle]:
    """The tiles with the numbers from `first` up to `last` of a layer, as `rasterise.tile_at` places them."""
    across, along = (width, depth) if raster.by_rows else (depth, width)
    panel = raster.panel or 1
    while first < last:
        which = first // (across * panel)
        begin = which * across * panel
        end = min(last, begin + across * panel)
        low, height = which * panel, min(panel, along - which * panel)
        (left, top), (right, bottom) = divmod(first - begin, height), divmod(end - 1 - begin, height)
        pieces = [(left, left + 1, top, height), (left + 1, right, 0, height), (right, right + 1, 0, bottom + 1)]
        for begins, ends, above, below in [(left, left + 1, top, bottom + 1)] if left == right else pieces:
            if begins < ends:
                is_reversed = raster.panel and which % 2
                columns = (across - ends, across - begins) if is_reversed else (begins, ends)
                rows = (low + above, low + below)
                yield (*columns, *rows) if raster.by_rows else (*rows, *columns)
        first = end


def _distinct(axes: str, layers: Sequence[tuple[Rectangle, ...]], tiles: int) -> int:
    """How many footprints those are that depend on these indices of a tile."""
    if "x" in axes and "y" in axes:
        return tiles
    if "x" not in axes and "y" not in axes:
        return len(layers) if "z" in axes else 1
    spans = [[(t[0], t[1]) if "x" in axes else (t[2], t[3]) for t in layer] for layer in layers]
    return sum(map(_covered, spans)) if "z" in axes else _covered([span for layer in spans for span in layer])


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """The length of their union."""
    total, end = 0, 0
    for begin, until in sorted(spans):
        total += max(until - max(begin, end), 0)
        end = max(end, until)
    return total


def best_raster(walk: Walk) -> tile.Raster:
    """The order in which waves touch the fewest bytes: the plain one, or panels, counted in the walk's tiles."""
    if 1 in (walk.width, walk.depth) or walk.tiles <= walk.at_once:
        return AS_NUMBERED
    rows = sum(s.bytes for s in walk.footprints if "y" in s.axes and "x" not in s.axes)
    columns = sum(s.bytes for s in walk.footprints if "x" in s.axes and "y" not in s.axes)
    if not rows and not columns:
        return AS_NUMBERED
    candidates = [
        tile.Raster(panel, by_rows)
        for by_rows, along, own, other in ((True, walk.depth, rows, columns), (False, walk.width, columns, rows))
        for panel in _heights(math.isqrt(walk.at_once * other // own) if own else along, along)
    ]
    cost = {raster: walk.bytes_of_waves(raster, MOST_WAVES) for raster in candidates}
    best = min(candidates, key=lambda raster: (_with_division(walk, raster, cost[raster]), not raster.by_rows))
    return best if walk.bytes_of_waves(best) < walk.bytes_of_waves(AS_NUMBERED) else AS_NUMBERED


def _with_division(walk: Walk, raster: tile.Raster, cost: int) -> int:
    """A last panel of another height makes each block divide by a number that it computes: not for a fiftieth."""
    along = walk.depth if raster.by_rows else walk.width
    return cost + cost // 50 if along % raster.panel else cost


def _heights(ideal: int, along: int) -> range:
    """Those near the ideal one of panels along an extent of so many tiles."""
    ideal = min(max(ideal, 1), along)
    return range(max(ideal * 2 // 3, 1), min(ideal * 3 // 2 + 1, along) + 1)


def walk_of(kernel: tile.Kernel, of: Sequence[Footprint], at_once: int) -> Walk:
    """The walk over the clusters of a grid, of whose blocks so many run at once: clusters are its tiles."""
    extents = (*(e if isinstance(e, int) else UNKNOWN_EXTENT for e in kernel.grid), 1, 1)[:3]
    width, depth, height = (max(e // size, 1) for e, size in zip(extents, kernel.cluster.extents, strict=True))
    sizes = dict(zip("xyz", kernel.cluster.extents, strict=True))
    whole = (Footprint(s.tile, s.axes, s.bytes * math.prod(sizes[axis] for axis in s.axes)) for s in of)
    return Walk(width, depth, height, max(at_once // kernel.cluster.blocks, 1), tuple(whole))


def in_blocks(raster: tile.Raster, cluster: Sequence[int]) -> tile.Raster:
    """The order of clusters as one of blocks."""
    return tile.Raster(raster.panel * cluster[1 if raster.by_rows else 0], raster.by_rows)


def fits_cache(kernel: tile.Kernel, target: Target) -> bool:
    """Whether all tensors fit into the L2 cache at the same time."""
    tensors = [p for p in kernel.params if isinstance(p, tile.Buffer)]
    if any(t.is_dynamic for t in tensors):
        return False
    return sum(math.prod(t.shape) * t.dtype.bits // 8 for t in tensors) <= target.limit("l2_bytes")


def has_own_order(kernel: tile.Kernel) -> bool:
    """Whether blocks may wait for others that were begun before them: nobody may change the order of these."""
    return any(
        isinstance(s, tile.While | tile.Break)
        or (isinstance(s, tile.Store) and s.atomic is not None and s.previous is not None)
        for s in tile.walk_statements(kernel.body)
    )
