"""T.cumsum, T.cummax: inclusive scans of a tile along one dimension."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

from tilec.ir import tile, warp
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.groups import WARP_THREADS
from tilec.ir.layout import Fragment
from tilec.ir.types import BOOL
from tilec.ops.form import OnChip, verify_same_shape
from tilec.ops.language.signature import ANNOTATIONS, Call, Parameter, Signature
from tilec.ops.language.values import show_shape
from tilec.ops.lowering import Demand, LoweringContext, make_demand
from tilec.ops.reductions.reduce import get_kept_extents, is_reducible
from tilec.ops.registry import Environment, Spelling, attach_facet, define_operation, list_move_effects
from tilec.support import schema
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

Kind = Literal["sum", "max"]


@dataclass(frozen=True, slots=True)
class Scan(tile.TileOp):
    """Sets each element of `destination` to `source` combined up to there along `dim`; in `reverse`, from there on."""

    name = "scan"
    reaches_regions = False
    fragments_lie = "its own way"
    order_is_known = True
    source: OnChip
    destination: OnChip
    dim: Annotated[int, schema.Range(0, 31)]
    kind: Kind
    reverse: bool


def _check_scan(kind: Kind, call: Call) -> tile.TileOp:
    """Return the scan of a call; raises errors for tensors, a missing dimension, and shapes or types that do not
    fit."""
    title, help_text = f"{call.name} works on tiles, not on tensors", "T.copy it to a tile first"
    src = call.read_tile("src", title, help_text)
    dst = src if call["dst"].value is None else call.read_tile("dst", title, help_text)
    rank = len(get_kept_extents(src))
    dim = call.read_integer("dim")
    if not -rank <= dim < rank:
        raise_error(
            "out-of-range",
            f"{call.name}: there is no dimension {dim}",
            call["dim"].span,
            f"{src.buffer.name} has {rank} dimension{'s' * (rank != 1)}",
            help="dimensions count from 0, or from -1 for the last",
        )
    if src.shape != dst.shape:
        raise_error(
            "shape-mismatch",
            f"{call.name}: `src` and `dst` have different shapes",
            call.span,
            f"from {show_shape(src.extent)} to {show_shape(dst.extent)}",
            secondary=(Label(dst.buffer.span, "from here"),),
        )
    dtype = src.buffer.dtype
    if dtype == BOOL or dtype in SMALL_FLOATS:
        raise_error(
            "unsupported-type",
            f"{call.name} of {dtype} is not supported",
            call["src"].span,
            f"{src.buffer.name} is {dtype}",
            help="use integers, or floats of 16 bits or more",
        )
    return Scan(src, dst, dim % rank, kind, call.read_boolean("reverse"), span=call.span)


def _evaluate_scan(op: Scan, env: Environment) -> None:
    """Compute the scan in numpy, floats in float64, from the end if reversed, and write it."""
    import numpy as np

    src, dst = op.regions
    dim = op.dim
    combine: Any = {"sum": np.add, "max": np.fmax}[op.kind]
    value = env.read(src).reshape(get_kept_extents(src))
    wide = value.astype(np.float64) if src.buffer.dtype.is_float else value
    flipped = np.flip(wide, dim) if op.reverse else wide
    result = combine.accumulate(flipped, axis=dim, dtype=wide.dtype)
    env.write(dst, (np.flip(result, dim) if op.reverse else result).reshape(dst.extent))


def _make_spelling(name: str, kind: Kind, what: str) -> Spelling:
    """Make the name T.cumsum or T.cummax; `what` is the combined value in words."""
    return Spelling(
        Signature(
            f"T.{name}",
            (Parameter("src"), Parameter("dst", None), Parameter("dim", 0), Parameter("reverse", False), ANNOTATIONS),
        ),
        f"""Put into each element of `dst` {what} of `src` up to it along dimension `dim`.

        Both are fragments or shared tiles of one shape; without `dst`, `src` is changed in place. reverse=True starts
        at the end. Sums of 16-bit floats are carried in float32.
        """,
        partial(_check_scan, kind),
    )


define_operation(
    Scan,
    list_move_effects,
    _evaluate_scan,
    _make_spelling("cumsum", "sum", "the sum of the elements"),
    _make_spelling("cummax", "max", "the maximum of the elements"),
)


@dataclass(frozen=True, slots=True)
class ScanDigit:
    """A digit of the scanned dimension: `size` steps of `stride` elements, in registers, or in threads `below`
    apart."""

    size: int
    stride: int
    below: int | None


def list_scan_digits(layout: Fragment, dim: int) -> tuple[ScanDigit, ...] | None:
    """Return the digits of a dimension, the least significant first; None if it cannot be scanned in this layout.

    Each digit has to follow the one below without gaps, and at most one may go across warps.
    """
    digits = [ScanDigit(axis.size, axis.stride, None) for axis in layout.registers if axis.dim == dim]
    below = 1
    for axis in layout.threads:
        if axis.dim == dim:
            lanes = max(min(axis.size, WARP_THREADS // below), 1)
            digits.append(ScanDigit(lanes, axis.stride, below))
            digits.append(ScanDigit(axis.size // lanes, axis.stride * lanes, below * lanes))
        below *= axis.size
    digits = sorted((digit for digit in digits if digit.size > 1), key=lambda digit: digit.stride)
    step = 1
    for digit in digits:
        if digit.stride != step:
            return None
        step *= digit.size
    across = [digit for digit in digits if digit.below is not None and digit.below >= WARP_THREADS]
    return tuple(digits) if is_reducible(layout, dim) and len(across) <= 1 else None


@attach_facet(Scan, "lower")
def lower_scan(op: Scan, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to one scan of warp IR, with scratch shared memory where a row crosses warps."""
    source, destination = (r.buffer for r in op.regions)
    layout = context.fragments[source.name]
    across = next((d for d in list_scan_digits(layout, op.dim) or () if d.below and d.below >= WARP_THREADS), None)
    scratch = None
    if across is not None:
        # A thread has a total for each run of elements between whose parts no other warp has some.
        runs = math.prod(a.size for a in layout.registers if a.dim != op.dim or a.stride > across.stride)
        scratch = context.scratch(max(source.dtype.bytes, 4) * runs * context.threads, op.span)
    places = (source, destination, op.kind, op.dim, op.reverse, scratch)
    return (warp.Scan(*places, cursors=context.cursors, span=op.span),)


@attach_facet(Scan, "demand")
def list_scan_demands(op: Scan, context: LoweringContext) -> tuple[Demand, ...]:
    """Return the demand of a scan: that of a reduction, and a carry for each element."""
    elements = math.prod(op.source.buffer.shape)
    return (
        make_demand("reduce", elements=elements, threads=context.threads),
        make_demand("elementwise", ops=1, elements=elements, threads=context.threads),
    )


@attach_facet(Scan, "agrees")
def verify_scan(op: Scan) -> Iterator[str]:
    """Yield a message where the scan's dimension does not exist, the shapes differ, or its kind lacks the type."""
    source, result = op.regions
    if op.dim >= len(source.extent):
        yield f"dim is {op.dim}, {source.buffer.name} has {len(source.extent)} dimensions"
    yield from verify_same_shape(source, result)
    if source.buffer.dtype == BOOL or source.buffer.dtype in SMALL_FLOATS:
        yield f"there is no {op.kind} of {source.buffer.dtype}"
