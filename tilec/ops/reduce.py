"""T.reduce_sum, T.reduce_max, T.reduce_min, T.reduce_absmax: one dimension of a tile folded into one element."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, cast

from tilec.diag import Label, fail
from tilec.ir import warp
from tilec.ir.layout import Fragment
from tilec.ir.tile import Region, TileOp
from tilec.ops.lowering import Context, Demand, demand
from tilec.ops.registry import Effects, Environment, Operation, Spelling, facet, register, tile_op
from tilec.ops.signature import Call, Parameter, Signature
from tilec.ops.values import show_shape

Kind = Literal["sum", "max", "min", "absmax"]
_KINDS: dict[Kind, str] = {
    "sum": "the sum",
    "max": "the largest element",
    "min": "the smallest element",
    "absmax": "the largest absolute value",
}


def _check(kind: Kind, call: Call) -> TileOp:
    src, dst = _tile(call, "buffer"), _tile(call, "out")
    rank = len(src.extent)
    dim = call.integer("dim")
    if not -rank <= dim < rank:
        fail(
            "out-of-range",
            f"{call.name}: there is no dimension {dim}",
            call["dim"].span,
            f"{src.buffer.name} has {rank} dimension{'s' * (rank != 1)}",
        )
    dim %= rank
    dropped = src.extent[:dim] + src.extent[dim + 1 :] or (1,)
    kept = (*src.extent[:dim], 1, *src.extent[dim + 1 :])
    if dst.extent not in (dropped, kept):
        fail(
            "shape-mismatch",
            f"{call.name}: `out` does not have the shape of the result",
            call["out"].span,
            f"this is {show_shape(dst.extent)}, the result is {show_shape(dropped)}",
            secondary=(Label(dst.buffer.span, "from here"),),
        )
    if src.buffer.dtype != dst.buffer.dtype:
        fail(
            "dtype-mismatch",
            f"{call.name}: input and output have different dtypes",
            call.span,
            f"from {src.buffer.dtype} to {dst.buffer.dtype}",
        )
    return tile_op("reduce", (src, dst), call.span, clear=call.boolean("clear"), dim=dim, kind=kind)


def _tile(call: Call, name: str) -> Region:
    region = call.region(name)
    if region.buffer.scope == "global":
        fail(
            "wrong-scope",
            f"{call.name} works on tiles, not on tensors",
            call[name].span,
            f"{region.buffer.name} lies in global memory",
            help="T.copy it to a fragment first",
        )
    return region


def _effects(op: TileOp) -> Effects:
    src, dst = op.regions
    return Effects((src,) if op.attr("clear") else (src, dst), (dst,))


def _reference(op: TileOp, env: Environment) -> None:
    import numpy as np

    src, dst = op.regions
    value = env.read(src)
    dim = op.attr("dim")
    assert isinstance(dim, int)
    # Sums are carried in the widest type, so that the order of addition does not show in the reference.
    wide = value.astype(np.float64 if src.buffer.dtype.is_float else np.int64)
    kind = str(op.attr("kind"))
    # fmax and fmin pass over NaN, as the hardware's max and min do.
    combine = {"sum": np.add, "max": np.fmax, "min": np.fmin, "absmax": np.fmax}[kind]
    result = combine.reduce(np.abs(wide) if kind == "absmax" else wide, axis=dim).reshape(dst.extent)
    if not op.attr("clear"):
        before = env.read(dst).astype(wide.dtype)
        result = combine(result, np.abs(before) if kind == "absmax" else before)
    env.write(dst, result)


def _spelling(kind: Kind, what: str) -> Spelling:
    return Spelling(
        Signature(
            f"T.reduce_{kind}",
            (
                Parameter("buffer"),
                Parameter("out"),
                Parameter("dim", -1),
                Parameter("clear", True),
                Parameter("batch", 1, supported=False),
                Parameter("nan_propagate", False, supported=False),
                Parameter("annotations", None, supported=False),
            ),
        ),
        f"""Put {what} along dimension `dim` of `buffer` into `out`.

        `out` has the shape of `buffer` without that dimension, or with extent 1 there, and the same dtype. With
        clear=False what `out` held before takes part.
        """,
        partial(_check, kind),
    )


REDUCE = register(
    Operation("reduce", tuple(_spelling(kind, what) for kind, what in _KINDS.items()), _effects, _reference)
)


@facet("reduce", "lower")
def lower(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    source, destination = (r.buffer for r in op.regions)
    dim = op.attr("dim")
    kind = cast(Kind, op.attr("kind"))
    assert isinstance(dim, int)
    layout = context.fragments[source.name]
    warps = crossing_warps(layout, dim)
    scratch = None
    if warps > 1:
        kept = math.prod(a.size for a in layout.registers if a.dim != dim)
        scratch = context.scratch(4 * kept * context.threads, op.span)
    return (
        warp.Reduce(
            source, destination, kind, dim, bool(op.attr("clear")), scratch, cursors=context.cursors, span=op.span
        ),
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
