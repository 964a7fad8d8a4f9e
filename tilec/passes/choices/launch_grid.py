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
from tilec.passes.analysis.cluster_launch_control import has_block_requests
from tilec.passes.choices.question import Candidate, Outcome, Question, make_ruled_question
from tilec.passes.cost.estimate import BlockEstimate, estimate_blocks
from tilec.passes.grid.persistent import (
    blocks_at_once,
    make_persistent,
    schedule_tiles_dynamically,
    why_not_dynamically_scheduled,
    why_not_persistent,
)
from tilec.passes.grid.rasterisation_order import (
    build_grid_walk,
    find_best_raster,
    fits_in_cache,
    has_own_order,
    scale_to_blocks,
)
from tilec.passes.grid.rasterise import AS_NUMBERED, scale_to_clusters
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.load_footprints import LoadFootprint, find_load_footprints
from tilec.support.options import DECIDING_LEVEL, CompileOptions
from tilec.target.table import Target

LOSES_ROLES = "a persistent grid would cost the kernel its producer warp"
_Y_FIRST = Raster(1, by_rows=False)
MAX_TILES = 1 << 14
"""The largest grid for which the duration of each block is estimated."""
LEAST_GAIN = Fraction(1, 100)
"""The fraction of the bytes that waves touch which an order of blocks has to save."""


# ---- persistent grid -------------------------------------------------------------------------------------------------


def choose_persistent_grid(
    kernel: Kernel, assignment: LayoutAssignment, target: Target, options: CompileOptions, against: str | None
) -> Question[bool]:
    """Ask whether as many blocks as run at once walk over the grid. `assignment` is the kernel as written, with
    layouts; `against` is a reason found later why they cannot."""
    at_once = blocks_at_once(target, kernel.cluster.blocks)
    stays = Candidate("no", lambda: False, "--no-persistent")
    if not options.persistent:
        return make_ruled_question("persistent grid", "the command line", "--no-persistent", stays)
    if against is None:
        against = "without a producer warp no loads of the next tile start early"
        if assignment.form == "warp_specialised":
            against = why_not_persistent(kernel, at_once)
    if against is not None:
        return make_ruled_question("persistent grid", "the compiler", against, stays)
    blocks = " × ".join(str(e) if isinstance(e, int) else "?" for e in kernel.grid)
    option = f"--tile-scheduler {options.tile_scheduler if options.tile_scheduler != 'auto' else 'static'}"
    walks = Candidate(f"{at_once} blocks walk over {blocks}", lambda: True, option)
    if options.tile_scheduler != "auto":
        return make_ruled_question("persistent grid", "the command line", option, walks, stays)
    why = "a block loads its next tile while it computes and stores the last"
    tiles = estimate_blocks(assignment, target, MAX_TILES)
    if tiles is None:
        return make_ruled_question("persistent grid", "the compiler", why, walks, stays)
    is_dealt = why_not_dynamically_scheduled(kernel, target) is None
    # If blocks differ in duration, the hardware's scheduler absorbs errors of the estimate, a static stride does not:
    # causal attention whose two prices are alike is 2 to 6 % slower on an H200 with a persistent grid.
    is_even = len({each.cycles for each in tiles}) == 1
    order = (walks, stays) if is_even or is_dealt else (stays, walks)

    def count_cycles(are_walked: bool) -> int:
        return (
            _simulate_persistent(tiles, at_once, is_dealt)
            if are_walked
            else _simulate_dynamic([each.cycles for each in tiles], at_once)
        )

    def explain_outcome(outcome: Outcome) -> str:
        if outcome.chosen == walks.answer:
            return why
        return (
            f"its blocks differ in length: with a static stride some of {at_once} persistent blocks would get "
            "much more work"
        )

    return Question("persistent grid", order, price=count_cycles, explain=explain_outcome, least_gain=LEAST_GAIN)


