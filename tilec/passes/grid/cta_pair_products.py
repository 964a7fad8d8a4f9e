"""Products that the tensor cores of a CTA pair do together (tcgen05 with `.cta_group::2`).

Two blocks that need the same columns of B each load half of them, into their own shared memory only. One thread of the
first block issues the product of both. The tensor cores of each block multiply its own rows of A with all columns of B,
half of which they read from the other block, and add to its own tensor memory. So a version of the tiles takes less
shared memory, and less of it is read, than if each block had all of B:

    T.copy(B[bx * 256, k], B_s)     B_s: (256, 64)     T.copy(B[bx * 256 + place * 128, k], B_s)     B_s: (128, 64)

All products of a kernel are done that way, or none: a kernel has one `.cta_group` (PTX ISA, tcgen05 "CTA Pair")."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from tilec.analysis.rings import find_pipelined_loops, is_load
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.groups import TENSOR_LANES
from tilec.ir.layout import SharedLayout
from tilec.ir.multicast import BOX_BYTES, SWIZZLE_BYTES
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.types import INT32
from tilec.ops.copies.copy import Copy
from tilec.ops.products.gemm import Gemm
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import is_tensor_product
from tilec.passes.memory.multicast import get_multicast_axes, mark_multicast
from tilec.target.table import Target

MAX_COLUMNS = 256  # of one instruction (PTX ISA, tcgen05 "Matrix shape")
COLUMN_MULTIPLE = 32  # N is a multiple of it for all types and layouts of B (the same table)


def is_paired(stmt: tile.Stmt) -> bool:
    return isinstance(stmt, tile.TileOp) and stmt.is_paired


def can_pair(assignment: LayoutAssignment, target: Target) -> bool:
    """Return whether a warp-specialised kernel runs in clusters, on a target with tcgen05."""
    return target.has("tcgen05") and assignment.form == "warp_specialised" and assignment.kernel.cluster.blocks > 1


def pair_products(assignment: LayoutAssignment, target: Target) -> tuple[LayoutAssignment | None, str]:
    """Return the kernel with tcgen05 products done by CTA pairs and a description, or None and the reason why not."""
    if not can_pair(assignment, target):
        return None, "no warp only loads"
    shared = mark_multicast(assignment)
    axis = "xyz"[max(range(3), key=lambda at: assignment.kernel.cluster.extents[at])]
    reason = _why_not_paired(shared, axis)
    if reason is not None:
        return None, reason
    tiles = _find_halved_tiles(shared.kernel)
    chosen = f"blocks along {axis}, each with half of {', '.join(tile.name for tile in tiles)}"
    return _rewrite_kernel(shared, tiles, axis), chosen


def _find_products(kernel: tile.Kernel) -> list[Gemm]:
    return [s for s in tile.walk_statements(kernel.body) if is_tensor_product(s)]


def _find_halved_tiles(kernel: tile.Kernel) -> dict[tile.Buffer, int]:
    """Return the tiles that are B of a tcgen05 product, each with the number of the dimension of its columns."""
    return {p.b.buffer: 0 if p.transpose_B else 1 for p in _find_products(kernel)}


def _why_not_paired(assignment: LayoutAssignment, axis: str) -> str | None:
    """Return why CTA pairs along this axis cannot do the kernel's products; None if they can."""
    kernel = assignment.kernel
    products = _find_products(kernel)
    if kernel.cluster.blocks != 2:
        return "CTA pairs need a cluster of two blocks"
    if not products:
        return "no product uses tcgen05"
    for loop in find_pipelined_loops(kernel.body):
        if any(p in products for p in loop.body) and not all(map(_is_asynchronous, loop.body)):
            return f"the loop at line {loop.span.line} does more than load tiles and multiply them"
    halved = _find_halved_tiles(kernel)
    for product in products:
        a, b, c = (r.buffer for r in product.regions)
        rows, columns = c.shape
        if a.scope != "shared" or a in halved:
            return "A must be a shared tile that is not also B of a product"
        if rows % TENSOR_LANES:
            return f"{rows} rows of {c.name.removesuffix('.tmem')} are not a multiple of {TENSOR_LANES}"
        if columns > MAX_COLUMNS or columns % COLUMN_MULTIPLE:
            name = c.name.removesuffix(".tmem")
            return f"{columns} columns of {name} are not a multiple of {COLUMN_MULTIPLE} up to {MAX_COLUMNS}"
        if not all(r.is_whole for r in product.regions):
            return "a product uses only a part of a tile"
        if reason := _why_not_shared(kernel, a, b, axis):
            return reason
        if (
            halved[b] != (0 if product.transpose_B else 1)
            or _halve_layout(assignment.shared[b.name], halved[b]) is None
        ):
            return f"half of {b.name} does not start on a swizzle boundary"
    return None


