"""Statements that only some warps of a block run: those under an `If` on the thread's warp or warpgroup.

Such a condition is always one range of neighbouring warps, and the `If` has no else branch.
"""

from __future__ import annotations

from tilec.ir import tile
from tilec.ir.types import BOOL

WARP_THREADS = 32
WARPGROUP_WARPS = 4
WARPGROUP_THREADS = WARP_THREADS * WARPGROUP_WARPS
TENSOR_LANES = 128
"""Lanes of tensor memory: warp w reaches 32 of them, from lane 32 · (w % 4) on (PTX ISA, "Tensor Memory")."""

_UNITS = {tile.WARPGROUP: WARPGROUP_WARPS, tile.BLOCK_WARP: 1}
"""The indices that conditions test, each with the warps that share one."""


def warps_condition(warps: range) -> tile.Expr:
    """Return the bool expression that the thread's warp is in the range; it tests the warpgroup if these are whole."""
    is_whole = warps.start % WARPGROUP_WARPS == warps.stop % WARPGROUP_WARPS == 0
    index = tile.WARPGROUP if is_whole else tile.BLOCK_WARP
    start, stop = (tile.int32_const(bound // _UNITS[index]) for bound in (warps.start, warps.stop))
    first, last = tile.Binary("ge", index, start, BOOL), tile.Binary("lt", index, stop, BOOL)
    return tile.Binary("and", first, last, BOOL)


def describe_warps(warps: range) -> str:
    """Return the name of neighbouring warps for an error: "warpgroup 0", "warpgroups 1 to 2", "warp 5"."""
    is_whole = warps.start % WARPGROUP_WARPS == warps.stop % WARPGROUP_WARPS == 0
    unit, size = ("warpgroup", WARPGROUP_WARPS) if is_whole else ("warp", 1)
    first, last = warps.start // size, warps.stop // size - 1
    return f"{unit} {first}" if first == last else f"{unit}s {first} to {last}"


def guarded_warps(stmt: tile.Stmt) -> range | None:
    """Return the warps that run an `If` whose condition is `warps_condition`'s; None for any other statement."""
    match stmt:
        case tile.If(
            condition=tile.Binary(
                op="and",
                a=tile.Binary(op="ge", a=first, b=tile.Const(value=start)),
                b=tile.Binary(op="lt", a=last, b=tile.Const(value=stop)),
            )
        ) if first == last and isinstance(first, tile.Var) and first in _UNITS:
            return range(int(start) * _UNITS[first], int(stop) * _UNITS[first])
        case _:
            return None
