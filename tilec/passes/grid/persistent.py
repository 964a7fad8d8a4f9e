"""Persistent grids: as many blocks as run at once, each of which processes several of the kernel's blocks.

If one block fills a multiprocessor, the next one begins only when it has ended: its loads start into an empty pipeline,
and nothing computes while it stores. In a persistent block, the producer warp fills the rings for the next tile while
the consumers are still busy with this one.

Clusters are kept. As many as run at once walk over the kernel's clusters, each over those at its own number plus
multiples of their count. So the blocks of a cluster always process one cluster, in the same number of iterations.

With cluster launch control the grid has all clusters instead, and running ones take over the work of others that have
not begun (`loop.dynamic_tile_scheduler`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeGuard

from tilec.ir import tile
from tilec.ops.copies.copy_cluster import Send
from tilec.ops.synchronisation.sync import is_ordering_statement
from tilec.passes.grid import rasterise
from tilec.passes.grid.rasterisation_order import has_own_order
from tilec.rewriting.fold_constants import fold_binary
from tilec.target.table import Target

MAX_STEP = 2**31 - 1
"""The step of a dynamically scheduled loop, which has one iteration by itself; also the most blocks along x."""


def blocks_at_once(target: Target, cluster: int) -> int:
    """Return how many blocks the GPU runs at once, one on each multiprocessor, in whole clusters of `cluster` blocks.
    The blocks of a cluster share a GPC (cluster of multiprocessors), which pairs fill, but larger clusters do not."""
    multiprocessors = target.limit("sms" if cluster <= 2 else "sms_in_large_clusters")
    return multiprocessors // cluster * cluster


def why_not_persistent(kernel: tile.Kernel, at_once: int) -> str | None:
    """Return why a persistent grid of `at_once` blocks cannot run the kernel's blocks in turn; None if it can. That
    grid has to be smaller. Explicit barriers may rely on being new. Block numbers must fit an int32: of grids known at
    launch only this is assumed, since no memory holds 2^31 tiles, but not that clusters divide them."""
    total = _count_all_clusters(kernel)
    walking = at_once // kernel.cluster.blocks
    if isinstance(total, tile.Const) and int(total.value) <= walking:
        return f"all {math.prod(e for e in kernel.grid if isinstance(e, int))} blocks of the grid run at once"
    if isinstance(total, tile.Const) and int(total.value) > 2**31 - walking:
        return "the numbers of its blocks are too large for an int32"
    sizes = zip(kernel.cluster.extents, kernel.grid, strict=False)
    if any(size > 1 and not isinstance(extent, int) for size, extent in sizes):
        return "whether the grid is a multiple of the cluster is known only at launch"
    # A block that a tile is sent to must know when.
    if any(is_ordering_statement(stmt) or isinstance(stmt, Send) for stmt in tile.walk_statements(kernel.body)):
        return "its explicit barriers may rely on their initial phase"
    return None


def make_persistent(kernel: tile.Kernel, at_once: int) -> tile.Kernel:
    """Return the kernel on `at_once` blocks, each looping over the kernel's blocks with a fixed stride."""
    assert why_not_persistent(kernel, at_once) is None
    walking = at_once // kernel.cluster.blocks
    return _build_walk(kernel, tile.int32_const(walking), walking)


def why_not_dynamically_scheduled(kernel: tile.Kernel, target: Target) -> str | None:
    """Return why the hardware cannot assign a persistent grid's clusters at run time; None if it can."""
    if not target.has("cluster.launch_control"):
        return f"{target.name} has no cluster launch control"
    if has_own_order(kernel):
        return "blocks may wait for other blocks, which must already run"
    total = _count_all_clusters(kernel)
    if isinstance(total, tile.Const) and int(total.value) * kernel.cluster.extents[0] > MAX_STEP:
        return "a grid of one dimension cannot have so many blocks"
    return None


def schedule_tiles_dynamically(kernel: tile.Kernel) -> tile.Kernel:
    """Return the kernel on a grid of all its clusters along x, with a loop in which running ones take over others."""
    return _build_walk(kernel, _count_all_clusters(kernel), MAX_STEP, is_dynamic=True)


def replace_dynamic_by_static_stride(kernel: tile.Kernel, target: Target) -> tile.Kernel:
    """Return the kernel with dynamically scheduled loops made ones of fixed stride over a full GPU of blocks."""
    if not any(map(_is_dynamic, kernel.body)):
        return kernel
    walking = blocks_at_once(target, kernel.cluster.blocks) // kernel.cluster.blocks
    body = [replace(s, step=walking, dynamically_scheduled=False) if _is_dynamic(s) else s for s in kernel.body]
    return replace(kernel, grid=(walking * kernel.cluster.extents[0], *kernel.grid[1:]), body=tuple(body))


def _is_dynamic(stmt: tile.Stmt) -> TypeGuard[tile.For]:
    return isinstance(stmt, tile.For) and stmt.dynamically_scheduled


def _build_walk(kernel: tile.Kernel, walking: tile.Expr, step: int, *, is_dynamic: bool = False) -> tile.Kernel:
    """Return the kernel as one loop over its cluster numbers by `step`, on a grid of `walking` clusters."""
    width, depth, height = rasterise.count_clusters(kernel)
    hardware = (tile.Var("%block"), tile.Var("%block.y"), tile.Var("%block.z"))
    cx, cy, cz = kernel.cluster.extents
    number = tile.Var("%number")
    area = _multiply_exprs(width, depth)
    parts = fold_binary("floormod", number, area), fold_binary("floordiv", number, area)
    inside, layer = (number, tile.int32_const(0)) if height == tile.int32_const(1) else parts
    raster = rasterise.scale_to_clusters(kernel.raster or rasterise.AS_NUMBERED, kernel.cluster.extents)
    tiles = (*rasterise.locate_tile(inside, width, depth, raster), layer)
    binds = rasterise.bind_block_indices(
        kernel.block_vars, tiles[: len(kernel.grid)], hardware, kernel.cluster.extents, kernel.span
    )
    first, total = fold_binary("floordiv", hardware[0], cx), _count_all_clusters(kernel)
    loop = tile.For("serial", number, first, total, step, (*binds, *kernel.body), span=kernel.span, distinct_by=())
    loop = replace(loop, dynamically_scheduled=is_dynamic)
    rank = 3 if cz > 1 else 2 if cy > 1 else 1
    across = _multiply_exprs(walking, tile.int32_const(cx))
    grid = (int(across.value) if isinstance(across, tile.Const) else across, cy, cz)[:rank]
    return replace(kernel, grid=grid, block_vars=hardware[:rank], body=(loop,), raster=None)


def _count_all_clusters(kernel: tile.Kernel) -> tile.Expr:
    """Return the number of clusters in the kernel's whole grid, as an expression."""
    width, depth, height = rasterise.count_clusters(kernel)
    return _multiply_exprs(_multiply_exprs(width, depth), height)


def _multiply_exprs(a: tile.Expr, b: tile.Expr) -> tile.Expr:
    """Return the folded product of two expressions; a product of constants may exceed an int32."""
    if isinstance(a, tile.Const) and isinstance(b, tile.Const):
        return tile.int32_const(int(a.value) * int(b.value))
    return fold_binary("mul", a, b)
