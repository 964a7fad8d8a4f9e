"""Products of CTA pairs in kernels with explicit roles (T.tcgen05_gemm with use_2cta): their conditions, and the
barriers that count the bytes of their tiles.

A thread of the first block issues all of them. So both blocks count their tiles at the barrier of the first: beside
T.tma_copy stands T.mbarrier_arrive(bar, 0), in both."""

from __future__ import annotations

from collections.abc import Mapping

from tilec.analysis.usage import find_writes
from tilec.ir import tile
from tilec.ir.groups import TENSOR_LANES
from tilec.ops.copies.copy import Copy
from tilec.ops.products.block_scaled import ScaledGemm
from tilec.ops.products.gemm import Gemm, get_matrix_shape
from tilec.ops.synchronisation.barriers import Arrive, get_barrier
from tilec.passes.grid.cta_pair_products import COLUMN_MULTIPLE, MAX_COLUMNS
from tilec.support.diagnostics import ErrorCollector, Label, raise_error


def _list_operations(kernel: tile.Kernel) -> list[tile.TileOp]:
    return [s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.TileOp)]


def find_remote_barriers(kernel: tile.Kernel) -> dict[str, tile.Expr]:
    """Return, by name, the barriers whose arrivals all go to one fixed block, with that block; {} without paired
    operations."""
    operations = _list_operations(kernel)
    if not any(op.is_paired for op in operations):
        return {}
    where: dict[str, set[tile.Expr | None]] = {}
    for op in operations:
        if isinstance(op, Arrive):
            where.setdefault(get_barrier(op).name, set()).add(op.block)
    alike = {name: next(iter(blocks)) for name, blocks in where.items() if len(blocks) == 1}
    return {name: block for name, block in alike.items() if isinstance(block, tile.Const)}


def check_cta_pairs(kernel: tile.Kernel, mistakes: ErrorCollector) -> None:
    """Refuse use_2cta products unless clusters have two blocks, all products use it, shapes fit, and TMA fills A and B.

    Errors: `bad-cta-pair`."""
    if mistakes.met:  # a product may be missing
        return
    operations = _list_operations(kernel)
    paired = [op for op in operations if op.is_paired]
    if not paired:
        return
    if kernel.cluster.blocks != 2:
        raise_error(
            "bad-cta-pair",
            "use_2cta needs a cluster of two blocks",
            paired[0].span,
            f"clusters of this kernel have {kernel.cluster.blocks} blocks"
            if kernel.cluster.blocks > 1
            else "this kernel has no clusters",
            help="write cluster_dims=2 in T.Kernel",
        )
    working = [op for op in operations if op.is_in_tensor_memory]
    products = [op for op in working if isinstance(op, Gemm | ScaledGemm)]
    alone = next((op for op in working if not op.is_paired), None)
    if alone is not None or not products:
        this, every = ("this product", "each T.tcgen05_gemm") if working == products else ("this", "each")
        raise_error(
            "bad-cta-pair",
            "either all products of a kernel use two blocks, or none",
            (alone or paired[0]).span,
            f"{this} uses one block" if alone else "no product uses two",
            secondary=(Label(paired[0].span, f"{this} uses two"),) if alone else (),
            help=f"pass use_2cta=True to {every}",
        )
    for op in products:
        if reason := _why_not_paired(op):
            raise_error("bad-cta-pair", "a CTA pair cannot do this product", op.span, reason)
    factors = {r.buffer: op for op in products for r in op.regions[:2]}
    for stmt in tile.walk_statements(kernel.body):
        _check_filled_by_tma(stmt, factors)


def _why_not_paired(op: Gemm | ScaledGemm) -> str | None:
    """Return why a CTA pair cannot do the product: A is not shared, or C has bad rows or columns; None if it can."""
    a, _, c, *_ = op.regions
    rows, columns = get_matrix_shape(c)
    if a.buffer.scope != "shared":
        return f"A must be a shared tile, and {a.buffer.name} is in tensor memory"
    if rows % TENSOR_LANES:
        return f"each block has {rows} rows of {c.buffer.name}, not a multiple of {TENSOR_LANES}"
    if columns > MAX_COLUMNS or columns % COLUMN_MULTIPLE:
        return f"{c.buffer.name} has {columns} columns, not a multiple of {COLUMN_MULTIPLE} up to {MAX_COLUMNS}"
    return None


def _check_filled_by_tma(stmt: tile.Stmt, factors: Mapping[tile.Buffer, tile.TileOp]) -> None:
    """Refuse a statement other than a TMA copy that writes a factor of a CTA pair's product."""
    by_tma = isinstance(stmt, tile.TileOp) and (
        stmt.signals_barrier or (isinstance(stmt, Copy) and stmt.signals is not None)
    )
    if by_tma or not isinstance(stmt, tile.TileOp | tile.Parallel):
        return
    buffer = next((buffer for buffer in find_writes(stmt) if buffer in factors), None)
    if buffer is not None:
        raise_error(
            "bad-cta-pair",
            f"{buffer.name} is an operand of two blocks, so only TMA may fill it",
            stmt.span,
            "filled by threads here",
            secondary=(Label(factors[buffer].span, "multiplied here"),),
            help="write T.tma_copy with the barrier that the product waits for",
        )
