"""mbarriers as a kernel writes them itself: T.alloc_barrier, and what arrives at them and waits for them.

A barrier's phase completes when its count of arrivals and all bytes announced to it have come; who waits names the
parity of that phase, 0 for the first one. All attributes named `barrier` are the barrier's element, as a load of it. An
arrival hands on what the thread has done before: the waits and fences that this takes are placed by
`lower.insert_sync`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from tilec.ir import warp
from tilec.ir.expr import cast
from tilec.ir.text import show_declared
from tilec.ir.tile import Buffer, Const, Expr, Load, TileOp, integer, with_attr
from tilec.ir.types import INT32
from tilec.ops.form import Barrier, Condition, Index, Leader, Positive, Yes, attributes, form
from tilec.ops.lowering import Context, Demand
from tilec.ops.registry import Effects, Environment, Operation, Spelling, facet, register, tile_op
from tilec.ops.signature import Argument, Call, Parameter, Signature, as_expr, as_shape
from tilec.ops.values import EXPR_TYPES, Access, Range, describe
from tilec.support import schema
from tilec.support.diagnostics import fail
from tilec.support.records import dataclass

MOST_ARRIVALS = (1 << 20) - 1
"""The largest count of an mbarrier, and the most bytes that may be under way to it (PTX ISA, mbarrier)."""

BY_EACH_THREAD = frozenset({"arrive", "cp_async_arrive"})
"""What each thread does that comes to it, so that some threads may and others not."""
BY_ONE_THREAD = frozenset({"expect_tx", "tensor_arrive"})  # and copies that signal
"""What one thread does for all of those that come to it."""
TAKING_BARRIERS = frozenset(
    {"T.barrier_arrive", "T.mbarrier_arrive", "T.barrier_wait", "T.mbarrier_wait_parity", "T.mbarrier_expect_tx",
     "T.mbarrier_arrive_expect_tx", "T.cp_async_barrier_noinc", "T.tma_copy", "T.tma_gather4",
     "T.gemm", "T.tcgen05_gemm", "T.tcgen05_mma_arrive", "T.tcgen05_gemm_blockscaled", "T.clc_try_cancel"}
)  # fmt: skip
"""Names of operations that a barrier may be given to."""
_MEETING = frozenset({"arrive", "await_barrier", "expect_tx", "cp_async_arrive", "tensor_arrive"})
BARRIER_OPERATIONS = ("alloc_barrier", "arrive", "await_barrier", "expect_tx", "cp_async_arrive")


def counts_of(op: TileOp) -> tuple[int, ...]:
    """The arrivals that complete a phase, of each barrier that an `alloc_barrier` makes."""
    return tuple(map(int, str(op.attr("counts")).split(",")))


def barrier_of(op: TileOp) -> warp.Barrier:
    """Which barrier an operation is about."""
    element = op.attr("barrier")
    assert isinstance(element, Load)
    return warp.Barrier(element.buffer.name, element.indices[0])


def is_signalling(op: TileOp) -> bool:
    """Whether it is a copy, or an answer, that signals a barrier of the kernel's."""
    return op.name in ("copy", "gather4", "try_cancel") and any(key == "barrier" for key, _ in op.attrs)


def is_meeting(op: TileOp) -> bool:
    """Whether roles wait for one another by it: at an mbarrier, or at a named barrier of more than one role."""
    return op.name in _MEETING or (op.name in ("barrier", "named_arrive") and any(key == "id" for key, _ in op.attrs))


def as_barrier(argument: Argument, name: str) -> Load:
    """One barrier: an element of what T.alloc_barrier made, or all of it where it made one."""
    match argument.value:
        case Buffer(scope="barrier", extents=(1,)) as buffer:
            index: Expr = integer(0)
        case Access(buffer=Buffer(scope="barrier") as buffer, indices=(given,)) if not isinstance(given, Range):
            index = given
        case Buffer(scope="barrier") as buffer:
            fail(
                "wrong-argument",
                f"{name}: which of the barriers is not said",
                argument.span,
                f"{buffer.name} has {buffer.extents[0]} of them",
                help=f"write {buffer.name}[i]",
            )
        case _:
            fail(
                "wrong-argument",
                f"{name} needs a barrier made by T.alloc_barrier",
                argument.span,
                f"this is {describe(argument.value)}",
            )
    return Load(buffer, (index,))


def arrivals(call: Call) -> tuple[int, ...]:
    """The counts that T.alloc_barrier is given."""
    counts = as_shape(call["arrive_count"], "the count of a barrier") if _is_positive(call) else ()
    for count in counts:
        if count > MOST_ARRIVALS:
            call.refuse("arrive_count", f"at most {MOST_ARRIVALS:,}")
    return counts


def _is_positive(call: Call) -> bool:
    """A barrier that nobody has to arrive at completes by itself, phase after phase, or never."""
    value = call["arrive_count"].value
    items = value if isinstance(value, tuple) else (value,)
    if any(isinstance(i, int) and not isinstance(i, bool) and i < 1 for i in items):
        fail(
            "bad-arrival-count",
            "a barrier needs at least one arrival",
            call["arrive_count"].span,
            "nobody could be waited for",
            help="write how many threads arrive at it in a phase",
        )
    return True


