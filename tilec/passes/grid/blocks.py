"""Which blocks run, in which clusters and in which order.

What the kernel or the command line says of it is done. What both leave open is decided: whether blocks run in pairs
that load or multiply together (`grid.cta_pairs`), whether as many as run at once walk over all (`grid.persistent`), and
in which order (`grid.rasterisation_order`). The first and the last are decisions of -O3.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import tile
from tilec.passes.analysis.cluster_launch_control import asks_for_blocks
from tilec.passes.grid.cta_pairs import best_pairs
from tilec.passes.grid.persistent import (
    blocks_at_once,
    dynamically_scheduled,
    persistent,
    why_not_dynamically_scheduled,
    why_not_persistent,
)
from tilec.passes.grid.rasterisation_order import best_raster, fits_cache, has_own_order, in_blocks, walk_of
from tilec.passes.grid.rasterise import AS_NUMBERED, in_clusters, ordered
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.load_footprints import Footprint, footprints
from tilec.sched.decision import Alternative, Decision
from tilec.support.options import MAY_DECIDE, CompileOptions
from tilec.target.table import Target


def arranged(
    kernel: tile.Kernel, assignment: LayoutAssignment, target: Target, options: CompileOptions, *, walks: bool = True
) -> tuple[tile.Kernel, tuple[Decision, ...]]:
    """The kernel with the grid that is to be launched, and what was decided about it. `assignment` is the kernel as it
    is written, with its layouts; `walks=False` rules a persistent grid out."""
    against = _against_walking(kernel, assignment, target, options) if walks else _LOSES_ROLES
    cluster, about_cluster = _cluster(assignment, target, options, against)
    kernel = kernel if cluster == kernel.cluster else replace(kernel, cluster=cluster)
    at_once = blocks_at_once(target, cluster.blocks)
    raster, about_raster = _raster(kernel, assignment, target, options, at_once)
    kernel = replace(kernel, raster=raster) if raster != kernel.raster else kernel
    if against is not None:
        return ordered(kernel), (about_cluster, against, about_raster)
    blocks = " × ".join(str(e) if isinstance(e, int) else "?" for e in kernel.grid)
    why = "a block loads its next tile while it computes and stores the last"
    about_walk = Decision("persistent grid", f"{at_once} blocks walk over {blocks}", "the compiler", why)
    walking, about_scheduler = _walk(kernel, target, options, at_once)
    return walking, (about_cluster, about_walk, *about_scheduler, about_raster)


def _walk(
    kernel: tile.Kernel, target: Target, options: CompileOptions, at_once: int
) -> tuple[tile.Kernel, tuple[Decision, ...]]:
    """The kernel that walks over its grid; and how it goes on to the next tile, where there is a choice."""
    asked = options.tile_scheduler
    if asked == "static":
        chosen = Decision("tile scheduler", "static", "the command line", "--tile-scheduler static")
        return persistent(kernel, at_once), (chosen,)
    if reason := why_not_dynamically_scheduled(kernel, target):
        has_choice = asked != "auto" or target.has("cluster.launch_control")
        chosen = Decision("tile scheduler", "static", "the compiler", reason)
        return persistent(kernel, at_once), (chosen,) if has_choice else ()
    why = "a block that is done early, or could begin early, does more of the tiles (as in CUTLASS, by default)"
    chosen = Decision("tile scheduler", "launch control", "the compiler", why)
    if asked != "auto":
        chosen = replace(chosen, by="the command line", why=f"--tile-scheduler {asked}")
    return dynamically_scheduled(kernel), (chosen,)


_LOSES_ROLES = Decision(
    "persistent grid", "no", "the compiler", "with a loop over blocks the kernel would lose its producer warp"
)


def _against_walking(
    kernel: tile.Kernel, assignment: LayoutAssignment, target: Target, options: CompileOptions
) -> Decision | None:
    """Why the grid stays as it is, or None."""
    if not options.persistent:
        return Decision("persistent grid", "no", "the command line", "--no-persistent")
    reason: str | None = "no warp only loads, and so could begin with the next block's tiles"
    if assignment.form == "warp_specialised":
        reason = why_not_persistent(kernel, blocks_at_once(target, kernel.cluster.blocks))
    return None if reason is None else Decision("persistent grid", "no", "the compiler", reason)


# ---- clusters --------------------------------------------------------------------------------------------------------


def _cluster(
    assignment: LayoutAssignment, target: Target, options: CompileOptions, against: Decision | None
) -> tuple[tile.Cluster, Decision]:
    kernel = assignment.kernel

    def none(why: str) -> tuple[tile.Cluster, Decision]:
        return tile.ALONE, Decision("cluster", "none", "the compiler", why)

    if kernel.cluster.blocks > 1:
        is_given = options.cluster == kernel.cluster.extents
        why = f"--cluster {show_cluster(kernel.cluster)}" if is_given else "cluster_dims"
        by = Decision("cluster", show_cluster(kernel.cluster), "the command line" if is_given else "the kernel", why)
        return kernel.cluster, by
    if options.cluster is not None:
        return tile.ALONE, Decision("cluster", "none", "the command line", "--cluster none")
    if options.opt_level < MAY_DECIDE:
        return none(f"decided from -O{MAY_DECIDE} on")
    if against is not None:
        return none("only blocks of a persistent grid run in pairs, so that they meet once for many tiles")
    if not all(isinstance(extent, int) for extent in kernel.grid):
        return none("how many blocks there are is known only at launch")
    cluster, why, weighed = best_pairs(assignment, target, options)
    alternatives = tuple(Alternative(show_cluster(each), price, "cycles an iteration") for each, price in weighed)
    return cluster, Decision("cluster", show_cluster(cluster), "the compiler", why, alternatives)


def show_cluster(cluster: tile.Cluster) -> str:
    """As in `--cluster 2x1`."""
    if cluster.blocks == 1:
        return "none"
    x, y, z = cluster.extents
    return f"{x}x{y}" if z == 1 else f"{x}x{y}x{z}"


# ---- order -----------------------------------------------------------------------------------------------------------


def _raster(
    kernel: tile.Kernel, assignment: LayoutAssignment, target: Target, options: CompileOptions, at_once: int
) -> tuple[tile.Raster | None, Decision]:
    def plain(why: str) -> tuple[tile.Raster | None, Decision]:
        return kernel.raster, Decision("rasterisation", "x first", "the compiler", why)

    if kernel.raster is not None:
        return kernel.raster, Decision("rasterisation", _show(kernel.raster), "the kernel", "T.use_swizzle")
    if asks_for_blocks(kernel):
        return plain("blocks ask for others' work by the numbers that the machine gives them")
    if options.rasterisation == 0:
        return None, Decision("rasterisation", "x first", "the command line", "--rasterisation none")
    if len(kernel.grid) < 2 or 1 in kernel.grid[:2]:
        return plain("the grid is a line of blocks")
    of = footprints(assignment.kernel)
    if options.rasterisation is not None:
        raster = _given(kernel, of, at_once, options.rasterisation)
        why = f"--rasterisation {options.rasterisation}"
        return raster, Decision("rasterisation", _show(raster), "the command line", why)
    if options.opt_level < MAY_DECIDE:
        return plain(f"decided from -O{MAY_DECIDE} on")
    if assignment.roles:
        return plain("the kernel has explicit roles")
    if has_own_order(kernel):
        return plain("blocks may wait for others that were begun before them")
    if any(footprint.by_data for footprint in of):
        return plain("which tiles a block loads depends on elements of a tensor")
    if fits_cache(kernel, target):
        return plain("all tensors together fit into the L2 cache")
    return _chosen(kernel, of, at_once)


def _given(kernel: tile.Kernel, of: tuple[Footprint, ...], at_once: int, panel: int) -> tile.Raster:
    """Panels of so many rows, or of as many columns if waves then touch less."""
    walk = walk_of(kernel, of, at_once)
    rows, columns = tile.Raster(panel), tile.Raster(panel, by_rows=False)
    cost = [walk.bytes_of_waves(in_clusters(raster, kernel.cluster.extents)) for raster in (rows, columns)]
    return columns if cost[1] < cost[0] else rows


def _chosen(kernel: tile.Kernel, of: tuple[Footprint, ...], at_once: int) -> tuple[tile.Raster | None, Decision]:
    walk = walk_of(kernel, of, at_once)
    best = best_raster(walk)
    waves = -(-walk.tiles // walk.at_once)
    before, after = (walk.bytes_of_waves(raster) / waves for raster in (AS_NUMBERED, best))
    plain = Alternative("x first", round(before), "bytes a wave")
    if best == AS_NUMBERED:
        why = "all blocks run at once" if waves == 1 else "no other order lets a wave touch less of the tensors"
        return None, Decision("rasterisation", "x first", "the compiler", why, (plain,))
    raster = in_blocks(best, kernel.cluster.extents)
    weighed = plain, Alternative(_show(raster), round(after), "bytes a wave")
    before, after = before / 2**20, after / 2**20
    why = f"a wave of {at_once} blocks touches {after:.1f} MiB of the tensors, and {before:.1f} MiB with x first"
    return raster, Decision("rasterisation", _show(raster), "the compiler", why, weighed)


def _show(raster: tile.Raster) -> str:
    if not raster.panel:
        return "x first"
    return f"panels of {raster.panel} {'rows' if raster.by_rows else 'columns'}"
