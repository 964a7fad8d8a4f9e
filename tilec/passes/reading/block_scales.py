"""Block scales: lines of words for the tensor cores made of words in the order of the rows, and what tcgen05.mma can do
with scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.diag import fail
from tilec.ir.tile import Binary, Buffer, Expr, Load, Parallel, Region, Store, TileOp, Var, integer
from tilec.ir.types import INT32, UINT32
from tilec.ops.block_scaled import PER_WORD, ROWS
from tilec.ops.gemm import gemm_shape
from tilec.ops.signature import Call, Parameter, Signature
from tilec.target import Target

if TYPE_CHECKING:
    from tilec.passes.reading.threads import PerThread

TRANSPOSE = Signature("T.tcgen05_sf_warp_transpose", (Parameter("smem_src"),))
_LINES = ROWS // PER_WORD


def transposed(body: PerThread, call: Call) -> None:
    """In place: word r of each 128 becomes a part of line r % 32. Threads take a copy, and put it back in other
    places."""
    region = call.region("smem_src")
    words, tile = region.extent[-1], region.buffer
    if tile.scope != "shared" or tile.dtype != UINT32 or words % ROWS or any(e != 1 for e in region.extent[:-1]):
        fail(
            "shape-mismatch",
            f"{call.name} takes 128 words of scales at a time",
            call["smem_src"].span,
            f"{tile.name} is {tile.dtype}[{', '.join(map(str, region.extent))}]",
            help='make it by T.alloc_shared((128 * n,), "uint32")',
        )
    held = Buffer(body.unique.take(f"{tile.name}_words"), (words,), UINT32, "fragment", call.span)
    body.buffers.append(held)
    for is_read in (True, False):
        each = Var(body.unique.take("word"))
        if is_read:
            value: Expr = Load(tile, _place(region, each))
            store = Store(held, (each,), value, call.span)
        else:
            block, word = _int("floordiv", each, ROWS), _int("floormod", each, ROWS)
            line = _int("add", _int("mul", _int("floormod", word, _LINES), PER_WORD), _int("floordiv", word, _LINES))
            to = _int("add", _int("mul", block, ROWS), line)
            store = Store(tile, _place(region, to), Load(held, (each,)), call.span)
        body.out.append(Parallel((each,), (words,), (store,), call.span))


def _place(region: Region, word: Expr) -> tuple[Expr, ...]:
    return (*region.start[:-1], Binary("add", region.start[-1], word, INT32))


def _int(op: str, a: Expr, b: Expr | int) -> Expr:
    return Binary(op, a, integer(b) if isinstance(b, int) else b, INT32)  # type: ignore[arg-type]


def why_not_scaled(op: TileOp, target: Target) -> str | None:
    """Why the tensor cores cannot do this product or copy, or None (PTX ISA, tcgen05 "Matrix shape")."""
    if not target.has("tcgen05"):
        return f"{target.name} has no tensor memory"
    if part := next((r for r in op.regions if not r.is_whole), None):
        return f"a part of {part.buffer.name} is given: T.copy it to a tile of its own first"
    if op.name == "scale_copy":
        return None
    m, n, k = gemm_shape(op)
    tiles = [r.buffer for r in op.regions[:2]]
    if m % ROWS:
        return f"C has {m} rows, not a multiple of {ROWS}"
    if n % 16 or (n > 256 and n % 256):
        return f"C has {n} columns, not a multiple of 16 up to 256 or one of 256"
    if k * tiles[0].dtype.bytes % 32:
        return "it takes 32 bytes along K at a time"
    if any(t.shape[-1] * t.dtype.bytes % 32 for t in tiles):
        return "no bank swizzle fits rows that are not a multiple of 32 bytes"
    return None
