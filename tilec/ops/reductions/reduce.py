"""T.reduce_sum, T.reduce_max and their like: one dimension of a tile folded into one element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from tilec.ir import warp
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.groups import WARP_THREADS
from tilec.ir.layout import Fragment
from tilec.ir.operations.interfaces import Axis
from tilec.ir.tile import Region, TileOp
from tilec.ir.types import FLOAT64
from tilec.ops.form import OnChip, Yes, verify_same_dtype
from tilec.ops.language.signature import ANNOTATIONS, Call, Parameter, Signature
from tilec.ops.language.values import show_shape
from tilec.ops.lowering import Demand, LoweringContext, make_demand
from tilec.ops.registry import Effects, Environment, Spelling, attach_facet, define_operation
from tilec.support import schema
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

Kind = Literal["sum", "max", "min", "absmax", "abssum", "bitand", "bitor", "bitxor"]
KINDS: dict[Kind, str] = {
    "sum": "the sum",
    "max": "the largest element",
    "min": "the smallest element",
    "absmax": "the largest absolute value",
    "abssum": "the sum of absolute values",
    "bitand": "the bits set in all elements",
    "bitor": "the bits set in any element",
    "bitxor": "the bits set in an odd number of elements",
}


@dataclass(frozen=True, slots=True)
class Reduce(TileOp):
    """Reduces dimension `dim` of `source` into `destination`; unless `clear`, the previous content of `destination`
    takes part. `dim` counts the dimensions of `get_kept_extents`. With `propagates_nan` the extreme of floats with a
    NaN among them is NaN."""

    name = "reduce"
    by_warpgroups = True
    fragments_lie = "its own way"
    order_is_known = True
    source: OnChip
    destination: OnChip
    clear: bool
    dim: Annotated[int, schema.Range(0, 31)]
    kind: Kind
    propagates_nan: Yes | None = None

    @property
    def only_adds(self) -> bool:
        return not self.clear

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return one axis for each kept dimension and an accumulated one for `dim`; none if the result keeps `dim`,
        with extent 1."""
        rank = len(self.source.extent)
        if len(self.destination.extent) != rank - 1:
            return ()
        kept = [d for d in range(rank) if d != self.dim]
        return *(Axis(((0, d), (1, e))) for e, d in enumerate(kept)), Axis(((0, self.dim),), folded=True)

    def continued(self) -> Reduce:
        """Return the reduction that includes the destination's old value, to add to another part's result."""
        return replace(self, clear=False)

    @property
    def folded(self) -> int:
        return self.dim


EXTREME_KINDS = ("max", "min", "absmax")
BITWISE_KINDS = ("bitand", "bitor", "bitxor")


def _check_reduce(kind: Kind, call: Call) -> TileOp:
    """Return the reduction of a call; raises errors for tensors, a missing dimension, and types or shapes that do not
    fit."""
    title, help_text = f"{call.name} works on tiles, not on tensors", "T.copy it to a fragment first"
    src, dst = (call.read_tile(name, title, help_text) for name in ("buffer", "out"))
    extents, result = get_kept_extents(src), get_kept_extents(dst)
    rank = len(extents)
    dim = call.read_integer("dim")
    if not -rank <= dim < rank:
        raise_error(
            "out-of-range",
            f"{call.name}: there is no dimension {dim}",
            call["dim"].span,
            f"{src.buffer.name} has {rank} dimension{'s' * (rank != 1)}"
            if src.is_whole
            else f"the part of {src.buffer.name} has {rank}",
            help=f"the result comes second: {call.name}({dst.buffer.name}, {src.buffer.name}, …)"
            if len(result) > rank
            else "dimensions count from 0, or from -1 for the last",
        )
    dim %= rank
    dropped = extents[:dim] + extents[dim + 1 :] or (1,)
    kept = (*extents[:dim], 1, *extents[dim + 1 :])
    if result not in (dropped, kept):
        raise_error(
            "shape-mismatch",
            f"{call.name}: `out` does not have the shape of the result",
            call["out"].span,
            f"this is {show_shape(result)}, the result is {show_shape(dropped)}",
            secondary=(Label(dst.buffer.span, "from here"),),
        )
    if src.buffer.dtype != dst.buffer.dtype:
        raise_error(
            "dtype-mismatch",
            f"{call.name}: input and output have different dtypes",
            call.span,
            f"from {src.buffer.dtype} to {dst.buffer.dtype}",
        )
    dtype = src.buffer.dtype
    if dtype.kind == "bool" or dtype in SMALL_FLOATS or (kind in BITWISE_KINDS and dtype.is_float):
        raise_error(
            "unsupported-type",
            f"{call.name} of {dtype} is not supported",
            call["buffer"].span,
            f"{src.buffer.name} is {dtype}",
            secondary=(Label(src.buffer.span, "allocated here"),),
            help="use integers" if kind in BITWISE_KINDS else "use integers, or floats of 16 bits or more",
        )
    clear = call.read_boolean("clear") if "clear" in call.arguments else True
    propagates = "nan_propagate" in call.arguments and call.read_boolean("nan_propagate")
    if propagates and dtype == FLOAT64:
        call.refuse("nan_propagate", "False for float64, whose maxima pass over NaN on all GPUs")
    return Reduce(src, dst, clear, dim, kind, True if propagates and dtype.is_float else None, span=call.span)


def get_kept_extents(region: Region) -> tuple[int, ...]:
    """Return the extents that `dim` counts: all of a whole buffer, of a part only those above 1."""
    return region.extent if region.is_whole else region.shape


def _list_reduce_effects(op: Reduce) -> Effects:
    """Return the effects of a reduction: the destination is written, and read too unless it is cleared."""
    src, dst = op.regions
    return Effects((src,) if op.clear else (src, dst), (dst,))


