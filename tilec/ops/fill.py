"""T.fill and T.clear: one value for every element of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import Annotated

from tilec.ir.affine import add_exprs
from tilec.ir.expr import cast_expr, make_constant
from tilec.ir.operations.fields import In
from tilec.ir.operations.interfaces import Axis
from tilec.ir.tile import Binary, Expr, If, Parallel, Region, Store, TileOp, Var, int32_const
from tilec.ir.types import BOOL, INT32
from tilec.ops.form import Scalar, verify_value_dtype
from tilec.ops.language.signature import ANNOTATIONS, Call, Parameter, Signature, as_expr
from tilec.ops.lowering import Demand, LoweringContext, build_elementwise, list_store_demands, make_demand
from tilec.ops.registry import Effects, Environment, Spelling, attach_facet, define_operation
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Fill(TileOp):
    """Sets each element of `tile` to `value`, of its dtype."""

    name = "fill"
    by_warpgroups = True
    order_is_known = True
    touches_boxes = True
    is_elementwise = True
    tile: Annotated[Region, In(("shared", "fragment", "tmem", "local"))]
    value: Scalar

    def element(self, place: tuple[Expr, ...], sources: tuple[Expr, ...]) -> Store:
        """Return the store of the value, converted to the tile's type, at `place`."""
        return Store(self.tile.buffer, place, cast_expr(self.value, self.tile.buffer.dtype), self.span)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return one axis for each dimension of the tile: a fill can be split along any of them."""
        return tuple(Axis(((0, d),)) for d in range(len(self.tile.extent)))


def _check_fill(call: Call) -> TileOp:
    """Return the fill of a call of T.fill, its value converted to the buffer's type."""
    dst = call.read_region("buffer")
    return Fill(dst, as_expr(call["value"], dst.buffer.dtype), span=call.span)


def _check_clear(call: Call) -> TileOp:
    """Return the fill with 0 of a call of T.clear."""
    dst = call.read_region("buffer")
    return Fill(dst, make_constant(0, dst.buffer.dtype), span=call.span)


def build_masked_fill(op: Fill) -> Parallel:
    """Build the fill of a part of a fragment as a nest over the whole fragment, masked by the part's bounds. A part
    that reaches beyond the fragment's end is clipped."""
    (part,) = op.regions
    variables = tuple(Var(f"{part.buffer.name}.{d}") for d in range(len(part.extent)))
    bounds: list[Expr] = []
    for var, start, extent, size in zip(variables, part.start, part.extent, part.buffer.shape, strict=True):
        if extent < size or start != int32_const(0):
            first = cast_expr(start, INT32)
            bounds += [Binary("le", first, var, BOOL), Binary("lt", var, add_exprs(first, int32_const(extent)), BOOL)]
    inside = reduce(lambda a, b: Binary("and", a, b, BOOL), bounds)
    store = Store(part.buffer, variables, op.value, op.span)
    return Parallel(variables, part.buffer.shape, (If(inside, (store,), (), op.span),), op.span)


def _evaluate_fill(op: Fill, env: Environment) -> None:
    """Write the value to every element of the region in numpy."""
    import numpy as np

    (dst,) = op.regions
    env.write(dst, np.full(dst.extent, env.scalar(op.value)))


define_operation(
    Fill,
    lambda op: Effects((), op.regions),
    _evaluate_fill,
    Spelling(
        Signature("T.fill", (Parameter("buffer"), Parameter("value"), ANNOTATIONS)),
        """Set every element of `buffer`, a tensor, a tile or a box of one, to `value`, converted to its dtype.""",
        _check_fill,
    ),
    Spelling(
        Signature("T.clear", (Parameter("buffer"), ANNOTATIONS)),
        """Set every element of `buffer`, a tensor, a tile or a box of one, to 0.""",
        _check_clear,
    ),
    lower=lambda op, context: (build_elementwise(op.tile, op.value, context, op.span),),
)


@attach_facet(Fill, "demand")
def list_fill_demands(op: Fill, context: LoweringContext) -> tuple[Demand, ...]:
    """List the demands of a fill: stores to memory, or setting registers."""
    region = op.regions[0]
    elements = math.prod(region.extent)
    in_memory = list_store_demands(region.buffer, elements * region.buffer.dtype.bytes, context.threads)
    return in_memory or (make_demand("elementwise", ops=1, elements=elements, threads=context.threads),)


@attach_facet(Fill, "agrees")
def verify_fill(op: Fill) -> Iterator[str]:
    """Yield a violation if the value has another type than the tile."""
    yield from verify_value_dtype(op.value, op.regions[0])
