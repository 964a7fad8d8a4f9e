"""Count the neighbours along K that a thread holds of an operand of mma.sync that is unpacked into registers.

The instruction gives each thread of a quad two 16-bit elements of every eight, which are one byte of packed weights.
But a product sums over K in any order: where a thread holds 16 neighbours, it reads their bytes at once, and reads the
other operand in the same order, 16 bytes at a time in place of ldmatrix.
"""

from __future__ import annotations

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ops.products.gemm import Gemm, get_gemm_shape

DEPTH_RUN = 16
"""Elements of 16 bits: two accesses of 16 bytes, which meet different banks in neighbouring rows that are swizzled."""


MOST_COLUMNS = 32
"""Of a product with an unpacked A that mma.sync does in place of wgmma: unpacking then takes longer than both."""


def find_depth_run(product: Gemm, kernel: tile.Kernel) -> int:
    """Return how many neighbours along K a thread holds of this product's operand in registers; 0 for those of the
    instruction.
    """
    return DEPTH_RUN if product.via == "mma" and _can_read_runs(product, kernel) else 0


def prefers_depth_runs(product: Gemm, kernel: tile.Kernel) -> bool:
    """Return whether mma.sync, by runs along K, is to do a product of few columns that wgmma could do, too."""
    return get_gemm_shape(product)[1] <= MOST_COLUMNS and _can_read_runs(product, kernel)


def _can_read_runs(product: Gemm, kernel: tile.Kernel) -> bool:
    """Return whether one operand is unpacked for this product alone, and the other is read from shared rows along K."""
    if product.transpose_A or not product.transpose_B or product.metadata is not None:
        return False
    regions = (product.a, product.b)
    held = [region for region in regions if region.buffer.scope == "fragment"]
    if len(held) != 1 or any(region.buffer.scope not in ("fragment", "shared") for region in regions):
        return False
    buffer = held[0].buffer
    if buffer.dtype.bits != 16 or not held[0].is_whole or buffer.shape[-1] % (4 * DEPTH_RUN):
        return False
    stmts = list(tile.walk_statements(kernel.body))
    if sum(isinstance(stmt, tile.TileOp) and buffer in (*find_reads(stmt), *find_writes(stmt)) for stmt in stmts) > 1:
        return False
    return any(isinstance(stmt, tile.Parallel) and _is_unpacked_in(stmt, buffer) for stmt in stmts)


def _is_unpacked_in(nest: tile.Parallel, buffer: tile.Buffer) -> bool:
    """Return whether a nest computes a fragment from a shared tile with fewer bits for as many rows."""
    return buffer in find_writes(nest) and any(
        read.scope == "shared" and not read.dtype.is_float and _count_row_bits(read) < _count_row_bits(buffer)
        for read in find_reads(nest)
        if read.shape[:-1] == buffer.shape[:-1]
    )


def _count_row_bits(buffer: tile.Buffer) -> int:
    return buffer.shape[-1] * buffer.dtype.bits