def _simulate_dynamic(durations: Sequence[int], at_once: int) -> int:
    """Return the time at which the last tile is done, if each begins in order where one has ended."""
    free = [0] * at_once
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def _simulate_persistent(tiles: Sequence[BlockEstimate], at_once: int, is_dealt: bool) -> int:
    """Return the same time for persistent blocks, which load their next tile while they store the last one: by a fixed
    stride, or, if `is_dealt`, scheduled dynamically."""
    later = (each.cycles - min(each.filling, each.around) for each in tiles[at_once:])
    durations = [*(each.cycles for each in tiles[:at_once]), *later]
    if is_dealt:
        return _simulate_dynamic(durations, at_once)
    return max(sum(durations[first::at_once]) for first in range(at_once))


def choose_tile_scheduler(
    kernel: Kernel, assignment: LayoutAssignment, target: Target, options: CompileOptions
) -> Question[Kernel]:
    """Ask how a block of a persistent grid gets its next tile."""
    requested = options.tile_scheduler
    static = Candidate("static", lambda: schedule_tiles_statically(kernel, target), "--tile-scheduler static")
    if requested == "static":
        return make_ruled_question("tile scheduler", "the command line", "--tile-scheduler static", static)
    if reason := why_not_dynamically_scheduled(kernel, target):
        return make_ruled_question("tile scheduler", "the compiler", reason, static)
    by_machine = schedule_tiles_dynamically(kernel)
    dynamic = Candidate("launch control", lambda: by_machine, "--tile-scheduler launch-control")
    if requested != "auto":
        return make_ruled_question(
            "tile scheduler", "the command line", f"--tile-scheduler {requested}", dynamic, static
        )
    why = "a block that ends early, or could start early, gets more tiles (the default of CUTLASS)"
    tiles = estimate_blocks(replace(assignment, kernel=kernel), target, MAX_TILES)
    if tiles is None:
        return make_ruled_question("tile scheduler", "the compiler", why, dynamic, static)
    in_order = _order_by_columns(kernel, tiles) if kernel.raster == _Y_FIRST else tiles
    at_once = blocks_at_once(target, kernel.cluster.blocks)
    return Question(
        "tile scheduler",
        (dynamic, static),
        price=lambda made: _simulate_persistent(in_order, at_once, is_dealt=made is by_machine),
        explain=lambda outcome: why if outcome.chosen == dynamic.answer else "a static stride ends sooner",
        least_gain=LEAST_GAIN,
    )


def schedule_tiles_statically(kernel: Kernel, target: Target) -> Kernel:
    """Return the kernel whose persistent blocks advance by the number of blocks that run at once."""
    return make_persistent(kernel, blocks_at_once(target, kernel.cluster.blocks))


# ---- order -----------------------------------------------------------------------------------------------------------


