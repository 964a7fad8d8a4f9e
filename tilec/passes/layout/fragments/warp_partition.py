"""Partition the accumulator of a T.gemm among the warps of a block, for wgmma or mma.sync."""

from __future__ import annotations

import math

from tilec.ir.affine import add_exprs, affine_form, scale_expr
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.tile import Expr, Region, int32_const
from tilec.ops.products.gemm import Gemm, get_gemm_shape


def partition_warpgroups(op: Gemm, threads: int) -> tuple[int, int] | None:
    """Return the number of warpgroups along M and along N of a product, or None where wgmma cannot do it."""
    a, b, *_ = (r.buffer for r in op.regions)
    m, n, k = get_gemm_shape(op)
    if (
        b.scope == "fragment"
        or a.dtype.bytes == 8
        or op.nibbles is not None
        or threads % WARPGROUP_THREADS
        or m % 64
        or k * a.dtype.bytes % 32
    ):
        return None
    if a.dtype.bits != 16 and (op.transpose_A or not op.transpose_B):
        return None  # other types must be stored along K
    if any(t.shape[-1] * t.dtype.bytes % 32 for t in (a, b) if t.scope == "shared"):
        return None  # no bank swizzle fits the rows
    along_k = (not op.transpose_A, op.transpose_B)
    if not all(map(_has_descriptor, op.regions[:2], along_k)):
        return None
    groups = threads // WARPGROUP_THREADS
    across_m = {"full_row": groups, "full_col": 1}.get(op.policy, math.gcd(groups, m // 64))
    across_n = groups // across_m
    if across_m * across_n != groups or (m // 64) % across_m or n % (8 * across_n) or n // across_n > 256:
        return None
    columns = n // across_n
    if not a.dtype.is_float and columns % 16 and columns not in (8, 24):
        return None  # PTX ISA, wgmma: the shapes of integers
    b_panel = min(64, 32 * (b.shape[-1] // 32) or 16)
    if not op.transpose_B and across_n > 1 and (n // across_n) % b_panel:
        return None
    return across_m, across_n


def _has_descriptor(part: Region, along_k: bool) -> bool:
    """Return False if no wgmma descriptor addresses this part of a shared tile, off a swizzle boundary; else True.
    The part begins where the swizzle's pattern of 8 rows does (PTX ISA, "Matrix descriptor format": else it needs a
    base offset), and in these rows where a step along k does, or, stored along the other dimension, a panel."""
    tile = part.buffer
    if tile.scope != "shared" or part.is_whole:
        return True
    row: Expr = int32_const(0)
    for index, extent in zip(part.start[:-1], tile.shape[:-1], strict=True):
        row = add_exprs(scale_expr(row, extent), index)
    first = affine_form(part.start[-1]).divisor * tile.dtype.bytes
    panel = math.gcd(tile.shape[-1] * tile.dtype.bytes, 128)
    columns = part.extent[-1] * tile.dtype.bytes
    if math.prod(tile.shape[:-1]) % 8 and tile.shape[-1] * tile.dtype.bytes > panel:
        return False  # panels behind the first begin inside the pattern
    return affine_form(row).divisor % 8 == 0 and not (first % 32 if along_k else first % panel or columns % panel)


def partition_warps(op: Gemm, threads: int) -> tuple[int, int] | None:
    """Return the number of warps along M and along N of a product, or None where mma.sync cannot do it. The partition
    is as square as the policy allows, in blocks of at least 16 × 16."""
    a, b, *_ = (r.buffer for r in op.regions)
    m, n, k = get_gemm_shape(op)
    if threads % 32 or m % 16 or n % 8 or k * a.dtype.bytes % 32:
        return None
    warps = threads // 32
    splits = [(i, warps // i) for i in range(1, warps + 1) if warps % i == 0]
    fitting = [(i, j) for i, j in splits if m % (16 * i) == 0 and n % (8 * j) == 0]
    policy = op.policy
    if policy == "full_row" or (a.scope == "fragment" and b.scope == "shared" and policy == "square"):
        # Warps along M hold A in registers once: then an accumulator can be the next product's A as it is. With both
        # factors in registers, one of them is held twice.
        fitting = [s for s in fitting if s[1] == 1] or fitting
    elif policy == "full_col":
        fitting = [s for s in fitting if s[0] == 1] or fitting
    # Shared-memory traffic is proportional to the perimeter of a warp's block.
    return min(fitting, key=lambda s: (m // s[0] + n // s[1], s), default=None)
