"""Pass: count the bytes that the blocks of a grid read from DRAM, in the order that was decided.

Blocks that run at once, a wave, read the parts of tensors that they share once. A later wave finds such a part in the
L2 cache unless others have replaced it in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from tilec.ir.tile import Kernel, Raster
from tilec.passes.grid.persistent import blocks_at_once
from tilec.passes.grid.rasterisation_order import GridWalk, build_grid_walk, fits_in_cache, list_places
from tilec.passes.grid.rasterise import AS_NUMBERED, scale_to_clusters
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.load_footprints import find_load_footprints
from tilec.target.table import Target

COPIES = 2
"""How often the L2 cache holds what all multiprocessors read: in each of its halves. With that, of products with panels
and without on an H200 (benchmarks/results/h200-2026-11-27) the slower ones read more; with a whole cache they do not.
"""
MAX_COUNTED_WAVES = 16
"""The most waves that are counted; the others of a large grid count as these do in the mean."""


def count_dram_reads(kernel: Kernel, assignment: LayoutAssignment, target: Target, residency: int) -> int | None:
    """Return the bytes that the copies of all blocks read from DRAM, or None where each byte is read once.

    That is taken for grids of one wave, and where all tensors fit into the L2 cache together; and for what is unknown:
    grids that are known at launch only, and those of three dimensions, whose blocks often share what quotients of their
    numbers select, which footprints do not see.
    """
    if not all(isinstance(extent, int) for extent in kernel.grid) or fits_in_cache(kernel, target):
        return None
    read = [each for each in find_load_footprints(assignment.kernel) if not each.is_gathered]
    loads = {(each.tensor, each.place, each.bytes): each for each in read}.values()
    at_once = residency * blocks_at_once(target, kernel.cluster.blocks)
    walk = build_grid_walk(kernel, tuple(replace(each, axes=each.likely_axes) for each in loads), at_once)
    if walk.tiles <= walk.at_once or walk.height > 1:
        return None
    raster = scale_to_clusters(kernel.raster or AS_NUMBERED, kernel.cluster.extents)
    return count_missed_bytes(walk, raster, target.limit("l2_bytes") // COPIES)


def count_repeated_bytes(kernel: Kernel, blocks: int, at_once: int, cache_bytes: int) -> int:
    """Return the bytes that blocks read from DRAM once more: parts of tensors that each block reads for itself, by two
    copies, between which as many blocks as run at once read more than the cache holds."""
    loads = Counter((each.tensor, each.place, each.axes, each.bytes) for each in find_load_footprints(kernel))
    split = {axis for axis, extent in zip("xyz", kernel.grid, strict=False) if extent != 1}
    repeated = 0.0
    for (*_, axes, size), times in loads.items():
        if times > 1 and split <= set(axes):
            is_kept = min(cache_bytes / max(at_once * size, 1), 1.0)
            repeated += (times - 1) * size * blocks * (1 - is_kept)
    return round(repeated)


def count_missed_bytes(walk: GridWalk, raster: Raster, cache_bytes: int) -> int:
    """Return the bytes that all waves of a grid of two dimensions read from DRAM, its tiles in the raster's order."""
    waves = -(-walk.tiles // walk.at_once)
    counted = min(waves, MAX_COUNTED_WAVES)
    return sum(islice(_list_misses(walk, raster, cache_bytes), counted)) * waves // counted


def _list_misses(walk: GridWalk, raster: Raster, cache_bytes: int) -> Iterator[int]:
    """Yield the bytes that each wave reads from DRAM. A part of a tensor that was last read so many bytes ago is still
    in the cache with the probability cache size / distance, as if lines were replaced at random: on an H200 8 grouped
    products, each wave of which touches 115 MB, read 56 % of what is touched from DRAM."""
    loads = enumerate(walk.footprints)
    axes = [(at, tuple("xy".index(axis) for axis in each.axes if axis != "z")) for at, each in loads]
    last_read: dict[tuple[int, ...], int] = {}
    places, touched = list_places(walk.width, walk.depth, raster), 0
    for first in range(0, len(places), walk.at_once):
        wave = places[first : first + walk.at_once]
        parts = {(at, *(tile[axis] for axis in on)) for tile in wave for at, on in axes}
        missed = 0.0
        for part in parts:
            distance = touched - last_read[part] if part in last_read else None
            is_kept = 0.0 if distance is None else min(cache_bytes / max(distance, 1), 1.0)
            missed += walk.footprints[part[0]].bytes * (1 - is_kept)
        last_read.update(dict.fromkeys(parts, touched))
        touched += sum(walk.footprints[part[0]].bytes for part in parts)
        yield round(missed)
