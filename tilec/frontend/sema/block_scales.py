"""Block scales for the tensor cores: rows of words, transposed into lines."""

from __future__ import annotations

from tilec.frontend.sema.context import Context
from tilec.ir import tile
from tilec.ir.types import INT32, UINT32
from tilec.ops.block_scaled import PER_WORD, ROWS
from tilec.ops.signature import Call, Parameter, Signature
from tilec.support.diagnostics import fail

TRANSPOSE = Signature("T.tcgen05_sf_warp_transpose", (Parameter("smem_src"),))
_LINES = ROWS // PER_WORD


def transposed(context: Context, call: Call) -> None:
    """Transpose in place: word r of each 128 becomes a part of line r % 32. Threads copy the words, and put them back
    in other places."""
    region = call.region("smem_src")
    words, buffer = region.extent[-1], region.buffer
    if buffer.scope != "shared" or buffer.dtype != UINT32 or words % ROWS or any(e != 1 for e in region.extent[:-1]):
        fail(
            "shape-mismatch",
            f"{call.name} takes 128 words of scales at a time",
            call["smem_src"].span,
            f"{buffer.name} is {buffer.dtype}[{', '.join(map(str, region.extent))}]",
            help='make it by T.alloc_shared((128 * n,), "uint32")',
        )
    words_copy = tile.Buffer(context.unique.take(f"{buffer.name}_words"), (words,), UINT32, "fragment", call.span)
    context.buffers.append(words_copy)
    for is_read in (True, False):
        index = tile.Var(context.unique.take("word"))
        if is_read:
            value: tile.Expr = tile.Load(buffer, _place(region, index))
            store = tile.Store(words_copy, (index,), value, call.span)
        else:
            block, word = _int("floordiv", index, ROWS), _int("floormod", index, ROWS)
            line = _int("add", _int("mul", _int("floormod", word, _LINES), PER_WORD), _int("floordiv", word, _LINES))
            to = _int("add", _int("mul", block, ROWS), line)
            store = tile.Store(buffer, _place(region, to), tile.Load(words_copy, (index,)), call.span)
        context.out.append(tile.Parallel((index,), (words,), (store,), call.span))


def _place(region: tile.Region, word: tile.Expr) -> tuple[tile.Expr, ...]:
    return (*region.start[:-1], tile.Binary("add", region.start[-1], word, INT32))


def _int(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr | int) -> tile.Expr:
    return tile.Binary(op, a, tile.integer(b) if isinstance(b, int) else b, INT32)