def _is_asynchronous(stmt: tile.Stmt) -> bool:
    """Return whether a statement is a TMA load, a tcgen05 product, or a bind of a value."""
    return isinstance(stmt, tile.Bind) or is_tensor_product(stmt) or _is_tma_load(stmt)


def _is_tma_load(stmt: tile.Stmt) -> TypeGuard[Copy]:
    return isinstance(stmt, Copy) and is_load(stmt) and stmt.via == "tma"


def _why_not_shared(kernel: tile.Kernel, a: tile.Buffer, b: tile.Buffer, axis: str) -> str | None:
    """Return why tiles A and B do not suit a CTA pair: other uses, or not just B alike in both blocks; None if they
    do."""
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, tile.For | tile.While | tile.If) or is_tensor_product(stmt):
            continue
        touched = {a, b} & {*find_reads(stmt), *find_writes(stmt)}
        if touched and not _is_tma_load(stmt):
            return f"{min(buffer.name for buffer in touched)} is also used by other statements than products"
        if b in touched and get_multicast_axes(stmt) != axis:
            return f"blocks along {axis} do not load the same {b.name} at the same time"
        if a in touched and get_multicast_axes(stmt):
            return f"blocks along {axis} load the same rows of {a.name}, and pairs need the same columns"
    return None


def _halve_layout(layout: SharedLayout, dimension: int) -> SharedLayout | None:
    """Return the layout of half a shared tile along a dimension; None if its size is odd or the half breaks the
    swizzle. A tile with a placement has none either."""
    if layout.placement is not None or layout.shape[dimension] % 2:
        return None
    shape = tuple(size // 2 if d == dimension else size for d, size in enumerate(layout.shape))
    if dimension == len(shape) - 1 and layout.panels % 2:
        return None
    half = replace(layout, shape=shape)
    return None if half.panel_bytes % (SWIZZLE_BYTES if layout.swizzle else BOX_BYTES) else half


def _rewrite_kernel(assignment: LayoutAssignment, tiles: dict[tile.Buffer, int], axis: str) -> LayoutAssignment:
    """Return the assignment in which each block of a pair along `axis` loads half of these tiles, for paired
    products."""
    kernel = assignment.kernel
    shared = dict(assignment.shared)
    halves: dict[tile.Buffer, tile.Buffer] = {}
    for buffer, dimension in tiles.items():
        extents = tuple(e // 2 if d == dimension else e for d, e in enumerate(buffer.shape))
        halves[buffer] = replace(buffer, extents=extents)
        half = _halve_layout(assignment.shared[buffer.name], dimension)
        assert half is not None, "a tile is halved that cannot be"
        shared[buffer.name] = half
    place = tile.Binary("floormod", kernel.block_vars["xyz".index(axis)], tile.int32_const(2), INT32)
    body = rewrite_statements(kernel.body, _Rewriter(tiles, halves, place).rewrite_statement)
    buffers = tuple(halves.get(b, b) for b in kernel.buffers)
    return replace(assignment, kernel=replace(kernel, body=body, buffers=buffers), shared=shared)


class _Rewriter:
    """Rewrites products and loads; `place` is the block's rank in its pair."""

    def __init__(self, tiles: dict[tile.Buffer, int], halves: dict[tile.Buffer, tile.Buffer], place: tile.Expr) -> None:
        self.tiles, self.halves, self.place = tiles, halves, place

    def rewrite_statement(self, stmt: tile.Stmt) -> tile.Stmt:
        """Return a tcgen05 product as a paired one, and a TMA load of a halved tile as one of half; others as they
        are."""
        match stmt:
            case Gemm() if is_tensor_product(stmt):
                return replace(stmt, b=self.halve_region(stmt.b, stmt.b.buffer), paired=True)
            case Copy() if _is_tma_load(stmt) and (buffer := stmt.destination.buffer) in self.tiles:
                sides = (self.halve_region(region, buffer) for region in (stmt.source, stmt.destination))
                return replace(stmt.with_regions(tuple(sides)), multicast="")
            case _:
                return stmt

    def halve_region(self, region: tile.Region, buffer: tile.Buffer) -> tile.Region:
        """Return this block's half of a tensor's region, or the whole halved tile in place of the tile."""
        along = [d for d, e in enumerate(region.extent) if e != 1][self.tiles[buffer]]
        size = region.extent[along] // 2
        extent = tuple(size if d == along else e for d, e in enumerate(region.extent))
        if region.buffer == buffer:
            return replace(region, buffer=self.halves[buffer], extent=extent)
        begins = add_exprs(region.start[along], scale_expr(self.place, size))
        start = tuple(begins if d == along else s for d, s in enumerate(region.start))
        return replace(region, start=start, extent=extent)
