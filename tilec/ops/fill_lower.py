"""T.fill and T.clear: each thread sets the elements it holds."""

from __future__ import annotations

import math

from tilec.ir.tile import TileOp
from tilec.ir.warp import Operation
from tilec.ops.lowering import Context, Demand, demand, sweep
from tilec.ops.registry import facet


@facet("fill", "lower")
def lower(op: TileOp, context: Context) -> tuple[Operation, ...]:
    value = op.attr("value")
    assert value is not None and not isinstance(value, int | float | bool | str)
    return (sweep(op.regions[0], value, context, op.span),)


@facet("fill", "demand")
def price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    region = op.regions[0]
    elements = math.prod(region.extent)
    if region.buffer.scope == "fragment":
        return (demand("elementwise", ops=1, elements=elements, threads=context.threads),)
    return (demand(f"st.{region.buffer.scope}", bytes=elements * region.buffer.dtype.bytes, threads=context.threads),)
