"""A persistent grid: as many blocks as run at once, each of which runs several of the blocks asked for.

Where one block fills a multiprocessor, the next one begins only when it has ended: its loads start into an empty
pipeline, and nobody computes while it stores. In one block after the other, the producer warp fills the rings for the
next tile while the consumers are still busy with this one.

Clusters stay what they are. As many of them as run at once walk over the clusters asked for, each over those whose
numbers are its own plus a multiple of how many walk; so the blocks of one always run blocks of one, all equally many.

Where the machine can be asked for the work of clusters that have not begun, the grid is all of them instead, and those
that run take over the others (`loop.dynamic_tile_scheduler`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.types import INT32
from tilec.ops.copy.cluster import Send
from tilec.ops.sync import is_ordering_statement
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.passes.grid.rasterisation_order import has_own_order
from tilec.passes.grid.rasterise import AS_NUMBERED, bound, clusters, in_clusters, tile_at
from tilec.target.table import Target

MOST_STEP = 2**31 - 1
"""The step of a loop that has one iteration, unless the machine hands out more; and the most blocks that a grid can
have along x."""


def blocks_at_once(target: Target, cluster: int) -> int:
    """How many blocks run at once, one on a multiprocessor, in clusters of so many. Those of a cluster share a cluster
    of multiprocessors of the machine (GPC), which pairs fill, but larger ones do not."""
    multiprocessors = target.limit("sms" if cluster <= 2 else "sms_in_large_clusters")
    return multiprocessors // cluster * cluster


def why_not_persistent(kernel: tile.Kernel, at_once: int) -> str | None:
    """Why no grid of at most `at_once` blocks can walk over the blocks asked for, or None. It has to be smaller. A
    kernel that synchronises by hand may count on new barriers. A block's number must fit an int32; no memory holds 2^31
    tiles, so of grids that only the launch knows that is taken for granted, but not that clusters divide them."""
    total = _blocks(kernel)
    walking = at_once // kernel.cluster.blocks
    if isinstance(total, tile.Const) and int(total.value) <= walking:
        return f"all {math.prod(e for e in kernel.grid if isinstance(e, int))} blocks of the grid run at once"
    if isinstance(total, tile.Const) and int(total.value) > 2**31 - walking:
        return "the numbers of its blocks are too large for an int32"
    open_extents = (
        size for size, e in zip(kernel.cluster.extents, kernel.grid, strict=False) if not isinstance(e, int)
    )
    if any(size > 1 for size in open_extents):
        return "whether the grid is made of whole clusters is known only at launch"
    if any(is_ordering_statement(stmt) or _is_sent(stmt) for stmt in tile.walk_statements(kernel.body)):
        return "it synchronises by hand, and its barriers may count on being new"
    return None


def persistent(kernel: tile.Kernel, at_once: int) -> tile.Kernel:
    """The kernel with a persistent grid of at most `at_once` blocks, which walk over the blocks asked for in the order
    of its raster, where nothing speaks against that."""
    assert why_not_persistent(kernel, at_once) is None
    walking = at_once // kernel.cluster.blocks
    return _walking(kernel, tile.int32_const(walking), walking)


def why_not_dynamically_scheduled(kernel: tile.Kernel, target: Target) -> str | None:
    """Why the machine cannot hand out the clusters that a persistent grid walks over, or None."""
    if not target.has("cluster.launch_control"):
        return f"{target.name} has no cluster launch control"
    if has_own_order(kernel):
        return "blocks may wait for others, which must have begun"
    total = _blocks(kernel)
    if isinstance(total, tile.Const) and int(total.value) * kernel.cluster.extents[0] > MOST_STEP:
        return "a grid of one dimension cannot have so many blocks"
    return None


def dynamically_scheduled(kernel: tile.Kernel) -> tile.Kernel:
    """The kernel with a grid of all its clusters, numbered along x, of which those that run take over others."""
    return _walking(kernel, _blocks(kernel), MOST_STEP, dynamically_scheduled=True)


def evenly(kernel: tile.Kernel, target: Target) -> tile.Kernel:
    """The kernel, with dynamically scheduled tiles shared out by a stride: as they are where all blocks are equally
    fast, which is what a model of them takes for granted."""
    if not any(isinstance(s, tile.For) and s.dynamically_scheduled for s in kernel.body):
        return kernel
    walking = blocks_at_once(target, kernel.cluster.blocks) // kernel.cluster.blocks
    body = (
        replace(s, step=walking, dynamically_scheduled=False)
        if isinstance(s, tile.For) and s.dynamically_scheduled
        else s
        for s in kernel.body
    )
    return replace(kernel, grid=(walking * kernel.cluster.extents[0], *kernel.grid[1:]), body=tuple(body))


def _walking(kernel: tile.Kernel, walking: tile.Expr, step: int, *, dynamically_scheduled: bool = False) -> tile.Kernel:
    """So many clusters walk over those asked for."""
    width, depth, height = clusters(kernel)
    hardware = (tile.Var("%block"), tile.Var("%block.y"), tile.Var("%block.z"))
    cx, cy, cz = kernel.cluster.extents
    number = tile.Var("%number")
    inside, layer = (
        (number, tile.int32_const(0)) if height == tile.int32_const(1) else _divided(number, _product(width, depth))
    )
    raster = in_clusters(kernel.raster or AS_NUMBERED, kernel.cluster.extents)
    tiles = (*tile_at(inside, width, depth, raster), layer)
    binds = bound(kernel.block_vars, tiles[: len(kernel.grid)], hardware, kernel.cluster.extents, kernel.span)
    first = _binary("floordiv", hardware[0], tile.int32_const(cx))
    body = (*binds, *kernel.body)
    walked = tile.For(
        "serial",
        number,
        first,
        _blocks(kernel),
        step,
        body,
        span=kernel.span,
        distinct_by=(),
        dynamically_scheduled=dynamically_scheduled,
    )
    rank = 3 if cz > 1 else 2 if cy > 1 else 1
    across = _product(walking, tile.int32_const(cx))
    grid = (int(across.value) if isinstance(across, tile.Const) else across, cy, cz)[:rank]
    return replace(kernel, grid=grid, block_vars=hardware[:rank], body=(walked,), raster=None)


def _blocks(kernel: tile.Kernel) -> tile.Expr:
    """How many clusters of them the grid has."""
    width, depth, height = clusters(kernel)
    return _product(_product(width, depth), height)


def _is_sent(stmt: object) -> bool:
    """Whether a tile goes to another block of the cluster, which must know when."""
    return isinstance(stmt, Send)


def _divided(number: tile.Expr, area: tile.Expr) -> tuple[tile.Expr, tile.Expr]:
    return _binary("floormod", number, area), _binary("floordiv", number, area)


def _product(a: tile.Expr, b: tile.Expr) -> tile.Expr:
    if isinstance(a, tile.Const) and isinstance(b, tile.Const):
        return tile.int32_const(math.prod((int(a.value), int(b.value))))
    return _binary("mul", a, b)


def _binary(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr) -> tile.Expr:
    return fold_expr(tile.Binary(op, a, b, INT32))
