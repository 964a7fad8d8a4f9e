"""The order of a grid's blocks (T.use_swizzle): panel by panel, so that blocks that run close in time share rows and
columns in the L2 cache. The order is one of clusters: the blocks of a cluster stay together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.types import BOOL, INT32
from tilec.rewriting.fold_constants import fold_binary
from tilec.support.source import Span

AS_NUMBERED = tile.Raster(0)


def rasterise_blocks(kernel: tile.Kernel) -> tile.Kernel:
    """Return the kernel with block indices computed from the hardware's in raster order; as it is without panels."""
    raster = kernel.raster
    if raster is None or not raster.panel or len(kernel.grid) < 2 or 1 in kernel.grid[:2]:
        return kernel
    x, y = (tile.Var(f"%{v.name}") for v in kernel.block_vars[:2])
    width, depth, _ = count_clusters(kernel)
    cx, cy, _ = kernel.cluster.extents
    row = fold_binary("mul", fold_binary("floordiv", y, cy), width)
    number = add_exprs(fold_binary("floordiv", x, cx), row)
    found = locate_tile(number, width, depth, scale_to_clusters(raster, kernel.cluster.extents))
    binds = bind_block_indices(kernel.block_vars[:2], found, (x, y), kernel.cluster.extents, raster.span)
    return replace(kernel, block_vars=(x, y, *kernel.block_vars[2:]), body=(*binds, *kernel.body))


def count_clusters(kernel: tile.Kernel) -> tuple[tile.Expr, tile.Expr, tile.Expr]:
    """Return the numbers of clusters of the grid along x, y and z, as expressions."""
    x, y, z = (
        fold_binary("floordiv", tile.extent_expr(extent), size)
        for extent, size in zip((*kernel.grid, 1, 1)[:3], kernel.cluster.extents, strict=True)
    )
    return x, y, z


def bind_block_indices(
    block_vars: Sequence[tile.Var],
    tiles: Sequence[tile.Expr],
    hardware: Sequence[tile.Var],
    cluster: Sequence[int],
    span: Span,
) -> tuple[tile.Bind, ...]:
    """Return binds of the kernel's block variables to the cluster's tile times its size plus the block's place in
    it."""
    indices = (
        add_exprs(scale_expr(place, size), fold_binary("floormod", own, size)) if size > 1 else place
        for place, own, size in zip(tiles, hardware, cluster, strict=False)
    )
    return tuple(tile.Bind(var, index, span) for var, index in zip(block_vars, indices, strict=True))


def locate_tile(
    number: tile.Expr, width: tile.Extent, depth: tile.Extent, raster: tile.Raster
) -> tuple[tile.Expr, tile.Expr]:
    """Return column and row, as expressions, of the tile with this number in a grid walked in raster order. A panel is
    `panel` rows high (columns wide, if not `by_rows`); the last one has the remaining rows. It is walked column by
    column, every other one backwards. Each tile comes once: `%` in a panel numbers rows, `//` columns."""
    width, depth = tile.extent_expr(width), tile.extent_expr(depth)
    if not raster.panel or tile.int32_const(1) in (width, depth):
        return fold_binary("floormod", number, width), fold_binary("floordiv", number, width)
    across, along = (width, depth) if raster.by_rows else (depth, width)
    panel = raster.panel
    size = fold_binary("mul", across, panel)
    inside, which = fold_binary("floormod", number, size), fold_binary("floordiv", number, size)
    first = scale_expr(which, panel)
    is_whole = fold_binary("floormod", along, panel) == tile.int32_const(0)
    height: tile.Expr = tile.int32_const(panel)
    if not is_whole:
        height = fold_binary("min", height, fold_binary("sub", along, first))
    column, row = fold_binary("floordiv", inside, height), add_exprs(fold_binary("floormod", inside, height), first)
    last_column = fold_binary("sub", across, 1)
    if not is_whole:  # Redundant, but the interval arithmetic that drops guards needs it.
        column, row = fold_binary("min", column, last_column), fold_binary("min", row, fold_binary("sub", along, 1))
    if not (isinstance(along, tile.Const) and along.value <= panel):
        odd = tile.Binary("eq", fold_binary("floormod", which, 2), tile.int32_const(1), BOOL)
        column = tile.Select(odd, fold_binary("sub", last_column, column), column, INT32)
    if not (isinstance(across, tile.Const) and isinstance(along, tile.Const)):
        # Redundant too: TMA stores only where a tile is known not to begin below 0.
        column, row = (fold_binary("max", index, 0) for index in (column, row))
    return (column, row) if raster.by_rows else (row, column)


def scale_to_clusters(raster: tile.Raster, cluster: Sequence[int]) -> tile.Raster:
    """Return the raster with its panel size counted in clusters instead of blocks, at least one; no panels stay
    none."""
    return replace(raster, panel=max(raster.panel // cluster[1 if raster.by_rows else 0], 1) if raster.panel else 0)
