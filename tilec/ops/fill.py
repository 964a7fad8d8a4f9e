"""T.fill and T.clear: one value for every element of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce

from tilec.ir import warp
from tilec.ir.affine import add
from tilec.ir.expr import cast, constant
from tilec.ir.tile import Binary, Expr, If, Parallel, Region, Store, TileOp, Var, integer
from tilec.ir.types import BOOL, INT32
from tilec.ops.form import Scalar, attributes, form, of_type
from tilec.ops.lowering import Context, Demand, demand, sweep
from tilec.ops.registry import Effects, Environment, Operation, Spelling, facet, register, tile_op
from tilec.ops.signature import Call, Parameter, Signature, as_expr
from tilec.support.diagnostics import fail
from tilec.support.records import dataclass


def _tile(call: Call) -> Region:
    dst = call.region("buffer")
    if dst.buffer.scope == "global":
        fail(
            "wrong-scope",
            f"{call.name} needs a tile, not a tensor",
            call["buffer"].span,
            f"{dst.buffer.name} lies in global memory",
            help="fill a tile and T.copy it",
        )
    return dst


def _check_fill(call: Call) -> TileOp:
    dst = _tile(call)
    return tile_op("fill", (dst,), call.span, value=as_expr(call["value"], dst.buffer.dtype))


def _check_clear(call: Call) -> TileOp:
    dst = _tile(call)
    return tile_op("fill", (dst,), call.span, value=constant(0, dst.buffer.dtype))


def fill_value(op: TileOp) -> Expr:
    """The value, of the buffer's dtype."""
    value = op.attr("value")
    assert value is not None and not isinstance(value, int | float | str)
    return value


def masked(op: TileOp) -> Parallel:
    """The fill of a part of a fragment as a nest over all of it. A part as large as that may begin behind its first
    element, and what would lie beyond its last is not there."""
    (part,) = op.regions
    variables = tuple(Var(f"{part.buffer.name}.{d}") for d in range(len(part.extent)))
    bounds: list[Expr] = []
    for var, start, extent, size in zip(variables, part.start, part.extent, part.buffer.shape, strict=True):
        if extent < size or start != integer(0):
            first = cast(start, INT32)
            bounds += [Binary("le", first, var, BOOL), Binary("lt", var, add(first, integer(extent)), BOOL)]
    inside = reduce(lambda a, b: Binary("and", a, b, BOOL), bounds)
    store = Store(part.buffer, variables, fill_value(op), op.span)
    return Parallel(variables, part.buffer.shape, (If(inside, (store,), (), op.span),), op.span)


def _effects(op: TileOp) -> Effects:
    return Effects((), op.regions)


def _reference(op: TileOp, env: Environment) -> None:
    import numpy as np

    (dst,) = op.regions
    env.write(dst, np.full(dst.extent, env.scalar(fill_value(op))))


FILL = register(
    Operation(
        "fill",
        (
            Spelling(
                Signature("T.fill", (Parameter("buffer"), Parameter("value"))),
                """Set every element of `buffer`, a tile or a box of one, to `value`, converted to its dtype.""",
                _check_fill,
            ),
            Spelling(
                Signature("T.clear", (Parameter("buffer"),)),
                """Set every element of `buffer`, a tile or a box of one, to 0.""",
                _check_clear,
            ),
        ),
        _effects,
        _reference,
    )
)


@facet("fill", "lower")
def lower(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    return (sweep(op.regions[0], fill_value(op), context, op.span),)


@facet("fill", "demand")
def price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    region = op.regions[0]
    elements = math.prod(region.extent)
    if region.buffer.scope == "fragment":
        return (demand("elementwise", ops=1, elements=elements, threads=context.threads),)
    return (demand(f"st.{region.buffer.scope}", bytes=elements * region.buffer.dtype.bytes, threads=context.threads),)


@form("fill", ("shared", "fragment", "tmem", "local"))
@dataclass(frozen=True, slots=True)
class Attributes:
    value: Scalar


@facet("fill", "agrees")
def agrees(op: TileOp) -> Iterator[str]:
    yield from of_type(attributes(op).value, op.regions[0])
