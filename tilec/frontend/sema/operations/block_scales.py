"""Block scales for the tensor cores: rows of words, transposed into lines."""

from __future__ import annotations

from tilec.frontend.sema.context import Context
from tilec.ir import tile
from tilec.ir.types import UINT32
from tilec.ops.language.signature import Call, Parameter, Signature
from tilec.ops.products.block_scaled import ROWS, SCALES_PER_WORD
from tilec.rewriting.fold_constants import fold_binary
from tilec.support.diagnostics import raise_error

TRANSPOSE_SIGNATURE = Signature("T.tcgen05_sf_warp_transpose", (Parameter("smem_src"),))
_LINES_PER_BLOCK = ROWS // SCALES_PER_WORD


def transpose_scales(context: Context, call: Call) -> None:
    """Emit nests that move word r of each 128 shared words to line r % 32, by a new fragment; refuse other operands.
    Refused is what is not a multiple of 128 shared uint32 words.
    """
    region = call.read_region("smem_src")
    words, buffer = region.extent[-1], region.buffer
    if buffer.scope != "shared" or buffer.dtype != UINT32 or words % ROWS or any(e != 1 for e in region.extent[:-1]):
        title = f"{call.name} needs a multiple of 128 words of scales"
        note = f"{buffer.name} is {buffer.dtype}[{', '.join(map(str, region.extent))}]"
        way_out = 'allocate it as T.alloc_shared((128 * n,), "uint32")'
        raise_error("shape-mismatch", title, call["smem_src"].span, note, help=way_out)
    words_copy = context.allocate_buffer(f"{buffer.name}_words", (words,), UINT32, "fragment", call.span)
    for is_read in (True, False):
        index = tile.Var(context.unique.take("word"))
        if is_read:
            value: tile.Expr = tile.Load(buffer, _offset_index(region, index))
            store = tile.Store(words_copy, (index,), value, call.span)
        else:
            block, word = fold_binary("floordiv", index, ROWS), fold_binary("floormod", index, ROWS)
            row = fold_binary("mul", fold_binary("floormod", word, _LINES_PER_BLOCK), SCALES_PER_WORD)
            line = fold_binary("add", row, fold_binary("floordiv", word, _LINES_PER_BLOCK))
            to = fold_binary("add", fold_binary("mul", block, ROWS), line)
            store = tile.Store(buffer, _offset_index(region, to), tile.Load(words_copy, (index,)), call.span)
        context.out.append(tile.Parallel((index,), (words,), (store,), call.span))


def _offset_index(region: tile.Region, word: tile.Expr) -> tuple[tile.Expr, ...]:
    """Return the indices of the element `word` places after a region's start, along the last dimension."""
    return (*region.start[:-1], fold_binary("add", region.start[-1], word))
