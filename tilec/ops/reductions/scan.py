"""T.cumsum, T.cummax: inclusive scans of a tile along one dimension.

They have no code of their own: `expand_scan` rewrites them as nests over two shared tiles. Each nest doubles the number
of combined elements (Hillis and Steele 1986).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal, NoReturn

from tilec.ir import tile
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.types import BOOL, FLOAT32, INT32
from tilec.ops.copies.copy import Copy
from tilec.ops.form import OnChip, verify_same_shape
from tilec.ops.language.signature import ANNOTATIONS, Call, Parameter, Signature
from tilec.ops.language.values import show_shape
from tilec.ops.lowering import LoweringContext
from tilec.ops.reductions.reduce import get_kept_extents
from tilec.ops.registry import Environment, Spelling, attach_facet, define_operation, list_move_effects
from tilec.support import schema
from tilec.support.diagnostics import InternalError, Label, raise_error
from tilec.support.records import dataclass

Kind = Literal["sum", "max"]


@dataclass(frozen=True, slots=True)
class Scan(tile.TileOp):
    """Sets each element of `destination` to `source` combined up to there along `dim`; in `reverse`, from there on."""

    name = "scan"
    reaches_regions = False
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


def expand_scan(op: Scan, allocate: Callable[[tile.Buffer], tile.Buffer]) -> tuple[tile.Stmt, ...]:
    """Return statements that do the scan in doubling steps, alternating between two shared tiles from `allocate`."""
    src, dst = op.regions
    dim, reverse = op.dim, op.reverse
    kind: tile.BinaryOp = "add" if op.kind == "sum" else "max"
    # Sums of 16-bit floats are carried in float32.
    dtype = FLOAT32 if src.buffer.dtype.is_float and src.buffer.dtype.bits < 32 else src.buffer.dtype
    extents = get_kept_extents(src)
    here, there = (allocate(tile.Buffer(f"scan{i}", extents, dtype, "shared", op.span)) for i in (0, 1))
    variables = tuple(tile.Var(f"%s{d}") for d in range(len(extents)))
    length = extents[dim]
    body: list[tile.Stmt] = [Copy(src, _make_whole_region(here, op), via="registers", span=op.span)]
    step = 1
    while step < length:
        at = variables[dim]
        # The index stays inside the tile, since the element is read even where it is not used.
        by = tile.int32_const(step)
        if reverse:
            exists = tile.Binary("lt", at, tile.int32_const(length - step), BOOL)
            other = tile.Binary("min", tile.Binary("add", at, by, INT32), tile.int32_const(length - 1), INT32)
        else:
            exists = tile.Binary("ge", at, by, BOOL)
            other = tile.Binary("max", tile.Binary("sub", at, by, INT32), tile.int32_const(0), INT32)
        before = tile.Load(here, (*variables[:dim], other, *variables[dim + 1 :]))
        mine = tile.Load(here, variables)
        value = tile.Select(exists, tile.Binary(kind, mine, before, dtype), mine, dtype)
        body.append(tile.Parallel(variables, extents, (tile.Store(there, variables, value, op.span),), op.span))
        here, there = there, here
        step *= 2
    return (*body, Copy(_make_whole_region(here, op), dst, via="registers", span=op.span))


def _make_whole_region(buffer: tile.Buffer, op: Scan) -> tile.Region:
    """Return all of a buffer as a region, at the scan's place in the source."""
    return tile.Region(buffer, tuple(tile.int32_const(0) for _ in buffer.shape), buffer.shape, op.span)


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


def _refuse_unexpanded(op: Scan, context: LoweringContext) -> NoReturn:
    raise InternalError("T.cumsum and T.cummax are expanded before they are priced or lowered")


define_operation(
    Scan,
    list_move_effects,
    _evaluate_scan,
    _make_spelling("cumsum", "sum", "the sum of the elements"),
    _make_spelling("cummax", "max", "the maximum of the elements"),
    demand=_refuse_unexpanded,
    lower=_refuse_unexpanded,
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