def allocation(barriers: Buffer, counts: tuple[int, ...]) -> TileOp:
    """The statement that makes the barriers."""
    texts = ",".join(map(str, counts))
    return tile_op("alloc_barrier", (), barriers.span, barrier=Load(barriers, (integer(0),)), counts=texts)


def _check_allocation(call: Call) -> TileOp:
    fail("not-a-value", f"{call.name} needs a name", call.span, help=f"write `name = {call.name}(count)`")


def _check_arrive(call: Call) -> TileOp:
    op = tile_op("arrive", (), call.span, barrier=as_barrier(call["mbarrier"], call.name))
    if "cta_id" not in call.arguments or call["cta_id"].value is None:
        return op
    block = as_expr(call["cta_id"])
    if block.dtype.is_float:
        call.refuse("cta_id", "the number of a block of the cluster")
    return with_attr(op, "block", cast(block, INT32))


def _check_wait(call: Call) -> TileOp:
    parity = as_expr(call["parity"])
    if parity.dtype.is_float:
        call.refuse("parity", "0 or 1")
    if isinstance(parity, Const) and parity.value not in (0, 1):
        call.refuse("parity", "0 for the first phase, 1 for the second, and so on in turns")
    barrier = as_barrier(call["mbarrier"], call.name)
    return tile_op("await_barrier", (), call.span, barrier=barrier, parity=cast(parity, INT32))


def _check_expect(call: Call) -> TileOp:
    return _announced(call, arrives=False)


def _check_arrive_expect(call: Call) -> TileOp:
    return _announced(call, arrives=True)


def _announced(call: Call, *, arrives: bool) -> TileOp:
    announced = call.integer("tx")
    if not 0 < announced <= MOST_ARRIVALS:
        call.refuse("tx", f"a number of bytes, 1 to {MOST_ARRIVALS:,}")
    barrier = as_barrier(call["mbarrier"], call.name)
    return tile_op("expect_tx", (), call.span, barrier=barrier, bytes=announced, arrives=arrives)


def _check_copies(call: Call) -> TileOp:
    return tile_op("cp_async_arrive", (), call.span, barrier=as_barrier(call["mbarrier"], call.name))


def _effects(op: TileOp) -> Effects:
    return Effects((), ())


def _reference(op: TileOp, env: Environment) -> None:
    """What a barrier orders is for `interp` to know, which runs the roles."""


_BARRIER = Parameter("mbarrier")
_ARRIVE = """Arrive at a barrier: each thread that comes here does, once what it has done before is there for others.

                That covers T.copy, T.gemm and elements that it has stored, not T.wgmma_gemm and T.tma_copy, of which
                the kernel says itself when they are complete. Under an `if`, the threads arrive for which it holds.
                """
_ARRIVE_ANYWHERE = """Arrive at a barrier, of this block or of block `cta_id` of its cluster.

                Each thread that comes here does, as by T.barrier_arrive. To other blocks that hands on tiles that TMA
                has filled and tensor memory; what threads have stored in tensors is there after T.cluster_sync.
                """
_WAIT = """Wait until the phase of this parity has completed: 0 for the first, third, … phase, 1 for the others.

                A fresh barrier counts as if a phase of parity 1 had just completed.
                """

register(
    Operation(
        "alloc_barrier",
        (
            Spelling(
                Signature("T.alloc_barrier", (Parameter("arrive_count"),)),
                """Barriers in shared memory: one of `arrive_count` arrivals, or one for each count of a list.

                `bar[i]` is one of several.
                """,
                _check_allocation,
            ),
            Spelling(
                Signature("T.alloc_cluster_barrier", (Parameter("arrive_count"),)),
                """As T.alloc_barrier, whose barriers a cluster can see.

                Threads of this block arrive at them, and by T.mbarrier_arrive(bar, cta_id) those of the others.
                """,
                _check_allocation,
            ),
        ),
        _effects,
        _reference,
    )
)
register(
    Operation(
        "arrive",
        (
            Spelling(Signature("T.barrier_arrive", (_BARRIER,)), _ARRIVE, _check_arrive),
            Spelling(
                Signature("T.mbarrier_arrive", (_BARRIER, Parameter("cta_id", None))),
                _ARRIVE_ANYWHERE,
                _check_arrive,
            ),
        ),
        _effects,
        _reference,
    )
)
register(
    Operation(
        "await_barrier",
        (
            Spelling(Signature("T.barrier_wait", (_BARRIER, Parameter("parity"))), _WAIT, _check_wait),
            Spelling(Signature("T.mbarrier_wait_parity", (_BARRIER, Parameter("parity"))), _WAIT, _check_wait),
        ),
        _effects,
        _reference,
    )
)
register(
    Operation(
        "expect_tx",
        (
            Spelling(
                Signature("T.mbarrier_expect_tx", (_BARRIER, Parameter("tx"))),
                """Announce `tx` bytes to a barrier's phase, by one thread of those that come here.

                T.tma_copy announces its bytes itself, unless the kernel does it for that barrier.
                """,
                _check_expect,
            ),
            Spelling(
                Signature("T.mbarrier_arrive_expect_tx", (_BARRIER, Parameter("tx"))),
                """Announce `tx` bytes to a barrier's phase and arrive, by one thread of those that come here.

                T.tma_copy announces its bytes itself, unless the kernel does it for that barrier.
                """,
                _check_arrive_expect,
            ),
        ),
        _effects,
        _reference,
    )
)
register(
    Operation(
        "cp_async_arrive",
        (
            Spelling(
                Signature("T.cp_async_barrier_noinc", (_BARRIER,)),
                """Let each thread arrive at a barrier when the asynchronous copies that it has begun are complete.

                It goes on at once; the barrier's count includes these arrivals.
                """,
                _check_copies,
            ),
        ),
        _effects,
        _reference,
    )
)


