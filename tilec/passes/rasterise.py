"""T.use_swizzle: the blocks of a grid in another order, panel by panel, so that neighbours in time share rows and
columns in the L2 cache."""

from __future__ import annotations

from tilec.ir.affine import add, scale
from tilec.ir.tile import Binary, Bind, Expr, Select, Var, integer
from tilec.ir.types import BOOL, INT32
from tilec.source import Span


def rasterised(
    block_vars: tuple[Var, ...], grid: tuple[int, ...], panel: int, by_rows: bool, span: Span
) -> tuple[tuple[Var, ...], tuple[Bind, ...]]:
    """What the hardware numbers the blocks by, and the indices that the kernel's text calls `block_vars`.

    A panel is `panel` rows of blocks high (columns wide, if not `by_rows`), the last one less. Blocks walk it column by
    column, every other panel backwards. Each block comes once: `%` in `panel` numbers rows, `//` counts columns.
    """
    if len(grid) < 2 or min(grid[:2]) == 1:
        return block_vars, ()
    x, y = (Var(f"%{v.name}") for v in block_vars[:2])
    across, along = grid[:2] if by_rows else (grid[1], grid[0])
    number = add(x, scale(y, grid[0]))
    inside = Binary("floormod", number, integer(panel * across), INT32)
    which = Binary("floordiv", number, integer(panel * across), INT32)
    whole, rest = divmod(along, panel)

    def split(op: str, size: int) -> Expr:
        return Binary("floordiv" if op == "//" else "floormod", inside, integer(size), INT32)

    column, row = split("//", panel), split("%", panel)
    if rest:
        is_whole = Binary("lt", which, integer(whole), BOOL)
        column = Select(is_whole, column, split("//", rest), INT32)
        row = Select(is_whole, row, split("%", rest), INT32)
        # Known already, but not to the interval arithmetic that drops guards.
        column = Binary("min", column, integer(across - 1), INT32)
    row = add(row, scale(which, panel))
    row = Binary("min", row, integer(along - 1), INT32) if rest else row
    odd = Binary("eq", Binary("floormod", which, integer(2), INT32), integer(1), BOOL)
    if whole + bool(rest) > 1:
        column = Select(odd, Binary("sub", integer(across - 1), column, INT32), column, INT32)
    new = (column, row) if by_rows else (row, column)
    binds = tuple(Bind(var, value, span) for var, value in zip(block_vars[:2], new, strict=True))
    return (x, y, *block_vars[2:]), binds
