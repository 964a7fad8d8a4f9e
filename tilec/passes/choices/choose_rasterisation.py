"""Decision: the order in which blocks go over the grid (`grid.rasterisation_order`). It is a decision of -O3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from tilec.analysis.clusters import has_block_requests
from tilec.ir.tile import Kernel, Raster
from tilec.passes.choices.question import Candidate, Outcome, Question, make_ruled_question
from tilec.passes.cost.block_order import (
    BALANCING,
    LEAST_GAIN,
    MAX_TILES,
    Y_FIRST,
    BlockEstimate,
    estimate_blocks,
    order_blocks,
    simulate_persistent,
)
from tilec.passes.cost.model import overlap_times, simulate_dynamic
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

    def simulate_order(tiles: list[BlockEstimate]) -> int:
        """Return the cycles of the grid with its blocks, or clusters, in this order."""
        if is_persistent:
            return simulate_persistent(tiles, slots, is_dealt)
        return simulate_dynamic([each.cycles for each in tiles], slots)

    prices = _price_balanced_orders(kernel, assignment, target, simulate_order, at_once)
    best_order = _select_order(prices)
    if best_order is not None and prices[best_order] <= prices[None] * (1 - LEAST_GAIN):
        option = f"--rasterisation {best_order.panel}" if best_order.by_rows else None
        return Question(
            "rasterisation",
            (x_first, Candidate(_show_raster(best_order), partial(set_raster, best_order), option)),
            price=lambda ordered: prices[ordered.raster],
            explain=lambda _: "its blocks differ in length, and so they end together",
            least_gain=LEAST_GAIN,
        )
    if fits_in_cache(kernel, target):
        return keep_order("all tensors together fit into the L2 cache")
    walk = build_grid_walk(kernel, tuple(replace(each, axes=each.likely_axes) for each in loads), at_once)
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


def _select_order(prices: Mapping[Raster | None, int]) -> Raster | None:
    """Return the cheapest order; of panels that end as early, but for half a hundredth, the tallest: on an H200 panels
    of 8 were as fast as lower ones or faster, for all of five kernels."""
    best = min(prices, key=lambda raster: prices[raster], default=None)
    if best is None or not best.by_rows:
        return best
    alike = (raster for raster in prices if raster and raster.by_rows and 200 * prices[raster] <= 201 * prices[best])
    return max(alike, key=lambda raster: raster.panel)


def _price_balanced_orders(
    kernel: Kernel,
    assignment: LayoutAssignment,
    target: Target,
    simulate_order: Callable[[list[BlockEstimate]], int],
    at_once: int,
) -> dict[Raster | None, int]:
    """Return the cycles of the grid in each of the orders in which blocks of unlike length may end together, None for
    the order as numbered: the simulated ones plus those of the loads that its waves add. Empty where all blocks take
    as long, or end together already.

    Along y first, the longest blocks begin first where they are those of the first columns (FlashAttention-3 orders its
    causal tiles so). In low panels, of which every other one goes backwards, long blocks of one panel meet long ones of
    the next."""
    tiles = estimate_blocks(assignment, target, MAX_TILES)
    if tiles is None or len({each.cycles for each in tiles}) < 2:
        return {}
    clusters = order_blocks(kernel, tiles, AS_NUMBERED)
    prices: dict[Raster | None, int] = {None: simulate_order(clusters)}
    least = sum(each.cycles for each in clusters) // max(at_once // kernel.cluster.blocks, 1)
    if prices[None] * (1 - LEAST_GAIN) <= least:
        return {}
    walk = build_grid_walk(kernel, find_load_footprints(assignment.kernel), at_once)
    for order in BALANCING:
        if order.by_rows and walk.depth % order.panel:
            continue  # blocks would divide by a computed number
        raster = scale_to_blocks(order, kernel.cluster.extents)
        cycles = simulate_order(order_blocks(kernel, tiles, order))
        more = max(walk.count_bytes_of_waves(order) - walk.count_bytes_of_waves(AS_NUMBERED), 0)
        misses = 0 if fits_in_cache(kernel, target) else more // target.limit("dram_bytes_per_cycle")
        prices[raster] = round(overlap_times(cycles, 0, misses))
    return prices


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
