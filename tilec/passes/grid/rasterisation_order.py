"""The order in which blocks walk over a grid that reads the fewest bytes past the L2 cache.

The blocks that run at once, a wave, go through the depth of a product in step. So one memory read of a footprint serves
all blocks of the wave in its row or column, and a wave reads the distinct rows and columns that it touches: n blocks in
h rows read h footprints of A and n / h of B, fewest near h = √(n · bytes of a footprint of B / bytes of one of A). In
CUDA's order, x first, a wave of a wide grid has few rows and as many columns as blocks. In panels of h rows it is about
as wide as high (Hopper's CUTLASS and Triton's matmul tutorial do the same under the names of swizzle and grouped
ordering).

The model counts these footprints exactly, wave by wave, for all panels near the best height, and takes the fewest bytes
in all. Where all tensors fit into the cache together, each byte is read once in any order, and the plain one costs no
arithmetic. An order along Hilbert's curve is no candidate: a stretch of it is no squarer than a wave in panels of the
best height, and a test counts that on all grids of powers of two it touches no fewer bytes; it would take a loop over
bits, or a table, for each tile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from tilec.ir import tile
from tilec.passes.grid.rasterise import AS_NUMBERED
from tilec.passes.memory.load_footprints import LoadFootprint
from tilec.support.records import dataclass
from tilec.target.table import Target

UNKNOWN_EXTENT = 64
"""The blocks assumed along an axis whose extent is known at launch only: 8192 rows, in tiles of 128."""
MAX_WAVES = 16
"""The waves on which candidates are compared; the best is compared with the plain order on all waves."""

Rectangle = tuple[int, int, int, int]
"""Tiles from a first column to one past the last, and so for rows."""


@dataclass(frozen=True, slots=True)
class GridWalk:
    """A grid of `width` × `depth` × `height` tiles, `at_once` of which make a wave, and what each tile reads."""

    width: int
    depth: int
    height: int
    at_once: int
    footprints: tuple[LoadFootprint, ...]

    @property
    def tiles(self) -> int:
        return self.width * self.depth * self.height

    def count_bytes_of_waves(self, raster: tile.Raster, most: int | None = None) -> int:
        """Return the bytes of the distinct footprints that each wave of blocks touches, summed over `most` waves or
        all."""
        firsts = range(0, self.tiles, self.at_once)[:most]
        return sum(self.count_wave_bytes(raster, first, min(first + self.at_once, self.tiles)) for first in firsts)

    def count_wave_bytes(self, raster: tile.Raster, first: int, last: int) -> int:
        """Return the bytes of the distinct footprints that the tiles numbered `first` to `last` - 1 touch."""
        area = self.width * self.depth
        found = []
        for begin in range(first // area * area, last, area):  # the first tile of each layer
            inside = max(first - begin, 0), min(last - begin, area)
            found.append(tuple(split_into_rectangles(self.width, self.depth, raster, *inside)))
        return sum(each.bytes * _count_distinct(each.axes, found, last - first) for each in self.footprints)


def list_places(width: int, depth: int, raster: tile.Raster) -> list[tuple[int, int]]:
    """Return column and row of each cluster of a grid in the order of a raster: panel by panel, every other one
    backwards (`grid.rasterise.locate_tile`)."""
    if not raster.panel:
        return [(x, y) for y in range(depth) for x in range(width)]
    across, along = (width, depth) if raster.by_rows else (depth, width)
    places = []
    for which, low in enumerate(range(0, along, raster.panel)):
        columns = range(across - 1, -1, -1) if which % 2 else range(across)
        places += [(column, row) for column in columns for row in range(low, min(low + raster.panel, along))]
    return places if raster.by_rows else [(row, column) for column, row in places]


def split_into_rectangles(width: int, depth: int, raster: tile.Raster, first: int, last: int) -> Iterator[Rectangle]:
    """Yield rectangles that cover the tiles numbered `first` to `last` - 1 of a layer in the raster's order."""
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


def _count_distinct(axes: str, layers: Sequence[tuple[Rectangle, ...]], tiles: int) -> int:
    """Count the distinct footprints that the tiles of a wave load, if a footprint depends on these grid axes."""
    if "x" in axes and "y" in axes:
        return tiles
    if "x" not in axes and "y" not in axes:
        return len(layers) if "z" in axes else 1
    spans = [[(t[0], t[1]) if "x" in axes else (t[2], t[3]) for t in layer] for layer in layers]
    return sum(map(_union_length, spans)) if "z" in axes else _union_length([span for layer in spans for span in layer])


