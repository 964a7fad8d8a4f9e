"""Decisions about the grid: which blocks run, and in which order.

The kernel or the command line may fix each. Otherwise the compiler decides whether as many blocks as run at once walk
over all (`grid.persistent`), in which order blocks go over the grid (`grid.rasterisation_order`), and how a persistent
block gets its next tile. `choices.cluster` decides about clusters. Clusters and order are decisions of -O3.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from tilec.ir.tile import Kernel, Raster
from tilec.passes.analysis.cluster_launch_control import asks_for_blocks
from tilec.passes.choices.question import Candidate, Outcome, Question, ruled
from tilec.passes.cost.estimate import Tile, tiles_in_order
from tilec.passes.grid.persistent import (
    blocks_at_once,
    dynamically_scheduled,
    persistent,
    why_not_dynamically_scheduled,
    why_not_persistent,
)
from tilec.passes.grid.rasterisation_order import (
    best_raster,
    fits_cache,
    has_own_order,
    in_blocks,
    walk_of,
)
from tilec.passes.grid.rasterise import AS_NUMBERED, in_clusters
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.load_footprints import Footprint, footprints
from tilec.support.options import MAY_DECIDE, CompileOptions
from tilec.target.table import Target

LOSES_ROLES = "with a loop over blocks the kernel would lose its producer warp"
_COLUMNS = Raster(1, by_rows=False)
MOST_TILES = 1 << 14
"""The largest grid for which the duration of each block is estimated."""
LEAST_GAIN = Fraction(1, 100)
"""The fraction of the bytes that waves touch which an order of blocks has to save."""


# ---- persistent grid -------------------------------------------------------------------------------------------------


def persistence(
    kernel: Kernel, assignment: LayoutAssignment, target: Target, options: CompileOptions, against: str | None
) -> Question[bool]:
    """Ask whether as many blocks as run at once walk over the grid. `assignment` is the kernel as written, with
    layouts; `against` is a reason found later why they cannot."""
    at_once = blocks_at_once(target, kernel.cluster.blocks)
    stays = Candidate("no", lambda: False, "--no-persistent")
    if not options.persistent:
        return ruled("persistent grid", "the command line", "--no-persistent", stays)
    if against is None:
        against = "no warp only loads, and so could begin with the next block's tiles"
        if assignment.form == "warp_specialised":
            against = why_not_persistent(kernel, at_once)
    if against is not None:
        return ruled("persistent grid", "the compiler", against, stays)
    blocks = " × ".join(str(e) if isinstance(e, int) else "?" for e in kernel.grid)
    option = f"--tile-scheduler {options.tile_scheduler if options.tile_scheduler != 'auto' else 'static'}"
    walks = Candidate(f"{at_once} blocks walk over {blocks}", lambda: True, option)
    if options.tile_scheduler != "auto":
        return ruled("persistent grid", "the command line", option, walks, stays)
    why = "a block loads its next tile while it computes and stores the last"
    tiles = tiles_in_order(assignment, target, MOST_TILES)
    if tiles is None:
        return ruled("persistent grid", "the compiler", why, walks, stays)
    is_dealt = why_not_dynamically_scheduled(kernel, target) is None
    # If blocks differ in duration, the hardware's scheduler absorbs errors of the estimate, a static stride does not:
    # causal attention whose two prices are alike is 2 to 6 % slower on an H200 with a persistent grid.
    is_even = len({each.cycles for each in tiles}) == 1
    order = (walks, stays) if is_even or is_dealt else (stays, walks)

    def cycles(are_walked: bool) -> int:
        return _walked(tiles, at_once, is_dealt) if are_walked else _dealt([each.cycles for each in tiles], at_once)

    def explain(outcome: Outcome) -> str:
        if outcome.chosen == walks.answer:
            return why
        return f"its blocks differ in length: of {at_once} that go on by one stride, some would have much more to do"

    return Question("persistent grid", order, price=cycles, explain=explain, least_gain=LEAST_GAIN)


def _dealt(durations: Sequence[int], at_once: int) -> int:
    """Return the time at which the last tile is done, if each begins in order where one has ended."""
    free = [0] * at_once
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def _walked(tiles: Sequence[Tile], at_once: int, is_dealt: bool) -> int:
    """Return the same time for persistent blocks, which load their next tile while they store the last one: by a fixed
    stride, or, if `is_dealt`, scheduled dynamically."""
    later = (each.cycles - min(each.filling, each.around) for each in tiles[at_once:])
    durations = [*(each.cycles for each in tiles[:at_once]), *later]
    if is_dealt:
        return _dealt(durations, at_once)
    return max(sum(durations[first::at_once]) for first in range(at_once))


def next_tiles(
    kernel: Kernel, assignment: LayoutAssignment, target: Target, options: CompileOptions
) -> Question[Kernel]:
    """Ask how a block of a persistent grid gets its next tile."""
    requested = options.tile_scheduler
    static = Candidate("static", lambda: by_stride(kernel, target), "--tile-scheduler static")
    if requested == "static":
        return ruled("tile scheduler", "the command line", "--tile-scheduler static", static)
    if reason := why_not_dynamically_scheduled(kernel, target):
        return ruled("tile scheduler", "the compiler", reason, static)
    by_machine = dynamically_scheduled(kernel)
    dynamic = Candidate("launch control", lambda: by_machine, "--tile-scheduler launch-control")
    if requested != "auto":
        return ruled("tile scheduler", "the command line", f"--tile-scheduler {requested}", dynamic, static)
    why = "a block that is done early, or could begin early, does more of the tiles (as in CUTLASS, by default)"
    tiles = tiles_in_order(replace(assignment, kernel=kernel), target, MOST_TILES)
    if tiles is None:
        return ruled("tile scheduler", "the compiler", why, dynamic, static)
    in_order = _y_first(kernel, tiles) if kernel.raster == _COLUMNS else tiles
    at_once = blocks_at_once(target, kernel.cluster.blocks)
    return Question(
        "tile scheduler",
        (dynamic, static),
        price=lambda made: _walked(in_order, at_once, is_dealt=made is by_machine),
        explain=lambda outcome: why if outcome.chosen == dynamic.answer else "a fixed stride ends sooner",
        least_gain=LEAST_GAIN,
    )


def by_stride(kernel: Kernel, target: Target) -> Kernel:
    """Return the kernel whose persistent blocks advance by the number of blocks that run at once."""
    return persistent(kernel, blocks_at_once(target, kernel.cluster.blocks))


# ---- order -----------------------------------------------------------------------------------------------------------


def rasterisation(
    kernel: Kernel, assignment: LayoutAssignment, target: Target, options: CompileOptions, *, walks: bool = False
) -> Question[Kernel]:
    """Ask in which order blocks, persistent if they `walk`, go over the grid."""

    def plain(why: str) -> Question[Kernel]:
        return ruled("rasterisation", "the compiler", why, Candidate("x first", lambda: kernel))

    def with_raster(raster: Raster | None) -> Kernel:
        return kernel if raster == kernel.raster else replace(kernel, raster=raster)

    x_first = Candidate("x first", partial(with_raster, None), "--rasterisation none")
    if kernel.raster is not None:
        return ruled("rasterisation", "the kernel", "T.use_swizzle", Candidate(_show(kernel.raster), lambda: kernel))
    if asks_for_blocks(kernel):
        return plain("blocks ask for others' work by the numbers that the machine gives them")
    if options.rasterisation == 0:
        return ruled("rasterisation", "the command line", "--rasterisation none", x_first)
    if len(kernel.grid) < 2 or 1 in kernel.grid[:2]:
        return plain("the grid is a line of blocks")
    loads, at_once = footprints(assignment.kernel), blocks_at_once(target, kernel.cluster.blocks)
    if options.rasterisation is not None:
        raster = _given(kernel, loads, at_once, options.rasterisation)
        given = Candidate(_show(raster), partial(with_raster, raster), f"--rasterisation {options.rasterisation}")
        return ruled("rasterisation", "the command line", f"--rasterisation {options.rasterisation}", given, x_first)
    if options.opt_level < MAY_DECIDE:
        return plain(f"decided from -O{MAY_DECIDE} on")
    if assignment.roles:
        return plain("the kernel has explicit roles")
    if has_own_order(kernel):
        return plain("blocks may wait for others that were begun before them")
    if not walks or why_not_dynamically_scheduled(kernel, target) is None:
        by_length = _longest_first(kernel, assignment, target, at_once, x_first, with_raster)
        if by_length is not None:
            return by_length
    if any(strip.by_data for strip in loads):
        return plain("which tiles a block loads depends on elements of a tensor")
    if fits_cache(kernel, target):
        return plain("all tensors together fit into the L2 cache")
    walk = walk_of(kernel, loads, at_once)
    waves = -(-walk.tiles // walk.at_once)
    best = best_raster(walk)
    if best == AS_NUMBERED:
        return plain("all blocks run at once" if waves == 1 else "no other order lets a wave touch less of the tensors")
    raster = in_blocks(best, kernel.cluster.extents)
    panels = Candidate(_show(raster), partial(with_raster, raster), f"--rasterisation {raster.panel}")
    touched = walk.bytes_of_waves(AS_NUMBERED), walk.bytes_of_waves(best)

    def explain(outcome: Outcome) -> str:
        if outcome.chosen == "x first":
            return "no other order lets a wave touch less of the tensors"
        before, after = (each / waves / 2**20 for each in touched)
        return f"a wave of {at_once} blocks touches {after:.1f} MiB of the tensors, and {before:.1f} MiB with x first"

    def cycles(ordered: Kernel) -> int:
        return -(-touched[ordered.raster is not None] // target.limit("dram_bytes_per_cycle"))

    return Question("rasterisation", (x_first, panels), price=cycles, explain=explain, least_gain=LEAST_GAIN)


def _longest_first(
    kernel: Kernel,
    assignment: LayoutAssignment,
    target: Target,
    at_once: int,
    x_first: Candidate[Kernel],
    with_raster: Callable[[Raster | None], Kernel],
) -> Question[Kernel] | None:
    """Ask whether blocks go along y first, where the duration of a block depends on x and the first ones take longest:
    then no long block begins when all others are nearly done (FlashAttention-3 orders its causal tiles so). Additional
    loads of the waves are added. None where it saves nothing."""
    tiles = tiles_in_order(assignment, target, MOST_TILES)
    if tiles is None or kernel.cluster.blocks > 1 or len({each.cycles for each in tiles}) < 2:
        return None
    before, after = (_dealt([each.cycles for each in order], at_once) for order in (tiles, _y_first(kernel, tiles)))
    if not fits_cache(kernel, target):
        walk = walk_of(kernel, footprints(assignment.kernel), at_once)
        more = walk.bytes_of_waves(_COLUMNS) - walk.bytes_of_waves(AS_NUMBERED)
        after += max(more, 0) // target.limit("dram_bytes_per_cycle")
    if after > before * (1 - LEAST_GAIN):
        return None
    return Question(
        "rasterisation",
        (x_first, Candidate(_show(_COLUMNS), partial(with_raster, _COLUMNS), None)),
        price=lambda ordered: before if ordered.raster is None else after,
        explain=lambda _: "its blocks differ in length, and those that take longest begin first",
        least_gain=LEAST_GAIN,
    )


def _y_first(kernel: Kernel, tiles: Sequence[Tile]) -> list[Tile]:
    width, depth = (extent for extent in kernel.grid[:2] if isinstance(extent, int))
    layers = [tiles[first : first + width * depth] for first in range(0, len(tiles), width * depth)]
    return [each for layer in layers for x in range(width) for each in layer[x::width]]


def _given(kernel: Kernel, loads: tuple[Footprint, ...], at_once: int, panel: int) -> Raster:
    """Return panels of this many rows, or of as many columns if waves then touch fewer bytes."""
    walk = walk_of(kernel, loads, at_once)
    rows, columns = Raster(panel), Raster(panel, by_rows=False)
    cost = [walk.bytes_of_waves(in_clusters(raster, kernel.cluster.extents)) for raster in (rows, columns)]
    return columns if cost[1] < cost[0] else rows


def _show(raster: Raster) -> str:
    if not raster.panel:
        return "x first"
    if raster == _COLUMNS:
        return "y first"
    return f"panels of {raster.panel} {'rows' if raster.by_rows else 'columns'}"
