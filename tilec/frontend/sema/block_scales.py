"""Block scales: lines of words for the tensor cores, made of words in the order of the rows."""

from __future__ import annotations

from tilec.frontend.sema.context import Context
from tilec.ir.tile import Binary, Buffer, Expr, Load, Parallel, Region, Store, Var, integer
from tilec.ir.types import INT32, UINT32
from tilec.ops.block_scaled import PER_WORD, ROWS
from tilec.ops.signature import Call, Parameter, Signature
from tilec.support.diagnostics import fail

TRANSPOSE = Signature("T.tcgen05_sf_warp_transpose", (Parameter("smem_src"),))
_LINES = ROWS // PER_WORD


def transposed(context: Context, call: Call) -> None:
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
    held = Buffer(context.unique.take(f"{tile.name}_words"), (words,), UINT32, "fragment", call.span)
    context.buffers.append(held)
    for is_read in (True, False):
        each = Var(context.unique.take("word"))
        if is_read:
            value: Expr = Load(tile, _place(region, each))
            store = Store(held, (each,), value, call.span)
        else:
            block, word = _int("floordiv", each, ROWS), _int("floormod", each, ROWS)
            line = _int("add", _int("mul", _int("floormod", word, _LINES), PER_WORD), _int("floordiv", word, _LINES))
            to = _int("add", _int("mul", block, ROWS), line)
            store = Store(tile, _place(region, to), Load(held, (each,)), call.span)
        context.out.append(Parallel((each,), (words,), (store,), call.span))


def _place(region: Region, word: Expr) -> tuple[Expr, ...]:
    return (*region.start[:-1], Binary("add", region.start[-1], word, INT32))


def _int(op: str, a: Expr, b: Expr | int) -> Expr:
    return Binary(op, a, integer(b) if isinstance(b, int) else b, INT32)  # type: ignore[arg-type]
