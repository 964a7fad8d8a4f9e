"""mbarriers that a kernel writes itself: T.alloc_barrier, and the operations that arrive at barriers and wait for them.

A barrier's phase completes when its count of arrivals and all bytes announced to it have come. A wait names the parity
of the phase, 0 for the first one. Attributes named `barrier` are the barrier's element, as a load of it. An arrival
releases the thread's earlier accesses: `lower.insert_sync` places the waits and fences that this needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from tilec.ir import tile, warp
from tilec.ir.expr import cast_expr
from tilec.ir.operations.interfaces import PipelineEnd
from tilec.ir.text import show_declared
from tilec.ir.types import INT32
from tilec.ops.form import UNKNOWN_LEADER, Barrier, Condition, Index, Leader, Positive, Yes
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_expr, as_shape
from tilec.ops.language.values import Access, IndexRange, describe_value
from tilec.ops.lowering import list_no_demands
from tilec.ops.registry import Spelling, attach_facet, define_operation, evaluate_nothing, list_no_effects
from tilec.support import schema
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass

MAX_ARRIVALS = (1 << 20) - 1
"""The largest arrival count of an mbarrier, and its largest pending byte count (PTX ISA, mbarrier)."""

TAKING_BARRIERS = frozenset(
    {"T.barrier_arrive", "T.mbarrier_arrive", "T.barrier_wait", "T.mbarrier_wait_parity", "T.mbarrier_expect_tx",
     "T.mbarrier_arrive_expect_tx", "T.cp_async_barrier_noinc", "T.tma_copy", "T.tma_gather4",
     "T.gemm", "T.tcgen05_gemm", "T.tcgen05_mma_arrive", "T.tcgen05_gemm_blockscaled", "T.clc_try_cancel",
     "T.copy_cluster"}
)  # fmt: skip
"""Names of operations that take a barrier."""
_ARRIVALS = Annotated[int, schema.Range(1, MAX_ARRIVALS)]


@dataclass(frozen=True, slots=True)
class AllocBarrier(tile.TileOp):
    """Makes the barriers of a buffer, of which `barrier` is the first. `counts` are the arrivals that complete a phase
    of each. The other fields are those of a pipeline's full barriers: the `bytes` of a stage, the names of its `tiles`
    in the payload, and the buffers that hold them."""

    name = "alloc_barrier"
    is_collective = False
    barrier: Barrier
    counts: tuple[_ARRIVALS, ...]
    bytes: Positive | None = None
    holds: tuple[str, ...] | None = None
    pipeline: str | None = None
    tiles: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Arrive(tile.TileOp):
    """Each thread for which `condition` holds arrives, or with `by_warps` one thread for its warp. `block` is the block
    of the cluster whose barrier it is; None: this one."""

    name = "arrive"
    is_collective = False
    synchronises_roles = True
    done_by = "each thread"
    barrier: Barrier
    block: Index | None = None
    by_warps: Yes | None = None
    condition: Condition | None = None
    releases: PipelineEnd | None = None

    @property
    def reaches_blocks(self) -> bool:
        """Return whether the arrival is at the barrier of another block."""
        return self.block is not None


@dataclass(frozen=True, slots=True)
class AwaitBarrier(tile.TileOp):
    """Waits for the phase of this parity, `unless` the phase is known to have completed."""

    name = "await_barrier"
    is_collective = False
    synchronises_roles = True
    barrier: Barrier
    parity: Index
    acquires: PipelineEnd | None = None
    drains: str | None = None
    unless: Condition | None = None


@dataclass(frozen=True, slots=True)
class ExpectTx(tile.TileOp):
    """One thread announces bytes to a barrier and, if `arrives`, arrives there."""

    name = "expect_tx"
    synchronises_roles = True
    done_by = "one thread"
    arrives: bool
    barrier: Barrier
    bytes: _ARRIVALS
    leader: Leader
    of_stage: Literal["payload", "said"] | None = None


@dataclass(frozen=True, slots=True)
class CpAsyncArrive(tile.TileOp):
    """Arrives when the thread's earlier cp.async copies are complete."""

    name = "cp_async_arrive"
    is_collective = False
    synchronises_roles = True
    done_by = "each thread"
    barrier: Barrier
    condition: Condition | None = None


BARRIER_OPERATIONS = (AllocBarrier, Arrive, AwaitBarrier, ExpectTx, CpAsyncArrive)


def get_barrier(op: tile.TileOp) -> warp.Barrier:
    """Return the kernel's own barrier of an operation in warp IR; it must have one."""
    assert op.barrier is not None
    return warp.Barrier(op.barrier.buffer.name, op.barrier.indices[0])


