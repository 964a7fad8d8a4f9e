"""Atomics: T.atomic_add and its like, on one element inside T.Parallel or on a whole tile outside.

Inside T.Parallel they become atomic stores, which `codegen.elementwise.elementwise` merges into vectors. A whole tile
is combined element by element, or by one TMA reduction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field, replace
from functools import partial
from typing import Annotated, Any, Literal, cast

from tilec.ir import tile, warp
from tilec.ir.affine import Affine, add_exprs, affine_form
from tilec.ir.expr import cast_expr as converted, make_constant
from tilec.ir.operations.fields import BY_PASSES, In
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT32, UINT64
from tilec.ops.form import OnChip, Positive, Yes, verify_same_shape
from tilec.ops.language.signature import ANNOTATIONS, Argument, Call, Parameter, Signature, as_expr
from tilec.ops.language.values import EXPR_TYPES, Access, IndexRange, describe_value, show_shape
from tilec.ops.lowering import (
    Demand,
    LoweringContext,
    build_elementwise,
    build_tma_store,
    list_store_demands,
    make_demand,
)
from tilec.ops.registry import Effects, Environment, Spelling, attach_facet, define_operation
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

PREVIOUS = "%previous"
"""The variable of the element's previous value, until the kernel's own name for it is known."""

_NUMBERS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT32, UINT64)
_INTEGERS = (INT32, INT64, UINT32, UINT64)
ATOMIC_TYPES = dict.fromkeys(("add", "min", "max", "store", "load"), _NUMBERS) | {"bitor": _INTEGERS}
"""The types of an element that each combination supports."""

_ORDERS: dict[str, tuple[tile.Order, ...]] = {
    "load": ("relaxed", "acquire", "seq_cst"),
    "store": ("relaxed", "release", "seq_cst"),
}
_ALL_ORDERS: tuple[tile.Order, ...] = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")


TileCombination = Literal["add", "max", "min", "bitor"]
"""The combinations of a whole tile with its destination."""


@dataclass(frozen=True, slots=True)
class AtomicTile(tile.TileOp):
    """Combines each element of `source` into that of `destination` atomically, with this memory `order`. `parts`,
    `staged` and `wait` are those of `Copy`."""

    name = "atomic"
    by_warpgroups = True
    fragments_lie = "alike"
    reaches_regions = False
    commutes = True
    is_elementwise = True
    source: OnChip
    destination: Annotated[tile.Region, In(("global", "shared"))]
    kind: TileCombination
    order: tile.Order
    use_tma: bool
    parts: Positive = field(default=1, metadata=BY_PASSES)
    staged: Yes | None = field(default=None, metadata=BY_PASSES)
    via: Literal["tma_store", "registers"] | None = field(default=None, metadata=BY_PASSES)
    wait: Literal["at once"] | None = field(default=None, metadata=BY_PASSES)

    def element(self, place: tuple[tile.Expr, ...], sources: tuple[tile.Expr, ...]) -> tile.Store:
        """Return the atomic store that combines the source's element, converted, into the destination's element at
        `place`."""
        buffer = self.destination.buffer
        value = converted(sources[0], buffer.dtype)
        return tile.Store(buffer, place, value, self.span, atomic=self.kind, order=self.order)


# ---- arguments -------------------------------------------------------------------------------------------------------


def _read_order(call: Call, kind: tile.Atomic) -> tile.Order:
    """Return a call's memory order, relaxed if it has none, `consume` as acquire; refuses one unsupported by the
    combination.
    """
    name = call["memory_order"].value if "memory_order" in call.arguments else None
    if name is None:
        return "relaxed"
    known = _ORDERS.get(kind, _ALL_ORDERS)
    wanted = "acquire" if name == "consume" else name
    if wanted not in known:
        call.refuse("memory_order", " or ".join(f'"{o}"' for o in known))
    return wanted


def _check_target(call: Call, name: str, buffer: tile.Buffer, kind: tile.Atomic) -> None:
    """Raise an error if the target is in registers, or its element type has no such atomic combination."""
    if buffer.scope not in ("global", "shared"):
        kind_of = {"fragment": "a fragment", "local": "an array of each thread"}.get(buffer.scope, "in tensor memory")
        raise_error(
            "wrong-scope",
            f"{call.name} works on tensors and shared tiles",
            call[name].span,
            f"{buffer.name} is {kind_of}, which threads do not share",
            help="update it without an atomic operation",
        )
    if buffer.dtype not in ATOMIC_TYPES[kind]:
        raise_error(
            "wrong-dtype",
            f"{call.name} does not work on {buffer.dtype}",
            call[name].span,
            f"{buffer.name} holds {buffer.dtype}",
            secondary=(Label(buffer.span, "from here"),),
            help=f"supported: {', '.join(t.name for t in ATOMIC_TYPES[kind])}",
        )


def _read_element(call: Call, name: str, kind: tile.Atomic) -> tuple[tile.Buffer, tuple[tile.Expr, ...]]:
    """Return buffer and indices of an argument of an atomic call; raises an error unless it is one element. The buffer
    is checked by `_check_target`."""
    access = call[name].value
    if not isinstance(access, Access) or access.has_extent:
        raise_error(
            "not-a-scalar",
            f"{call.name}: inside T.Parallel `{name}` must be one element",
            call[name].span,
            f"this is {describe_value(access)}",
            help="index it with the variables of the loop",
        )
    _check_target(call, name, access.buffer, kind)
    return access.buffer, tuple(i for i in access.indices if isinstance(i, EXPR_TYPES))


# ---- one element -----------------------------------------------------------------------------------------------------


def _build_store(kind: tile.Atomic, call: Call) -> tuple[tile.Store, ...]:
    """Build the atomic store of a value, combined by `kind`, to one element; with return_prev it sets `PREVIOUS`."""
    value_name = "src" if kind == "store" else "value"
    buffer, indices = _read_element(call, "dst", kind)
    value = as_expr(call[value_name], buffer.dtype)
    returns = "return_prev" in call.arguments and call.read_boolean("return_prev")
    previous = tile.Var(PREVIOUS, buffer.dtype) if returns else None
    return (tile.Store(buffer, indices, value, call.span, kind, _read_order(call, kind), previous),)


def _build_load(call: Call) -> tuple[tile.Store, ...]:
    """Build the atomic load of one element, a store of nothing that sets the variable `PREVIOUS`."""
    buffer, indices = _read_element(call, "src", "load")
    nothing, previous = make_constant(0, buffer.dtype), tile.Var(PREVIOUS, buffer.dtype)
    return (tile.Store(buffer, indices, nothing, call.span, "load", _read_order(call, "load"), previous),)


def _build_vector_stores(lanes: int, call: Call) -> tuple[tile.Store, ...]:
    """Build an atomic add for each of `lanes` neighbours along the last dimension, from both first elements on. With
    return_prev each sets a variable `PREVIOUS`."""
    buffer, (*rest, first) = _read_first_element(call, "dst", lanes)
    _check_target(call, "dst", buffer, "add")
    source, (*outer, last) = _read_first_element(call, "value", lanes)
    previous = tile.Var(PREVIOUS, buffer.dtype) if call.read_boolean("return_prev") else None
    found = []
    for lane in range(lanes):
        element = Access(source, (*outer, _offset_index(last, lane)))
        value = as_expr(Argument(element, call["value"].span), buffer.dtype)
        place = (*rest, _offset_index(first, lane))
        found.append(tile.Store(buffer, place, value, call.span, "add", previous=previous))
    return tuple(found)


def _read_first_element(call: Call, name: str, lanes: int) -> tuple[tile.Buffer, tuple[tile.Expr, ...]]:
    """Return buffer and indices of the first of `lanes` neighbours: an element, a slice of them or a whole buffer; else
    refuse."""
    value = call[name].value
    if isinstance(value, tile.Buffer) and not value.is_dynamic and value.shape[-1] >= lanes:
        return value, tuple(tile.int32_const(0) for _ in value.shape)
    wanted = f"the first of {lanes} elements, or a slice of {lanes}"
    if not isinstance(value, Access):
        call.refuse(name, wanted)
    ranges = tuple(i for i in value.indices if isinstance(i, IndexRange))
    if ranges and [i.extent for i in ranges if i.extent != 1] != [lanes]:
        call.refuse(name, wanted)
    if ranges and not (isinstance(last := value.indices[-1], IndexRange) and last.extent == lanes):
        call.refuse(name, wanted)
    return value.buffer, tuple(i.start if isinstance(i, IndexRange) else i for i in value.indices)


def _offset_index(index: tile.Expr, lane: int) -> tile.Expr:
    """Return `index + lane` in a normal form, so that equal indices are equal trees."""
    form = affine_form(index)
    return add_exprs(form.without_constant(), tile.int32_const(form.constant + lane))


def merge_vector_atomics(
    variables: tuple[tile.Var, ...], extents: tuple[int, ...], body: tuple[tile.Stmt, ...]
) -> tuple[int, tuple[tile.Stmt, ...]]:
    """Rewrite vector atomic adds in a nest's body as adds of one element over more iterations; return last extent and
    body. Both are unchanged where that is impossible. T.atomic_addx4(dst[i, j * 4], value[i, j * 4]) over j becomes
    T.atomic_add(dst[i, j], value[i, j]) over four times as many j."""
    unchanged = extents[-1], body
    stores = [s for s in body if isinstance(s, tile.Store) and s.atomic == "add" and s.previous is None]
    if len(stores) != len(body):
        return unchanged
    for lanes in (4, 2):
        if len(stores) % lanes:
            continue
        wide = [_merge_stores(stores[k : k + lanes], variables[-1]) for k in range(0, len(stores), lanes)]
        if all(s is not None for s in wide):
            return extents[-1] * lanes, tuple(s for s in wide if s is not None)
    return unchanged


def _merge_stores(group: list[tile.Store], last: tile.Var) -> tile.Store | None:
    """Return the store of one element that does what the group does, in more iterations; None unless all are
    neighbours. There are `len(group)` times as many iterations."""
    first = group[0]
    places = [(s.buffer, s.indices) for s in group]
    values = [(s.value.buffer, s.value.indices) for s in group if isinstance(s.value, tile.Load)]
    if len(values) < len(group):
        return None
    place, source = (_divide_index(run, last) for run in (places, values))
    if place is None or source is None:
        return None
    return replace(first, indices=place, value=tile.Load(values[0][0], source))


def _divide_index(run: list[tuple[tile.Buffer, tuple[tile.Expr, ...]]], last: tile.Var) -> tuple[tile.Expr, ...] | None:
    """Return the index `[i, j]` for a run of indices `[i, j * n]` to `[i, j * n + n - 1]` in one buffer; None for
    others."""
    buffer, (*rest, index) = run[0][0], run[0][1]
    form = affine_form(index)
    fixed = [a for a, _ in form.terms if a != last] + rest
    if dict(form.terms).get(last) != len(run) or any(last in tile.walk_expr(e) for e in fixed):
        return None
    if any(other != (buffer, (*rest, _offset_index(index, lane))) for lane, other in enumerate(run)):
        return None
    others = Affine(tuple(t for t in form.terms if t[0] != last), form.constant)
    return *rest, add_exprs(add_exprs(others.without_constant(), last), tile.int32_const(others.constant))


# ---- a whole tile ----------------------------------------------------------------------------------------------------


def _check_atomic(kind: tile.Atomic, call: Call) -> tile.TileOp:
    """Return the atomic combination of a whole tile with a region that a call makes; raises an error for unequal
    shapes. It refuses return_prev."""
    if "return_prev" in call.arguments and call.read_boolean("return_prev"):
        call.refuse("return_prev", "False for a whole tile")
    src = call.read_region("value")
    dst = call.read_region("dst", src.extent)
    _check_target(call, "dst", dst.buffer, kind)
    if src.shape != dst.shape:
        raise_error(
            "shape-mismatch",
            f"the two sides of {call.name} have different shapes",
            call.span,
            f"from {show_shape(src.extent)} to {show_shape(dst.extent)}",
            secondary=tuple(
                Label(r.buffer.span, f"{r.buffer.name} is {show_shape(r.buffer.extents)}") for r in (src, dst)
            ),
        )
    use_tma = "use_tma" in call.arguments and call.read_boolean("use_tma")
    return AtomicTile(src, dst, cast(TileCombination, kind), _read_order(call, kind), use_tma, span=call.span)


def _evaluate_atomic(op: AtomicTile, env: Environment) -> None:
    """Combine the source with the destination in numpy, and write the result to the destination."""
    import numpy as np

    src, dst = op.regions
    combine: Any = {"add": np.add, "max": np.fmax, "min": np.fmin, "bitor": np.bitwise_or}[op.kind]
    env.write(dst, combine(env.read(dst), env.read(src).reshape(dst.extent).astype(env.read(dst).dtype)))


_VALUE = (Parameter("dst"), Parameter("value"))
_ORDER = Parameter("memory_order", None)
_PREVIOUS = Parameter("return_prev", False)

_DOC = """Make each element of `dst` {what}, atomically.

