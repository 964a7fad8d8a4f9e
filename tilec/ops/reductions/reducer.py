"""T.alloc_reducer and its operations: results of which every thread accumulates a part, combined at the end.

The parts are a buffer of scope `reducer`, with the layout of the nests that add to it: threads that would hold copies
of an element in other layouts hold parts of it here. T.reducer_init initialises the parts, atomic stores of a kind in
`ATOMICS` add to them, and T.finalize_reducer combines them in a fragment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from tilec.ir import tile, warp
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.layout import Fragment
from tilec.ir.operations.fields import In
from tilec.ir.types import BOOL, DType
from tilec.ops.form import Scalar, verify_same_dtype, verify_same_shape, verify_value_dtype, verify_whole_buffer
from tilec.ops.language.arithmetic import make_identity
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_expr
from tilec.ops.language.values import EXPR_TYPES, Access, describe_value, show_shape
from tilec.ops.lowering import LoweringContext, make_demand
from tilec.ops.reductions.reduce import BITWISE_KINDS, count_crossing_warps
from tilec.ops.registry import Effects, Environment, Spelling, attach_facet, define_operation, list_move_effects
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

Kind = Literal["sum", "max", "min", "bitand", "bitor", "bitxor"]
Combination = Literal["add", "max", "min", "bitand", "bitor", "xor"]
"""The combinations that are both atomic stores and operators of `Binary`."""
ATOMICS: Mapping[Kind, Combination] = {
    "sum": "add", "max": "max", "min": "min", "bitand": "bitand", "bitor": "bitor", "bitxor": "xor",
}  # fmt: skip
"""The combination that adds to a part, by kind."""
KINDS: Mapping[str, Kind] = {kind: kind for kind in ATOMICS}
COMBINATIONS: Mapping[str, Combination] = {name: name for name in ATOMICS.values()}

ALLOCATE = Signature(
    "T.alloc_reducer", (Parameter("shape"), Parameter("dtype"), Parameter("op", "sum"), Parameter("replication", None))
)
UPDATE = Signature("T.reducer_update", (Parameter("target"), Parameter("value")))


Parts = Annotated[tile.Region, In(("reducer",))]


@dataclass(frozen=True, slots=True)
class ReducerInit(tile.TileOp):
    """Sets one part of each element to `value` and the others to the identity element; without `value`, all parts."""

    name = "reducer_init"
    by_warpgroups = True
    reaches_regions = False
    parts: Parts
    everywhere: bool
    kind: Kind
    value: Scalar | None


@dataclass(frozen=True, slots=True)
class FinalizeReducer(tile.TileOp):
    """Combines the parts of each element into `destination`."""

    name = "finalize_reducer"
    by_warpgroups = True
    fragments_lie = "its own way"
    reaches_regions = False
    parts: Parts
    destination: Annotated[tile.Region, In(("fragment",))]
    kind: Kind

    @property
    def folded(self) -> int:
        return ACROSS_COPIES


@dataclass(frozen=True, slots=True)
class Reducer:
    """The result of T.alloc_reducer: `result` is the kernel's fragment, `parts` the buffer of the threads' parts. With
    `everywhere` each thread has a part of every element."""

    result: tile.Buffer
    parts: tile.Buffer
    kind: Kind
    everywhere: bool


def read_kind(call: Call, dtype: DType) -> tuple[Kind, bool]:
    """Return the kind of a T.alloc_reducer, and whether each thread has a part of every element; raises errors for
    others. Not every type has every kind."""
    kind, replication = call["op"].value, call["replication"].value
    if kind not in KINDS:
        call.refuse("op", " or ".join(f'"{k}"' for k in KINDS))
    known = KINDS[str(kind)]
    if replication not in (None, "all", "none"):
        call.refuse("replication", '"all" or "none"')
    if dtype.kind == "bool" or dtype.bits < 8 or dtype in SMALL_FLOATS or (known in BITWISE_KINDS and dtype.is_float):
        raise_error(
            "unsupported-type",
            f"T.alloc_reducer of {dtype} is not supported",
            call["dtype"].span,
            f"for {known}",
            help="use integers" if known in BITWISE_KINDS else "use integers, or floats of 16 bits or more",
        )
    return known, replication == "all"


def read_update(call: Call) -> tuple[Access, tile.Expr]:
    """Return the element that T.reducer_update adds to, and the value in its type; refuses anything but one element."""
    access = call["target"].value
    if not isinstance(access, Access) or access.has_extent:
        call.refuse("target", "one element of a reducer, as in acc[i]")
    return access, as_expr(call["value"], access.buffer.dtype)


def build_contribution(reducer: Reducer, access: Access, value: tile.Expr, call: Call) -> tile.Store:
    """Return the atomic store by which a value is combined into a thread's part of a reducer's element."""
    indices = tuple(i for i in access.indices if isinstance(i, EXPR_TYPES))
    return tile.Store(reducer.parts, indices, value, call.span, ATOMICS[reducer.kind])


# ---- T.reducer_init --------------------------------------------------------------------------------------------------


def _read_whole_reducer(call: Call, name: str) -> tile.Region:
    """Return all of a fragment as a region, as T.alloc_reducer makes them; refuses any other argument."""
    buffer = call.buffer(name)
    if buffer is None or buffer.scope != "fragment" or not (region := call.read_region(name)).is_whole:
        call.refuse(name, "a buffer of T.alloc_reducer")
    return region


def _check_reducer_init(call: Call) -> tile.TileOp:
    """Return the operation of a call of T.reducer_init with its initial value; the kind is filled in later."""
    region = _read_whole_reducer(call, "reducer")
    given = call["init"].value is not None
    seed = as_expr(call["init"], region.buffer.dtype) if given else None
    return ReducerInit(region, False, "sum", seed, span=call.span)


def _get_seed(op: ReducerInit) -> tile.Expr:
    """Return the initial value of the result: the given one, else the kind's identity element."""
    return make_identity(op.kind, op.parts.buffer.dtype) if op.value is None else op.value