def as_barrier(argument: Argument, name: str) -> tile.Load:
    """Return the one barrier that an argument is, as a load of it; raises an error for several barriers and other
    values."""
    match argument.value:
        case tile.Buffer(scope="barrier", extents=(1,)) as buffer:
            index: tile.Expr = tile.int32_const(0)
        case Access(buffer=tile.Buffer(scope="barrier") as buffer, indices=(given,)) if not isinstance(
            given, IndexRange
        ):
            index = given
        case tile.Buffer(scope="barrier") as buffer:
            raise_error(
                "wrong-argument",
                f"{name} needs one barrier of the array",
                argument.span,
                f"{buffer.name} has {buffer.extents[0]} of them",
                help=f"write {buffer.name}[i]",
            )
        case _:
            raise_error(
                "wrong-argument",
                f"{name} needs a barrier of T.alloc_barrier",
                argument.span,
                f"this is {describe_value(argument.value)}",
            )
    return tile.Load(buffer, (index,))


def read_arrival_counts(call: Call) -> tuple[int, ...]:
    """Return the arrival counts of a call of T.alloc_barrier, one for each barrier; raises errors for counts out of
    range."""
    _check_positive_counts(call)
    counts = as_shape(call["arrive_count"], "the count of a barrier")
    for count in counts:
        if count > MAX_ARRIVALS:
            call.refuse("arrive_count", f"at most {MAX_ARRIVALS:,}")
    return counts


def _check_positive_counts(call: Call) -> None:
    """Raise an error for counts below 1: a barrier without arrivals completes phase after phase by itself, or never."""
    value = call["arrive_count"].value
    items = value if isinstance(value, tuple) else (value,)
    if any(isinstance(i, int) and not isinstance(i, bool) and i < 1 for i in items):
        raise_error(
            "bad-arrival-count",
            "a barrier needs at least one arrival",
            call["arrive_count"].span,
            "a phase with no arrivals never completes",
            help="write the number of threads that arrive in a phase",
        )


def build_allocation(barriers: tile.Buffer, counts: tuple[int, ...]) -> AllocBarrier:
    """Return the statement that makes the barriers of a buffer with these arrival counts."""
    return AllocBarrier(tile.Load(barriers, (tile.int32_const(0),)), counts, span=barriers.span)


def _check_allocation(call: Call) -> tile.TileOp:
    """Raise the error that a call of T.alloc_barrier needs a name: it stands where no variable is assigned."""
    raise_error("not-a-value", f"{call.name} needs a name", call.span, help=f"write `name = {call.name}(count)`")


def _check_arrive(call: Call) -> tile.TileOp:
    """Return the arrival of a call, at the barrier of block `cta_id` if that is given, as an int32; refuses a float
    there.
    """
    op = Arrive(as_barrier(call["mbarrier"], call.name), span=call.span)
    if "cta_id" not in call.arguments or call["cta_id"].value is None:
        return op
    block = as_expr(call["cta_id"])
    if block.dtype.is_float:
        call.refuse("cta_id", "the number of a block of the cluster")
    return replace(op, block=cast_expr(block, INT32))


def _check_await_barrier(call: Call) -> tile.TileOp:
    """Return the wait of a call of T.barrier_wait; refuses a parity that is a float, or a constant other than 0 and
    1."""
    parity = as_expr(call["parity"])
    if parity.dtype.is_float:
        call.refuse("parity", "0 or 1")
    if isinstance(parity, tile.Const) and parity.value not in (0, 1):
        call.refuse("parity", "0 for the first phase, 1 for the second, and so on in turns")
    barrier = as_barrier(call["mbarrier"], call.name)
    return AwaitBarrier(barrier, cast_expr(parity, INT32), span=call.span)


def _check_expect_tx(arrives: bool, call: Call) -> tile.TileOp:
    """Return the announcement of a call's bytes, and with `arrives` an arrival, its leader unknown; refuses bad
    numbers.
    """
    announced = call.read_integer("tx")
    if not 0 < announced <= MAX_ARRIVALS:
        call.refuse("tx", f"a number of bytes, 1 to {MAX_ARRIVALS:,}")
    barrier = as_barrier(call["mbarrier"], call.name)
    return ExpectTx(arrives, barrier, announced, UNKNOWN_LEADER, span=call.span)


