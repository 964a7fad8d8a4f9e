"""The statements that only order others: T.sync_threads, T.fence_proxy_async, T.ptx_commit_group and T.ptx_wait_group.

Everything that a kernel needs of this is derived (`lower.insert_sync`), so a kernel is right without them. Those that
are written stand where they are written: they are statements of the schedule, nothing that they order moves across them
(`analysis.ordering`), and what they wait for has completed there. Their regions are the tiles that they wait for, found
from the text around them (`sema.awaits`); to the rest of the compiler they read these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeGuard

from tilec.ir import warp
from tilec.ir.tile import Buffer, Region, Stmt, TileOp, integer
from tilec.ops.form import Nothing, Scopes, Whole, attributes, form
from tilec.ops.lowering import Context, Demand
from tilec.ops.registry import Effects, Environment, Operation, Spelling, facet, register, tile_op
from tilec.ops.signature import Call, Parameter, Signature
from tilec.support import schema
from tilec.support.records import dataclass
from tilec.support.source import Span

BARRIERS = ("barrier", "fence", "meet")
"""Operations that part what touches shared memory into before and after."""

EXPLICIT = (*BARRIERS, "commit", "wait")


def is_explicit(stmt: Stmt) -> TypeGuard[TileOp]:
    """Whether the statement only orders others."""
    return isinstance(stmt, TileOp) and stmt.name in EXPLICIT


def meets(op: TileOp) -> bool:
    """Whether it is a wait that a `sync` list asks for: of all threads, for what they all do."""
    return ("meet", True) in op.attrs


def spelled(op: TileOp) -> str:
    """How a kernel writes it."""
    if meets(op):
        return "sync="
    if op.name == "meet":
        return f"T.{op.attr('what')}"
    return {
        "barrier": "T.sync_threads",
        "fence": "T.fence_proxy_async",
        "commit": "T.ptx_commit_group",
        "wait": "T.ptx_wait_group",
    }[op.name]


def everything(buffer: Buffer, span: Span) -> Region:
    """All of a tile, or somewhere in a tensor."""
    extent = (1,) * len(buffer.extents) if buffer.scope == "global" else buffer.shape
    return Region(buffer, tuple(integer(0) for _ in extent), extent, span)


def _check_barrier(call: Call) -> TileOp:
    if call["barrier_id"].value is not None and not 0 <= call.integer("barrier_id") < 16:
        call.refuse("barrier_id", "a number from 0 to 15")
    if call["arrive_count"].value is None:
        return tile_op("barrier", (), call.span)
    number = {} if call["barrier_id"].value is None else {"id": call.integer("barrier_id")}
    return tile_op("barrier", (), call.span, threads=call.integer("arrive_count"), **number)


def _check_fence(call: Call) -> TileOp:
    return tile_op("fence", (), call.span)


def _check_commit(call: Call) -> TileOp:
    return tile_op("commit", (), call.span)


def _check_wait(call: Call) -> TileOp:
    pending = call.integer("n")
    if pending < 0:
        call.refuse("n", "0 or more")
    return tile_op("wait", (), call.span, pending=pending)


def _effects(op: TileOp) -> Effects:
    return Effects(op.regions, ())


def _reference(op: TileOp, env: Environment) -> None:
    """One statement after the other, as the reference runs them, there is nothing to wait for."""


register(
    Operation(
        "barrier",
        (
            Spelling(
                Signature("T.sync_threads", (Parameter("barrier_id", None), Parameter("arrive_count", None))),
                """Let all threads of the block wait for each other.

                What stands before it and touches shared memory is complete for all of them after it. Barriers that the
                kernel needs are there without it. Under `with T.ws(…):` it is for the threads that come there.
                `arrive_count`, if given, is their number, and `barrier_id` is accepted, tilec numbers its barriers
                itself; or it is a larger one, and those of other roles come to the same `barrier_id`.
                """,
                _check_barrier,
            ),
        ),
        _effects,
        _reference,
    )
)
register(
    Operation(
        "fence",
        (
            Spelling(
                Signature("T.fence_proxy_async", ()),
                """Make what threads have written to shared memory visible to TMA and to the tensor cores.

                Fences that the kernel needs are there without it. Where the target has no asynchronous proxy it is
                nothing.
                """,
                _check_fence,
            ),
        ),
        _effects,
        _reference,
    )
)
register(
    Operation(
        "commit",
        (
            Spelling(
                Signature("T.ptx_commit_group", ()),
                """Close a group of asynchronous copies, which T.ptx_wait_group counts.

                T.async_copy closes a group of its own, so that this one is empty.
                """,
                _check_commit,
            ),
        ),
        _effects,
        _reference,
    )
)
register(
    Operation(
        "wait",
        (
            Spelling(
                Signature("T.ptx_wait_group", (Parameter("n"),)),
                """Wait until at most the newest `n` groups of asynchronous copies are under way.

                Each T.async_copy is a group, and so is each T.ptx_commit_group. They are counted in the order of the
                text: in a pipeline, where copies of later iterations are under way too, the number that is waited for
                is another one.
                """,
                _check_wait,
            ),
        ),
        _effects,
        _reference,
    )
)


@facet("wait", "lower")
def lower_wait(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    if not op.regions:
        return ()
    tiles = tuple(dict.fromkeys(region.buffer.name for region in op.regions))
    readers = op.name == "barrier"
    return (warp.Await(tiles, readers, meets(op), cursors=context.cursors, span=op.span),)


@facet("barrier", "lower")
def lower_barrier(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    number = dict(op.attrs).get("id")
    if isinstance(number, int):
        threads = op.attr("threads")
        assert isinstance(threads, int)
        return *lower_wait(op, context), warp.NamedBarrier(number, threads, True, span=op.span)
    # The number of the barrier is the role's (`lower.insert_sync`).
    return *lower_wait(op, context), warp.BarSync(0, context.threads, span=op.span)


@facet("fence", "lower")
def lower_fence(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    return () if ("via", "nothing") in op.attrs else (warp.ProxyFence(span=op.span),)


@facet("commit", "lower")
def lower_commit(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    return (warp.CpAsyncCommit(span=op.span),)


def price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    """An issue slot: what is waited for is in the dependences."""
    return ()


for _name in ("barrier", "fence", "commit", "wait"):
    facet(_name, "demand")(price)


_AWAITED: Scopes = ("shared",)


@form("barrier", _AWAITED, optional=1, repeated=True)
@dataclass(frozen=True, slots=True)
class BarrierAttributes:
    id: Annotated[int, schema.Range(0, 15)] | None = None
    threads: Annotated[int, schema.Range(1, 1024)] | None = None


@facet("barrier", "agrees")
def barrier_agrees(op: TileOp) -> Iterator[str]:
    given: BarrierAttributes = attributes(op)
    if given.id is not None and (given.threads is None or given.threads % 32):
        yield "a barrier with a number is for whole warps"


@form("wait", _AWAITED, optional=1, repeated=True)
@dataclass(frozen=True, slots=True)
class WaitAttributes:
    pending: Whole


form("fence")(Nothing)
form("commit")(Nothing)