def _evaluate_reducer_init(op: ReducerInit, env: Environment) -> None:
    """Write the initial value to all parts in numpy: the reference has one part of each element."""
    import numpy as np

    (parts,) = op.regions
    env.write(parts, np.full(parts.extent, env.scalar(_get_seed(op))))


define_operation(
    ReducerInit,
    lambda op: Effects((), op.regions),
    _evaluate_reducer_init,
    Spelling(
        Signature("T.reducer_init", (Parameter("reducer"), Parameter("init", None))),
        """Begin a reduction into `reducer`, a buffer of T.alloc_reducer.

        Until T.finalize_reducer, T.reducer_update adds to it. `init` is combined into the result once. T.fill
        does the same.
        """,
        _check_reducer_init,
    ),
    demand=lambda op, context: (
        make_demand("elementwise", ops=1, elements=_count_parts(op, context), threads=context.threads),
    ),
)


@attach_facet(ReducerInit, "lower")
def lower_reducer_init(op: ReducerInit, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to a nest that sets one part of each element to the initial value, the others to the identity element."""
    parts = op.regions[0].buffer
    layout = context.fragments[parts.name]
    variables = tuple(tile.Var(f"%e{d}") for d in range(len(parts.shape)))
    value, replica = _get_seed(op), layout.replica_index()
    nothing = make_identity(op.kind, parts.dtype)
    if replica is not None and value != nothing:
        value = tile.Select(tile.Binary("eq", replica, tile.int32_const(0), BOOL), value, nothing, parts.dtype)
    nest = tile.Parallel(variables, parts.shape, (tile.Store(parts, variables, value, op.span),), op.span)
    return (warp.Elementwise(nest, layout, cursors=context.cursors, span=op.span),)


def _count_parts(op: ReducerInit | FinalizeReducer, context: LoweringContext) -> int:
    """Return the number of parts of all elements together: registers times threads."""
    layout: Fragment = context.fragments[op.regions[0].buffer.name]
    return layout.register_count * context.threads


# ---- T.finalize_reducer ----------------------------------------------------------------------------------------------


def _check_finalize_reducer(call: Call) -> tile.TileOp:
    """Return the operation of a call of T.finalize_reducer into `dst`, or in place; raises an error for an unfit `dst`.
    The kind is filled in later."""
    source = _read_whole_reducer(call, "reducer")
    given: Argument = call["dst"]
    if given.value is None:
        return FinalizeReducer(source, source, "sum", span=call.span)
    destination = call.read_region("dst")
    if not destination.is_whole or destination.buffer.scope != "fragment":
        raise_error(
            "wrong-scope",
            f"{call.name}: the result needs a whole fragment",
            given.span,
            f"this is {describe_value(given.value)}",
            secondary=(Label(destination.buffer.span, "from here"),),
            help="allocate it with T.alloc_fragment, and T.copy it from there",
        )
    if destination.buffer.shape != source.buffer.shape or destination.buffer.dtype != source.buffer.dtype:
        raise_error(
            "shape-mismatch",
            f"{call.name}: `dst` differs from the reducer",
            given.span,
            f"{destination.buffer.dtype}{show_shape(destination.buffer.shape)} for "
            f"{source.buffer.dtype}{show_shape(source.buffer.shape)}",
            secondary=(Label(destination.buffer.span, "from here"), Label(source.buffer.span, "the reducer")),
        )
    return FinalizeReducer(source, destination, "sum", span=call.span)


define_operation(
    FinalizeReducer,
    list_move_effects,
    lambda op, env: env.write(op.destination, env.read(op.parts)),
    Spelling(
        Signature(
            "T.finalize_reducer",
            (
                Parameter("reducer"),
                Parameter("dst", None),
                Parameter("batch", 1, hint="tilec combines all elements at once"),
            ),
        ),
        """End a reduction into `reducer`.

        The partial results of all threads are combined into the fragment `dst`. Without `dst`, `reducer` itself
        can be read from here on.
        """,
        _check_finalize_reducer,
    ),
    demand=lambda op, context: (make_demand("reduce", elements=_count_parts(op, context), threads=context.threads),),
)

ACROSS_COPIES = -1
"""The `dim` of a `warp.Reduce` over the threads that hold parts of the same element."""


@attach_facet(FinalizeReducer, "lower")
def lower_finalize_reducer(op: FinalizeReducer, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to a reduction across the parts of each element, with scratch shared memory where they cross warps."""
    parts, destination = (r.buffer for r in op.regions)
    layout = context.fragments[parts.name]
    scratch = None
    if count_crossing_warps(layout, ACROSS_COPIES) > 1:
        scratch = context.scratch(max(parts.dtype.bytes, 4) * layout.register_count * context.threads, op.span)
    return (
        warp.Reduce(parts, destination, op.kind, ACROSS_COPIES, True, scratch, cursors=context.cursors, span=op.span),
    )


@attach_facet(ReducerInit, "agrees")
def verify_reducer_init(op: ReducerInit) -> Iterator[str]:
    """Yield a violation if the region is not a whole buffer, or the initial value has another type."""
    yield from verify_whole_buffer(op.regions[0])
    if (value := op.value) is not None:
        yield from verify_value_dtype(value, op.regions[0])


@attach_facet(FinalizeReducer, "agrees")
def verify_finalize_reducer(op: FinalizeReducer) -> Iterator[str]:
    """Yield a violation if the regions are not whole buffers of one shape and type."""
    for region in op.regions:
        yield from verify_whole_buffer(region)
    yield from verify_same_shape(*op.regions)
    yield from verify_same_dtype(*op.regions)
