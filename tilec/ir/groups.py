"""Statements that some warpgroups of a block run and others do not: under an `If` on the thread's warpgroup.

Such a condition is always one range of neighbouring warpgroups, and the `If` has no other side.
"""

from __future__ import annotations

from tilec.ir.tile import WARPGROUP, Binary, Const, Expr, If, Stmt, integer
from tilec.ir.types import BOOL

WARP_THREADS = 32
WARPGROUP_WARPS = 4
WARPGROUP_THREADS = WARP_THREADS * WARPGROUP_WARPS
TENSOR_LANES = 128
"""Lanes of tensor memory: warp w reaches 32 of them, from lane 32 · (w % 4) on (PTX ISA, "Tensor Memory")."""


def condition(groups: range) -> Expr:
    """Whether the thread's warpgroup is one of these."""
    first = Binary("ge", WARPGROUP, integer(groups.start), BOOL)
    return Binary("and", first, Binary("lt", WARPGROUP, integer(groups.stop), BOOL), BOOL)


def groups_of(stmt: Stmt) -> range | None:
    """The warpgroups that run what stands under this statement, if it says."""
    match stmt:
        case If(
            condition=Binary(
                op="and",
                a=Binary(op="ge", a=first, b=Const(value=start)),
                b=Binary(op="lt", a=last, b=Const(value=stop)),
            )
        ) if first == last == WARPGROUP:
            return range(int(start), int(stop))
        case _:
            return None
