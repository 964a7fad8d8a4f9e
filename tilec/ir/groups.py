"""Statements that only some warpgroups of a block run: those under an `If` on the thread's warpgroup.

Such a condition is always one range of neighbouring warpgroups, and the `If` has no else branch.
"""

from __future__ import annotations

from tilec.ir import tile
from tilec.ir.types import BOOL

WARP_THREADS = 32
WARPGROUP_WARPS = 4
WARPGROUP_THREADS = WARP_THREADS * WARPGROUP_WARPS
TENSOR_LANES = 128
"""Lanes of tensor memory: warp w reaches 32 of them, from lane 32 · (w % 4) on (PTX ISA, "Tensor Memory")."""


def warpgroup_condition(groups: range) -> tile.Expr:
    """Return the bool expression that the thread's warpgroup is at least the range's first and less than its end."""
    first = tile.Binary("ge", tile.WARPGROUP, tile.int32_const(groups.start), BOOL)
    return tile.Binary("and", first, tile.Binary("lt", tile.WARPGROUP, tile.int32_const(groups.stop), BOOL), BOOL)


def guarded_warpgroups(stmt: tile.Stmt) -> range | None:
    """Return the warpgroups that run an `If` whose condition is `warpgroup_condition`'s; None for any other
    statement."""
    match stmt:
        case tile.If(
            condition=tile.Binary(
                op="and",
                a=tile.Binary(op="ge", a=first, b=tile.Const(value=start)),
                b=tile.Binary(op="lt", a=last, b=tile.Const(value=stop)),
            )
        ) if first == last == tile.WARPGROUP:
            return range(int(start), int(stop))
        case _:
            return None
