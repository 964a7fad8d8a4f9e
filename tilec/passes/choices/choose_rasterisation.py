"""Decision: the order in which blocks go over the grid (`grid.rasterisation_order`). It is a decision of -O3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilec.analysis.clusters import has_block_requests
from tilec.ir.tile import Kernel, Raster
from tilec.passes.choices.block_order import (
    BALANCING,
    LEAST_GAIN,
    MAX_TILES,
    Y_FIRST,
    order_blocks,
    simulate_dynamic,
    simulate_persistent,
)
from tilec.passes.choices.question import Candidate, Outcome, Question, make_ruled_question
from tilec.passes.cost.estimate import BlockEstimate, estimate_blocks
from tilec.passes.grid.persistent import blocks_at_once, why_not_dynamically_scheduled
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


def choose_rasterisation(
    kernel: Kernel,
    assignment: LayoutAssignment,
    target: Target,
    options: CompileOptions,
    is_persistent: bool,
    residency: int,
) -> Question[Kernel]:
    """Choose the order in which blocks walk the grid, for reuse in the L2 cache."""

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
    loads = find_load_footprints(assignment.kernel)
    at_once = residency * blocks_at_once(target, kernel.cluster.blocks)
    if options.rasterisation is not None:
        raster = _choose_panel_axis(kernel, loads, at_once, options.rasterisation)
        given = Candidate(_show_raster(raster), partial(set_raster, raster), f"--rasterisation {options.rasterisation}")
        return make_ruled_question(
            "rasterisation", "the command line", f"--rasterisation {options.rasterisation}", given, x_first
        )
    if options.opt_level < DECIDING_LEVEL:
        return keep_order(f"decided from -O{DECIDING_LEVEL} on")
    if has_own_order(kernel):
        return keep_order("blocks may wait for earlier blocks")
    is_dealt = not is_persistent or why_not_dynamically_scheduled(kernel, target) is None
    slots = max(at_once // kernel.cluster.blocks, 1)

    def simulate(tiles: list[BlockEstimate]) -> int:
        """Return the cycles of the grid with its blocks, or clusters, in this order."""
        if is_persistent:
            return simulate_persistent(tiles, slots, is_dealt)
        return simulate_dynamic([each.cycles for each in tiles], slots)

    by_length = _choose_balanced_order(kernel, assignment, target, simulate, at_once, x_first, set_raster)
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
        """Return why this order was chosen, in words."""
        if outcome.chosen == "x first":
            return "no other order lets a wave read fewer bytes of the tensors"
        before, after = (each / waves / 2**20 for each in touched)
        return f"a wave of {at_once} blocks touches {after:.1f} MiB of the tensors; with x first {before:.1f} MiB"

    def count_cycles(ordered: Kernel) -> int:
        return -(-touched[ordered.raster is not None] // target.limit("dram_bytes_per_cycle"))

    return Question(
        "rasterisation", (x_first, panels), price=count_cycles, explain=explain_outcome, least_gain=LEAST_GAIN
    )


def _choose_balanced_order(
    kernel: Kernel,
    assignment: LayoutAssignment,
    target: Target,
    simulate: Callable[[list[BlockEstimate]], int],
    at_once: int,
    x_first: Candidate[Kernel],
    with_raster: Callable[[Raster | None], Kernel],
) -> Question[Kernel] | None:
    """Ask in which order blocks of unlike length end together, each order priced by a simulation of the grid plus the
    loads that its waves add. None where none saves anything.

    Along y first, the longest blocks begin first where they are those of the first columns (FlashAttention-3 orders its
    causal tiles so). In low panels, of which every other one goes backwards, long blocks of one panel meet long ones of
    the next."""
    tiles = estimate_blocks(assignment, target, MAX_TILES)
    if tiles is None or len({each.cycles for each in tiles}) < 2:
        return None
    clusters, extents = order_blocks(kernel, tiles, AS_NUMBERED), kernel.cluster.extents
    slots = max(at_once // kernel.cluster.blocks, 1)
    before = simulate(clusters)
    if before * (1 - LEAST_GAIN) <= sum(each.cycles for each in clusters) // slots:
        return None
    walk = (
        None
        if fits_in_cache(kernel, target)
        else build_grid_walk(kernel, find_load_footprints(assignment.kernel), at_once)
    )
    prices: dict[Raster | None, int] = {None: before}
    for order in BALANCING:
        along = (walk.depth if order.by_rows else walk.width) if walk else 0
        if order.by_rows and along % order.panel:
            continue  # blocks would divide by a computed number
        raster = scale_to_blocks(order, extents)
        prices[raster] = simulate(order_blocks(kernel, tiles, order))
        if walk is not None:
            more = walk.count_bytes_of_waves(order) - walk.count_bytes_of_waves(AS_NUMBERED)
            prices[raster] += max(more, 0) // target.limit("dram_bytes_per_cycle")
    best = min(prices, key=lambda raster: prices[raster])
    if best is None or prices[best] > before * (1 - LEAST_GAIN):
        return None
    option = None if best == Y_FIRST or not best.by_rows else f"--rasterisation {best.panel}"
    return Question(
        "rasterisation",
        (x_first, Candidate(_show_raster(best), partial(with_raster, best), option)),
        price=lambda ordered: prices[ordered.raster],
        explain=lambda _: "its blocks differ in length, and so they end together",
        least_gain=LEAST_GAIN,
    )


def _choose_panel_axis(kernel: Kernel, loads: tuple[LoadFootprint, ...], at_once: int, panel: int) -> Raster:
    """Return panels of this many rows, or of as many columns if waves then touch fewer bytes."""
    walk = build_grid_walk(kernel, loads, at_once)
    rows, columns = Raster(panel), Raster(panel, by_rows=False)
    cost = [walk.count_bytes_of_waves(scale_to_clusters(raster, kernel.cluster.extents)) for raster in (rows, columns)]
    return columns if cost[1] < cost[0] else rows


def _show_raster(raster: Raster) -> str:
    """Return the name of an order of blocks, as decisions spell it."""
    if not raster.panel:
        return "x first"
    if raster == Y_FIRST:
        return "y first"
    return f"panels of {raster.panel} {'rows' if raster.by_rows else 'columns'}"
