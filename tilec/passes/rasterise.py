"""T.use_swizzle: the blocks of a grid in another order, panel by panel, so that neighbours in time share rows and
columns in the L2 cache."""

from __future__ import annotations

from tilec.ir.affine import add, scale
from tilec.ir.tile import Binary, BinaryOp, Bind, Const, Expr, Extent, Select, Var, extent_expr, integer
from tilec.ir.types import BOOL, INT32
from tilec.passes.fold import fold_expr
from tilec.source import Span


def rasterised(
    block_vars: tuple[Var, ...],
    grid: tuple[Extent, ...],
    panel: int,
    by_rows: bool,
    span: Span,
    cluster: tuple[int, ...] = (1, 1),
) -> tuple[tuple[Var, ...], tuple[Bind, ...]]:
    """What the hardware numbers the blocks by, and the indices that the kernel's text calls `block_vars`.

    A panel is `panel` rows of blocks high (columns wide, if not `by_rows`), the last one what is left. Blocks walk it
    column by column, every other panel backwards. Each block comes once: `%` in a panel numbers rows, `//` columns. The
    blocks of a cluster stay together: it is they that are put in another order.
    """
    if len(grid) < 2 or 1 in grid[:2]:
        return block_vars, ()
    x, y = (Var(f"%{v.name}") for v in block_vars[:2])
    width, depth = (_binary("floordiv", extent_expr(e), integer(c)) for e, c in zip(grid[:2], cluster, strict=False))
    across, along = (width, depth) if by_rows else (depth, width)
    panel = max(panel // cluster[1 if by_rows else 0], 1)
    of_cluster = tuple(_binary("floordiv", v, integer(c)) for v, c in zip((x, y), cluster, strict=False))
    number = add(of_cluster[0], _binary("mul", of_cluster[1], width))
    size = _binary("mul", across, integer(panel))
    inside, which = _binary("floormod", number, size), _binary("floordiv", number, size)
    first = scale(which, panel)
    is_whole = _binary("floormod", along, integer(panel)) == integer(0)
    height = integer(panel) if is_whole else _binary("min", integer(panel), _binary("sub", along, first))
    column, row = _binary("floordiv", inside, height), add(_binary("floormod", inside, height), first)
    last_column = _binary("sub", across, integer(1))
    if not is_whole:  # Known already, but not to the interval arithmetic that drops guards.
        column = _binary("min", column, last_column)
        row = _binary("min", row, _binary("sub", along, integer(1)))
    if not (isinstance(along, Const) and along.value <= panel):
        odd = Binary("eq", _binary("floormod", which, integer(2)), integer(1), BOOL)
        column = Select(odd, _binary("sub", last_column, column), column, INT32)
    new = (column, row) if by_rows else (row, column)
    places = zip(new, (x, y), cluster, strict=False)
    indices = (add(scale(tile, c), _binary("floormod", v, integer(c))) if c > 1 else tile for tile, v, c in places)
    binds = tuple(Bind(var, value, span) for var, value in zip(block_vars[:2], indices, strict=True))
    return (x, y, *block_vars[2:]), binds


def _binary(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    return fold_expr(Binary(op, a, b, INT32))