def _evaluate_reduce(op: Reduce, env: Environment) -> None:
    """Compute the reduction in numpy in the widest type of its kind, and write it, combined with the old value unless
    cleared."""
    import numpy as np

    src, dst = op.regions
    value = env.read(src)
    # Sums are carried in the widest type, so that the reference does not depend on the order of addition.
    dtype = src.buffer.dtype
    wide = value.astype(np.float64 if dtype.is_float else np.uint64 if dtype.kind == "uint" else np.int64)
    kind = op.kind
    # fmax and fmin ignore NaN, as the hardware's max and min do.
    largest, smallest = (np.maximum, np.minimum) if op.propagates_nan else (np.fmax, np.fmin)
    combine: Any = {
        "sum": np.add, "max": largest, "min": smallest, "absmax": largest, "abssum": np.add,
        "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
    }[kind]  # fmt: skip
    terms = (np.abs(wide) if "abs" in kind else wide).reshape(get_kept_extents(src))
    result = combine.reduce(terms, axis=op.dim).reshape(dst.extent)
    if not op.clear:
        before = env.read(dst).astype(wide.dtype)
        result = combine(result, np.abs(before) if kind == "absmax" else before)
    env.write(dst, result)


def _make_spelling(kind: Kind, what: str) -> Spelling:
    """Make the name T.reduce_KIND; `what` is the result in words."""
    return Spelling(
        Signature(
            f"T.reduce_{kind}",
            (
                Parameter("buffer"),
                Parameter("out"),
                Parameter("dim", -1),
                *((Parameter("clear", True),) if kind != "abssum" else ()),
                Parameter("batch", 1, hint="tilec reduces all rows at once"),
                *((Parameter("nan_propagate", False),) if kind in EXTREME_KINDS else ()),
                ANNOTATIONS,
            ),
        ),
        f"""Put {what} along dimension `dim` of `buffer` into `out`.

        Both are fragments or shared tiles, or boxes of shared tiles, in which dimensions of extent 1 do not count.
        `out` has the shape of `buffer` without that dimension, or with extent 1 there, and the same dtype. With
        clear=False the old value of `out` is included."""
        + (" With nan_propagate=True a NaN among floats is the result." if kind in EXTREME_KINDS else ""),
        partial(_check_reduce, kind),
    )


REDUCE = define_operation(
    Reduce, _list_reduce_effects, _evaluate_reduce, *(_make_spelling(kind, what) for kind, what in KINDS.items())
)


@attach_facet(Reduce, "lower")
def lower_reduce(op: Reduce, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to one reduction of warp IR, with scratch shared memory where a row crosses warps."""
    source, destination = (r.buffer for r in op.regions)
    dim = op.dim
    layout = context.fragments[source.name]
    warps = count_crossing_warps(layout, dim)
    scratch = None
    if warps > 1:
        kept = math.prod(a.size for a in layout.registers if a.dim != dim)
        scratch = context.scratch(max(source.dtype.bytes, 4) * kept * context.threads, op.span)
    propagates_nan = op.propagates_nan is not None
    places = (source, destination, op.kind, dim, op.clear, scratch, propagates_nan)
    return (warp.Reduce(*places, cursors=context.cursors, span=op.span),)


def is_reducible(layout: Fragment, dim: int) -> bool:
    """Return whether a row along `dim` can be reduced in this layout. Within a warp its lanes must differ in bits of
    the lane index; across warps the row must take whole warps."""
    below = 1
    for axis in layout.threads:
        above = below * axis.size
        if axis.dim == dim and axis.size > 1:
            whole_warps = below % WARP_THREADS == 0
            bits = WARP_THREADS % below == 0 and (WARP_THREADS % above == 0 or above % WARP_THREADS == 0)
            if not (whole_warps or bits):
                return False
        below = above
    return True


def count_crossing_warps(layout: Fragment, dim: int) -> int:
    """Return the number of warps that hold parts of one row along `dim`; 1 if it stays within a warp."""
    below, warps = 1, 1
    for axis in layout.threads:
        if axis.dim == dim:
            low, high = max(below, 32), max(below * axis.size, 32)
            warps *= high // low
        below *= axis.size
    return warps


@attach_facet(Reduce, "demand")
def list_reduce_demands(op: Reduce, context: LoweringContext) -> tuple[Demand, ...]:
    """Return the demand of reducing all elements of the source's buffer, also where only a part of it is reduced."""
    return (make_demand("reduce", elements=math.prod(op.regions[0].buffer.shape), threads=context.threads),)


@attach_facet(Reduce, "agrees")
def verify_reduce(op: Reduce) -> Iterator[str]:
    """Yield a message where a reduction's dimension does not exist, the shapes or types differ, or the kind lacks the
    type."""
    source, result = op.regions
    extents = get_kept_extents(source)
    if op.dim >= len(extents):
        yield f"dim is {op.dim}, {source.buffer.name} has {len(extents)} dimensions here"
        return
    before, after = extents[: op.dim], extents[op.dim + 1 :]
    if get_kept_extents(result) not in (before + after or (1,), (*before, 1, *after)):
        yield f"{show_shape(extents)} without dimension {op.dim} is not {show_shape(get_kept_extents(result))}"
    yield from verify_same_dtype(source, result)
    dtype = source.buffer.dtype
    if dtype.kind == "bool" or dtype in SMALL_FLOATS or (op.kind in BITWISE_KINDS and dtype.is_float):
        yield f"there is no {op.kind} of {dtype}"
    if op.propagates_nan and (op.kind not in EXTREME_KINDS or not dtype.is_float or dtype == FLOAT64):
        yield f"there is no {op.kind} of {dtype} that propagates NaN"