_BARRIER = Parameter("mbarrier")
_ARRIVE = """Arrive at a barrier, each thread that executes this.

                Its earlier accesses are visible to the threads that wait. This includes T.copy, T.gemm and elements
                that it has stored. T.wgmma_gemm and T.tma_copy are not included: the kernel waits for them itself.
                Under an `if`, only the threads arrive for which it holds.
                """
_ARRIVE_ANYWHERE = """Arrive at a barrier of this block, or of block `cta_id` of its cluster.

                Each thread that executes this arrives, as by T.barrier_arrive. For other blocks, that makes tiles
                filled by TMA and tensor memory available; values that threads store in tensors are visible there after
                T.cluster_sync.
                """
_WAIT = """Wait until the phase of this parity has completed: 0 for the first, third, … phase, 1 for the others.

                A fresh barrier counts as if a phase of parity 1 had just completed.
                """

define_operation(
    AllocBarrier,
    list_no_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.alloc_barrier", (Parameter("arrive_count"),)),
        """Barriers in shared memory: one of `arrive_count` arrivals, or one for each count of a list.

        `bar[i]` is one of several.
        """,
        _check_allocation,
    ),
    Spelling(
        Signature("T.alloc_cluster_barrier", (Parameter("arrive_count"),)),
        """Barriers like those of T.alloc_barrier that all blocks of a cluster can reach.

        Threads of this block arrive by T.barrier_arrive, those of other blocks by T.mbarrier_arrive(bar,
        cta_id).
        """,
        _check_allocation,
    ),
    demand=list_no_demands,
    lower=lambda op, context: (),  # the barriers are made before the roles begin
)
define_operation(
    Arrive,
    list_no_effects,
    evaluate_nothing,
    Spelling(Signature("T.barrier_arrive", (_BARRIER,)), _ARRIVE, _check_arrive),
    Spelling(Signature("T.mbarrier_arrive", (_BARRIER, Parameter("cta_id", None))), _ARRIVE_ANYWHERE, _check_arrive),
    demand=list_no_demands,
    lower=lambda op, _: (warp.Arrive(get_barrier(op), op.condition, op.by_warps is not None, op.block, span=op.span),),
)
define_operation(
    AwaitBarrier,
    list_no_effects,
    evaluate_nothing,
    Spelling(Signature("T.barrier_wait", (_BARRIER, Parameter("parity"))), _WAIT, _check_await_barrier),
    Spelling(Signature("T.mbarrier_wait_parity", (_BARRIER, Parameter("parity"))), _WAIT, _check_await_barrier),
    demand=list_no_demands,
    lower=lambda op, context: (warp.BarrierWait(get_barrier(op), op.parity, op.unless, span=op.span),),
)
define_operation(
    ExpectTx,
    list_no_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.mbarrier_expect_tx", (_BARRIER, Parameter("tx"))),
        """Announce `tx` bytes to a barrier's phase; one of the threads that execute this does it.

        T.tma_copy announces its bytes itself, unless the kernel does it for that barrier.
        """,
        partial(_check_expect_tx, False),
    ),
    Spelling(
        Signature("T.mbarrier_arrive_expect_tx", (_BARRIER, Parameter("tx"))),
        """Announce `tx` bytes to a barrier's phase and arrive; one of the threads that execute this does both.

        T.tma_copy announces its bytes itself, unless the kernel does it for that barrier.
        """,
        partial(_check_expect_tx, True),
    ),
    demand=list_no_demands,
    lower=lambda op, context: (warp.ExpectBytes(get_barrier(op), op.bytes, op.leader, op.arrives, span=op.span),),
)
define_operation(
    CpAsyncArrive,
    list_no_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.cp_async_barrier_noinc", (_BARRIER,)),
        """Let each thread arrive at a barrier when its asynchronous copies are complete.

        The thread does not wait; the barrier's count includes these arrivals.
        """,
        lambda call: CpAsyncArrive(as_barrier(call["mbarrier"], call.name), span=call.span),
    ),
    demand=list_no_demands,
    lower=lambda op, context: (warp.CopiesArrive(get_barrier(op), op.condition, span=op.span),),
)


@attach_facet(AllocBarrier, "agrees")
def verify_allocation(op: AllocBarrier) -> Iterator[str]:
    """Yield a violation if the counts do not match the barriers, or only some fields of a pipeline are given."""
    made, counted = op.barrier.buffer, len(op.counts)
    if made.shape != (counted,):
        yield f"{show_declared(made)} does not match the {counted} barriers of counts"
    named = (op.bytes, op.holds, op.pipeline, op.tiles)
    if any(part is None for part in named) and any(part is not None for part in named):
        yield "bytes, holds, pipeline and tiles come together"
