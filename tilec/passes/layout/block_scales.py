"""Products and copies with block scales that tcgen05 can do."""

from __future__ import annotations

from tilec.ops.products.block_scaled import ROWS, ScaleCopy, ScaledGemm
from tilec.ops.products.gemm import get_gemm_shape
from tilec.target.table import Target


def why_not_scaled(op: ScaledGemm | ScaleCopy, target: Target) -> str | None:
    """Return why the tensor cores cannot do this product or copy, or None (PTX ISA, tcgen05 "Matrix shape")."""
    if not target.has("tcgen05"):
        return f"{target.name} has no tensor memory"
    if part := next((r for r in op.regions if not r.is_whole), None):
        return f"it needs whole tiles, and this is a part of {part.buffer.name}: T.copy it to a tile of its own first"
    if isinstance(op, ScaleCopy):
        return None
    m, n, k = get_gemm_shape(op)
    tiles = [r.buffer for r in op.regions[:2]]
    if m % ROWS:
        return f"C has {m} rows, not a multiple of {ROWS}"
    if n % 16 or (n > 256 and n % 256):
        return f"C has {n} columns, not a multiple of 16 up to 256 or one of 256"
    if k * tiles[0].dtype.bytes % 32:
        return "K must be a multiple of 32 bytes"
    if any(t.shape[-1] * t.dtype.bytes % 32 for t in tiles):
        return "no bank swizzle fits rows that are not a multiple of 32 bytes"
    return None
