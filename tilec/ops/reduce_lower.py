"""T.reduce_*: registers of a thread first, then lanes by shuffles, then warps through shared memory."""

from __future__ import annotations

import math
from typing import Literal, cast

from tilec.ir.layout import Fragment
from tilec.ir.tile import TileOp
from tilec.ir.warp import Operation, Reduce
from tilec.ops.lowering import Context, Demand, demand
from tilec.ops.registry import facet


@facet("reduce", "lower")
def lower(op: TileOp, context: Context) -> tuple[Operation, ...]:
    source, destination = (r.buffer for r in op.regions)
    dim = op.attr("dim")
    kind = cast(Literal["sum", "max", "min", "absmax"], op.attr("kind"))
    assert isinstance(dim, int)
    layout = context.fragments[source.name]
    warps = crossing_warps(layout, dim)
    scratch = None
    if warps > 1:
        kept = math.prod(a.size for a in layout.registers if a.dim != dim)
        scratch = context.scratch(4 * kept * context.threads, op.span)
    return (
        Reduce(source, destination, kind, dim, bool(op.attr("clear")), scratch, cursors=context.cursors, span=op.span),
    )


def crossing_warps(layout: Fragment, dim: int) -> int:
    """How many warps hold parts of one row along `dim`."""
    below, warps = 1, 1
    for axis in layout.threads:
        if axis.dim == dim:
            low, high = max(below, 32), max(below * axis.size, 32)
            warps *= high // low
        below *= axis.size
    return warps


@facet("reduce", "demand")
def price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    return (demand("reduce", elements=math.prod(op.regions[0].buffer.shape), threads=context.threads),)