@facet("alloc_barrier", "lower")
def lower_allocation(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    return ()  # before the roles begin


@facet("arrive", "lower")
def lower_arrive(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    return (warp.Arrive(barrier_of(op), condition_of(op), is_by_warps(op), block_of(op), span=op.span),)


@facet("await_barrier", "lower")
def lower_wait(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    parity = op.attr("parity")
    assert isinstance(parity, EXPR_TYPES)
    unless = dict(op.attrs).get("unless")
    known = unless if isinstance(unless, EXPR_TYPES) else None
    return (warp.BarrierWait(barrier_of(op), parity, known, span=op.span),)


@facet("expect_tx", "lower")
def lower_expect(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    announced, leader = op.attr("bytes"), op.attr("leader")
    assert isinstance(announced, int) and isinstance(leader, int)
    arrives = bool(op.attr("arrives"))
    return (warp.ExpectBytes(barrier_of(op), announced, leader, arrives, span=op.span),)


@facet("cp_async_arrive", "lower")
def lower_copies(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    return (warp.CopiesArrive(barrier_of(op), condition_of(op), span=op.span),)


def condition_of(op: TileOp) -> Expr | None:
    """Which of the threads that come here do it; None: all."""
    condition = dict(op.attrs).get("condition")
    return condition if isinstance(condition, EXPR_TYPES) else None


def block_of(op: TileOp) -> Expr | None:
    """The block of the cluster, by its number there, whose barrier it is about; None: its own."""
    block = dict(op.attrs).get("block")
    return block if isinstance(block, EXPR_TYPES) else None


def is_by_warps(op: TileOp) -> bool:
    """Whether one thread of each warp arrives for all of it, as at the release of a pipeline's stage."""
    return bool(dict(op.attrs).get("by_warps"))


def _price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    """An issue slot: what is waited for is another role's time."""
    return ()


for _name in BARRIER_OPERATIONS:
    facet(_name, "demand")(_price)


_ARRIVALS = Annotated[int, schema.Range(1, MOST_ARRIVALS)]
_SIDE = schema.Where(lambda side: bool(re.fullmatch(r"\S+ (producer|consumer)", side)), "a pipeline and its side")


def _are_counts(text: str) -> bool:
    counts = text.split(",")
    return all(c.isascii() and c.isdecimal() and len(c) < 8 and 1 <= int(c) <= MOST_ARRIVALS for c in counts)


@form("alloc_barrier")
@dataclass(frozen=True, slots=True)
class AllocationAttributes:
    barrier: Barrier
    counts: Annotated[str, schema.Where(_are_counts, "numbers of arrivals")]
    bytes: Positive | None = None
    holds: str | None = None
    pipeline: str | None = None
    tiles: str | None = None


@facet("alloc_barrier", "agrees")
def allocation_agrees(op: TileOp) -> Iterator[str]:
    given: AllocationAttributes = attributes(op)
    made, counted = given.barrier.buffer, len(counts_of(op))
    if made.shape != (counted,):
        yield f"{show_declared(made)} are not the {counted} barriers that counts is for"
    named = (given.bytes, given.holds, given.pipeline, given.tiles)
    if any(part is None for part in named) and any(part is not None for part in named):
        yield "bytes, holds, pipeline and tiles come together"


@form("arrive")
@dataclass(frozen=True, slots=True)
class ArriveAttributes:
    barrier: Barrier
    block: Index | None = None
    by_warps: Yes | None = None
    condition: Condition | None = None
    releases: Annotated[str, _SIDE] | None = None


@form("await_barrier")
@dataclass(frozen=True, slots=True)
class AwaitAttributes:
    barrier: Barrier
    parity: Index
    acquires: Annotated[str, _SIDE] | None = None
    drains: str | None = None
    unless: Condition | None = None


@form("expect_tx")
@dataclass(frozen=True, slots=True)
class ExpectAttributes:
    arrives: bool
    barrier: Barrier
    bytes: _ARRIVALS
    leader: Leader
    of_stage: Literal["payload", "said"] | None = None


@form("cp_async_arrive")
@dataclass(frozen=True, slots=True)
class CopiesAttributes:
    barrier: Barrier
    condition: Condition | None = None