def choose_rasterisation(
    kernel: Kernel, assignment: LayoutAssignment, target: Target, options: CompileOptions, *, walks: bool = False
) -> Question[Kernel]:
    """Ask in which order blocks, persistent if they `walk`, go over the grid."""

    def keep_order(why: str) -> Question[Kernel]:
        return make_ruled_question("rasterisation", "the compiler", why, Candidate("x first", lambda: kernel))

    def set_raster(raster: Raster | None) -> Kernel:
        return kernel if raster == kernel.raster else replace(kernel, raster=raster)

    x_first = Candidate("x first", partial(set_raster, None), "--rasterisation none")
    if kernel.raster is not None:
        return make_ruled_question(
            "rasterisation", "the kernel", "T.use_swizzle", Candidate(_show_raster(kernel.raster), lambda: kernel)
        )
    if has_block_requests(kernel):
        return keep_order("the kernel uses cluster launch control, whose block numbers are the hardware's")
    if options.rasterisation == 0:
        return make_ruled_question("rasterisation", "the command line", "--rasterisation none", x_first)
    if len(kernel.grid) < 2 or 1 in kernel.grid[:2]:
        return keep_order("the grid has one dimension")
    loads, at_once = find_load_footprints(assignment.kernel), blocks_at_once(target, kernel.cluster.blocks)
    if options.rasterisation is not None:
        raster = _choose_panel_axis(kernel, loads, at_once, options.rasterisation)
        given = Candidate(_show_raster(raster), partial(set_raster, raster), f"--rasterisation {options.rasterisation}")
        return make_ruled_question(
            "rasterisation", "the command line", f"--rasterisation {options.rasterisation}", given, x_first
        )
    if options.opt_level < DECIDING_LEVEL:
        return keep_order(f"decided from -O{DECIDING_LEVEL} on")
    if assignment.roles:
        return keep_order("the kernel has explicit roles")
    if has_own_order(kernel):
        return keep_order("blocks may wait for earlier blocks")
    if not walks or why_not_dynamically_scheduled(kernel, target) is None:
        by_length = _choose_longest_first(kernel, assignment, target, at_once, x_first, set_raster)
        if by_length is not None:
            return by_length
    if any(strip.by_data for strip in loads):
        return keep_order("the tiles that a block loads depend on elements of a tensor")
    if fits_in_cache(kernel, target):
        return keep_order("all tensors together fit into the L2 cache")
    walk = build_grid_walk(kernel, loads, at_once)
    waves = -(-walk.tiles // walk.at_once)
    best = find_best_raster(walk)
    if best == AS_NUMBERED:
        return keep_order(
            "all blocks run at once" if waves == 1 else "no other order lets a wave read fewer bytes of the tensors"
        )
    raster = scale_to_blocks(best, kernel.cluster.extents)
    panels = Candidate(_show_raster(raster), partial(set_raster, raster), f"--rasterisation {raster.panel}")
    touched = walk.count_bytes_of_waves(AS_NUMBERED), walk.count_bytes_of_waves(best)

    def explain_outcome(outcome: Outcome) -> str:
        if outcome.chosen == "x first":
            return "no other order lets a wave read fewer bytes of the tensors"
        before, after = (each / waves / 2**20 for each in touched)
        return f"a wave of {at_once} blocks touches {after:.1f} MiB of the tensors; with x first {before:.1f} MiB"

    def count_cycles(ordered: Kernel) -> int:
        return -(-touched[ordered.raster is not None] // target.limit("dram_bytes_per_cycle"))

    return Question(
        "rasterisation", (x_first, panels), price=count_cycles, explain=explain_outcome, least_gain=LEAST_GAIN
    )


def _choose_longest_first(
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
    tiles = estimate_blocks(assignment, target, MAX_TILES)
    if tiles is None or kernel.cluster.blocks > 1 or len({each.cycles for each in tiles}) < 2:
        return None
    before, after = (
        _simulate_dynamic([each.cycles for each in order], at_once)
        for order in (tiles, _order_by_columns(kernel, tiles))
    )
    if not fits_in_cache(kernel, target):
        walk = build_grid_walk(kernel, find_load_footprints(assignment.kernel), at_once)
        more = walk.count_bytes_of_waves(_Y_FIRST) - walk.count_bytes_of_waves(AS_NUMBERED)
        after += max(more, 0) // target.limit("dram_bytes_per_cycle")
    if after > before * (1 - LEAST_GAIN):
        return None
    return Question(
        "rasterisation",
        (x_first, Candidate(_show_raster(_Y_FIRST), partial(with_raster, _Y_FIRST), None)),
        price=lambda ordered: before if ordered.raster is None else after,
        explain=lambda _: "its blocks differ in length, and the longest start first",
        least_gain=LEAST_GAIN,
    )


def _order_by_columns(kernel: Kernel, tiles: Sequence[BlockEstimate]) -> list[BlockEstimate]:
    width, depth = (extent for extent in kernel.grid[:2] if isinstance(extent, int))
    layers = [tiles[first : first + width * depth] for first in range(0, len(tiles), width * depth)]
    return [each for layer in layers for x in range(width) for each in layer[x::width]]


def _choose_panel_axis(kernel: Kernel, loads: tuple[LoadFootprint, ...], at_once: int, panel: int) -> Raster:
    """Return panels of this many rows, or of as many columns if waves then touch fewer bytes."""
    walk = build_grid_walk(kernel, loads, at_once)
    rows, columns = Raster(panel), Raster(panel, by_rows=False)
    cost = [walk.count_bytes_of_waves(scale_to_clusters(raster, kernel.cluster.extents)) for raster in (rows, columns)]
    return columns if cost[1] < cost[0] else rows


def _show_raster(raster: Raster) -> str:
    if not raster.panel:
        return "x first"
    if raster == _Y_FIRST:
        return "y first"
    return f"panels of {raster.panel} {'rows' if raster.by_rows else 'columns'}"
