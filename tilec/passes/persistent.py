"""A persistent grid: as many blocks as there are multiprocessors, each of which runs several of the blocks asked for.

Where one block fills a multiprocessor, the next one begins only when it has ended: its loads start into an empty
pipeline, and nobody computes while it stores. In one block after the other, the producer warp fills the rings for the
next tile while the consumers are still busy with this one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.ir.affine import add
from tilec.ir.tile import Binary, BinaryOp, Bind, Expr, For, If, Kernel, Stmt, Var, integer, walk
from tilec.ir.types import BOOL, INT32
from tilec.ops.sync import is_explicit
from tilec.passes.fold import fold_expr


def persistent(kernel: Kernel, multiprocessors: int) -> Kernel | None:
    """The kernel with a persistent grid. None where it has no more blocks than there are multiprocessors, or a number
    known only at launch, where they form clusters, and where it synchronises by hand: barriers may count on being
    new. None too where a block's number is too large for an int32."""
    grid = [extent for extent in kernel.grid if isinstance(extent, int)]
    blocks = math.prod(grid)
    waves = -(-blocks // multiprocessors)
    if len(grid) < len(kernel.grid) or blocks <= multiprocessors or kernel.cluster.blocks > 1:
        return None
    if waves * multiprocessors > 2**31:
        return None
    if any(map(is_explicit, walk(kernel.body))):
        return None
    block, wave = Var("%block"), Var("%wave")
    number = add(_binary("mul", wave, integer(multiprocessors)), block)
    body: list[Stmt] = []
    rest: Expr = number
    for var, extent in zip(kernel.block_vars[:-1], grid, strict=False):
        body.append(Bind(var, _binary("floormod", rest, integer(extent)), kernel.span))
        rest = _binary("floordiv", rest, integer(extent))
    is_exact = waves * multiprocessors == blocks
    # What follows is for blocks that exist, which interval arithmetic cannot tell from the guard around it.
    last = rest if is_exact else _binary("min", rest, integer(grid[-1] - 1))
    body += [Bind(kernel.block_vars[-1], last, kernel.span), *kernel.body]
    if not is_exact:
        body = [If(Binary("lt", number, integer(blocks), BOOL), tuple(body), (), kernel.span)]
    walked = For("serial", wave, integer(0), integer(waves), 1, tuple(body), span=kernel.span, apart=())
    return replace(kernel, grid=(multiprocessors,), block_vars=(block,), body=(walked,))


def _binary(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    return fold_expr(Binary(op, a, b, INT32))