`dst` is an element of a tensor or shared tile: inside T.Parallel once for each iteration, outside once for each thread
that runs it. With return_prev the call gives the old value. Outside T.Parallel `dst` may also be a tensor or shared
tile, or a box of one: then `value` is a tile or a part of a tensor, of the same shape, or a number. `memory_order` is
"relaxed" (as None), "acquire", "release", "acq_rel" or "seq_cst". float16, bfloat16, float32, float64 and integers of
32 and 64 bits; float maxima and minima, and bfloat16 before sm_90, are loops of compare-and-swap."""
_TMA_DOC = """

TMA adds a whole tile where it can. use_tma=True is refused where it cannot, unless the tile may begin below 0 at run
time: then the threads add it. T.assume(start >= 0) promises that it does not, and TMA adds it."""


def _make_spelling(name: str, kind: tile.Atomic, what: str, *more: Parameter) -> Spelling:
    """Make the documented `T.` name of one atomic combination, for elements and for whole tiles."""
    return Spelling(
        Signature(f"T.{name}", (*_VALUE, _ORDER, *more)),
        _DOC.format(what=what) + (_TMA_DOC if any(p.name == "use_tma" for p in more) else ""),
        partial(_check_atomic, kind),
        partial(_build_store, kind),
    )


def _make_vector_spelling(lanes: int) -> Spelling:
    """Make the documented name T.atomic_addx2 or T.atomic_addx4, which exists inside T.Parallel only."""
    return Spelling(
        Signature(f"T.atomic_addx{lanes}", (*_VALUE, _PREVIOUS, ANNOTATIONS)),
        f"""Add {lanes} adjacent elements from `value` on to those from `dst` on; each addition is atomic.

        Each is the first of the elements, or a slice of {lanes}, in steps of {lanes} along the last dimension. With
        return_prev the call gives the old values, a vector.
        """,
        None,
        partial(_build_vector_stores, lanes),
    )


define_operation(
    AtomicTile,
    lambda op: Effects(op.regions, op.regions[1:]),
    _evaluate_atomic,
    _make_spelling("atomic_add", "add", "the sum", _PREVIOUS, Parameter("use_tma", False), ANNOTATIONS),
    _make_spelling("atomic_max", "max", "the larger one", _PREVIOUS, ANNOTATIONS),
    _make_spelling("atomic_min", "min", "the smaller one", _PREVIOUS, ANNOTATIONS),
    _make_spelling("atomic_or", "bitor", "the union of bits"),
    _make_vector_spelling(2),
    _make_vector_spelling(4),
    Spelling(
        Signature("T.atomic_load", (Parameter("src"), Parameter("memory_order", "seq_cst"))),
        """Load an element of a tensor or shared tile atomically.""",
        None,
        _build_load,
    ),
    Spelling(
        Signature("T.atomic_store", (Parameter("dst"), Parameter("src"), Parameter("memory_order", "seq_cst"))),
        """Store an element of a tensor or shared tile atomically.""",
        None,
        partial(_build_store, "store"),
    ),
)


@attach_facet(AtomicTile, "lower")
def lower_atomic(op: AtomicTile, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower an atomic tile to one TMA reduction if `via` says so, else to atomic stores element by element."""
    source, destination = op.regions
    if op.via == "tma_store":
        assert op.kind != "bitor"
        return build_tma_store(op, context, op.parts, op.wait == "at once", op.kind)
    return (build_elementwise(destination, source, context, op.span, op.kind, op.order),)


@attach_facet(AtomicTile, "demand")
def list_atomic_demands(op: AtomicTile, context: LoweringContext) -> tuple[Demand, ...]:
    """List the demands of an atomic tile: one TMA store of its bytes, or stores by the threads."""
    destination = op.regions[1]
    written = math.prod(destination.extent) * destination.buffer.dtype.bytes
    if op.via == "tma_store":
        return (make_demand("tma.store", bytes=written),)
    return list_store_demands(destination.buffer, written, context.threads)


@attach_facet(AtomicTile, "agrees")
def verify_atomic(op: AtomicTile) -> Iterator[str]:
    """Yield a violation if source and destination have different shapes."""
    yield from verify_same_shape(*op.regions)