def _union_length(spans: Iterable[tuple[int, int]]) -> int:
    """Return how many integers lie in the union of half-open ranges."""
    total, end = 0, 0
    for begin, until in sorted(spans):
        total += max(until - max(begin, end), 0)
        end = max(end, until)
    return total


def find_best_raster(walk: GridWalk) -> tile.Raster:
    """Return the raster whose waves touch the fewest bytes: panels, or the plain order where these save nothing."""
    if 1 in (walk.width, walk.depth) or walk.tiles <= walk.at_once:
        return AS_NUMBERED
    rows = sum(s.bytes for s in walk.footprints if "y" in s.axes and "x" not in s.axes)
    columns = sum(s.bytes for s in walk.footprints if "x" in s.axes and "y" not in s.axes)
    if not rows and not columns:
        return AS_NUMBERED
    candidates = [
        tile.Raster(panel, by_rows)
        for by_rows, along, own, other in ((True, walk.depth, rows, columns), (False, walk.width, columns, rows))
        for panel in _candidate_heights(math.isqrt(walk.at_once * other // own) if own else along, along)
    ]
    cost = {raster: walk.count_bytes_of_waves(raster, MAX_WAVES) for raster in candidates}
    best = min(candidates, key=lambda raster: (_add_division_cost(walk, raster, cost[raster]), not raster.by_rows))
    return best if walk.count_bytes_of_waves(best) < walk.count_bytes_of_waves(AS_NUMBERED) else AS_NUMBERED


def _add_division_cost(walk: GridWalk, raster: tile.Raster, cost: int) -> int:
    """Return the cost, a fiftieth higher if the last panel is smaller: blocks then divide by a computed number."""
    along = walk.depth if raster.by_rows else walk.width
    return cost + cost // 50 if along % raster.panel else cost


def _candidate_heights(ideal: int, along: int) -> range:
    """Return the panel heights to try: from two thirds of the ideal one to one and a half, within 1 to `along`."""
    ideal = min(max(ideal, 1), along)
    return range(max(ideal * 2 // 3, 1), min(ideal * 3 // 2 + 1, along) + 1)


def build_grid_walk(kernel: tile.Kernel, loads: Sequence[LoadFootprint], at_once: int) -> GridWalk:
    """Return the walk over a kernel's clusters as its tiles, with a guess for extents known only at launch."""
    extents = (*(e if isinstance(e, int) else UNKNOWN_EXTENT for e in kernel.grid), 1, 1)[:3]
    width, depth, height = (max(e // size, 1) for e, size in zip(extents, kernel.cluster.extents, strict=True))
    sizes = dict(zip("xyz", kernel.cluster.extents, strict=True))
    whole = (LoadFootprint(s.tile, s.axes, s.bytes * math.prod(sizes[axis] for axis in s.axes)) for s in loads)
    return GridWalk(width, depth, height, max(at_once // kernel.cluster.blocks, 1), tuple(whole))


def scale_to_blocks(raster: tile.Raster, cluster: Sequence[int]) -> tile.Raster:
    """Return the raster with its panel size counted in blocks instead of clusters."""
    return tile.Raster(raster.panel * cluster[1 if raster.by_rows else 0], raster.by_rows)


def fits_in_cache(kernel: tile.Kernel, target: Target) -> bool:
    """Return whether all tensor parameters together fit into the L2 cache; False if a size is known only at launch."""
    tensors = [p for p in kernel.params if isinstance(p, tile.Buffer)]
    if any(t.is_dynamic for t in tensors):
        return False
    return sum(math.prod(t.shape) * t.dtype.bits // 8 for t in tensors) <= target.limit("l2_bytes")


def has_own_order(kernel: tile.Kernel) -> bool:
    """Return whether the kernel has a while, a break or a fetching atomic, so that its blocks may wait for earlier
    ones."""
    return any(
        isinstance(s, tile.While | tile.Break)
        or (isinstance(s, tile.Store) and s.atomic is not None and s.previous is not None)
        for s in tile.walk_statements(kernel.body)
    )
