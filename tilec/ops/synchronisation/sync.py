"""The statements that only order others: T.sync_threads, T.fence_proxy_async, T.ptx_commit_group and T.ptx_wait_group.

A kernel is correct without them: `lower.insert_sync` derives all the synchronisation that it needs. Those that a kernel
writes keep their place. They are statements of the schedule, no access that they order moves across them
(`analysis.ordering`), and the copies that they wait for are complete there. Their regions are the awaited tiles, found
from the text around them (`sema.roles.awaits`); the rest of the compiler treats them as reads of these tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Literal, TypeGuard

from tilec.ir import tile, warp
from tilec.ir.operations.fields import BY_PASSES
from tilec.ops.form import Anywhere, Whole, Yes
from tilec.ops.language.signature import Call, Parameter, Signature
from tilec.ops.lowering import LoweringContext, list_no_demands
from tilec.ops.registry import Effects, Spelling, attach_facet, define_operation, evaluate_nothing
from tilec.ops.synchronisation.rendezvous import Rendezvous
from tilec.support import schema
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class BlockBarrier(tile.TileOp):
    """A barrier of all threads of the block; with `id` a named barrier of `threads` threads of several roles."""

    name = "barrier"
    by_warpgroups = True
    fragments_lie = "its own way"  # any layout will do: it only waits
    reaches_regions = False
    awaited: tuple[Anywhere, ...] = ()
    id: Annotated[int, schema.Range(0, 15)] | None = field(default=None, kw_only=True)
    threads: Annotated[int, schema.Range(1, 1024)] | None = field(default=None, kw_only=True)

    @property
    def synchronises_roles(self) -> bool:
        return self.id is not None


@dataclass(frozen=True, slots=True)
class Fence(tile.TileOp):
    """Makes the threads' writes to shared memory visible to the asynchronous proxy."""

    name = "fence"
    by_warpgroups = True
    is_collective = False
    via: Literal["nothing"] | None = field(default=None, metadata=BY_PASSES)


@dataclass(frozen=True, slots=True)
class CommitCopies(tile.TileOp):
    """Closes a group of asynchronous copies."""

    name = "commit"
    by_warpgroups = True
    is_collective = False


@dataclass(frozen=True, slots=True)
class WaitCopies(tile.TileOp):
    """Waits until at most `pending` groups of copies are in flight, that is until the `awaited` tiles are complete.
    `rendezvous` marks the wait of a `sync` list, which is for all threads and for all writes of a statement."""

    name = "wait"
    by_warpgroups = True
    is_collective = False
    fragments_lie = "its own way"  # any layout will do: it only waits
    reaches_regions = False
    awaited: tuple[Anywhere, ...] = ()
    pending: Whole | None = field(default=None, kw_only=True)
    rendezvous: Yes | None = field(default=None, kw_only=True, metadata=BY_PASSES)


BARRIERS = (BlockBarrier, Fence, Rendezvous)
"""Operations that no access to shared memory may move across."""

OrderingStatement = BlockBarrier | Fence | Rendezvous | CommitCopies | WaitCopies
"""A statement that only orders others."""


def is_ordering_statement(stmt: tile.Stmt) -> TypeGuard[OrderingStatement]:
    """Return whether a statement only orders others: a barrier, a fence, a rendezvous, or a commit or wait of
    copies."""
    return isinstance(stmt, OrderingStatement)


def is_sync_list_wait(op: tile.TileOp) -> bool:
    """Return whether an operation is the wait that a loop's `sync` list asks for."""
    return isinstance(op, WaitCopies) and op.rendezvous is not None


def get_spelling(op: OrderingStatement) -> str:
    """Return how a kernel spells an ordering statement: its `T.*` name, or `sync=`."""
    match op:
        case WaitCopies(rendezvous=True):
            return "sync="
        case Rendezvous(what=what):
            return f"T.{what}"
        case BlockBarrier():
            return "T.sync_threads"
        case Fence():
            return "T.fence_proxy_async"
        case CommitCopies():
            return "T.ptx_commit_group"
        case WaitCopies():
            return "T.ptx_wait_group"


def make_buffer_region(buffer: tile.Buffer, span: Span) -> tile.Region:
    """Return a region that stands for all of a buffer: the whole of a tile, but the first element of a tensor."""
    extent = (1,) * len(buffer.extents) if buffer.scope == "global" else buffer.shape
    return tile.Region(buffer, tuple(tile.int32_const(0) for _ in extent), extent, span)


def _check_block_barrier(call: Call) -> tile.TileOp:
    """Return the barrier of T.sync_threads: of all threads, or with `arrive_count` of that many, perhaps numbered. A
    `barrier_id` without a count is ignored, one outside 0 to 15 refused.
    """
    if call["barrier_id"].value is not None and not 0 <= call.read_integer("barrier_id") < 16:
        call.refuse("barrier_id", "a number from 0 to 15")
    if call["arrive_count"].value is None:
        return BlockBarrier(span=call.span)
    number = None if call["barrier_id"].value is None else call.read_integer("barrier_id")
    return BlockBarrier(id=number, threads=call.read_integer("arrive_count"), span=call.span)


def _check_wait_copies(call: Call) -> tile.TileOp:
    """Return the wait of a call of T.ptx_wait_group; refuses a negative number of groups."""
    pending = call.read_integer("n")
    if pending < 0:
        call.refuse("n", "0 or more")
    return WaitCopies(pending=pending, span=call.span)


def _list_ordering_effects(op: tile.TileOp) -> Effects:
    """Return the effects of an ordering statement: reads of its regions, the tiles that it waits for."""
    return Effects(op.regions, ())


define_operation(
    BlockBarrier,
    _list_ordering_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.sync_threads", (Parameter("barrier_id", None), Parameter("arrive_count", None))),
        """Let all threads of the block wait for each other.

        Earlier accesses of shared memory are complete for all of them after it. tilec places the barriers that
        the kernel needs without it. Under `with T.ws(…):` it is for the threads that execute it.
        `arrive_count`, if given, is their number, and `barrier_id` is accepted, but tilec numbers its barriers
        itself; or `arrive_count` is larger, and threads of other roles arrive at the same `barrier_id`.
        """,
        _check_block_barrier,
    ),
    demand=list_no_demands,
)
define_operation(
    Fence,
    _list_ordering_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.fence_proxy_async", ()),
        """Make writes of threads to shared memory visible to TMA and to the tensor cores.

        tilec places the fences that the kernel needs without it. On a target without an asynchronous proxy it
        does nothing.
        """,
        lambda call: Fence(span=call.span),
    ),
    demand=list_no_demands,
    lower=lambda op, context: () if op.via == "nothing" else (warp.ProxyFence(span=op.span),),
)
define_operation(
    CommitCopies,
    _list_ordering_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.ptx_commit_group", ()),
        """Close a group of asynchronous copies, which T.ptx_wait_group counts.

        The group has the copies of T.ptx_cp_async since the last one. T.async_copy closes its group itself.
        """,
        lambda call: CommitCopies(span=call.span),
    ),
    demand=list_no_demands,
    lower=lambda op, context: (warp.CpAsyncCommit(span=op.span),),
)
define_operation(
    WaitCopies,
    _list_ordering_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.ptx_wait_group", (Parameter("n"),)),
        """Wait until at most the newest `n` groups of asynchronous copies are pending.

        Each T.async_copy is a group, and so is each T.ptx_commit_group. They are counted in the order of the
        text: in a pipeline tilec adapts the number, since copies of later iterations are in flight too.
        """,
        _check_wait_copies,
    ),
    demand=list_no_demands,
    lower=lambda op, context: _await_tiles(op, context, readers=False),
)


def _await_tiles(
    op: WaitCopies | BlockBarrier, context: LoweringContext, *, readers: bool
) -> tuple[warp.Operation, ...]:
    """Return the wait for the awaited tiles' copies, and their readers if `readers`; nothing if no tile is awaited."""
    if not op.awaited:
        return ()
    tiles = tuple(dict.fromkeys(region.buffer.name for region in op.awaited))
    return (warp.Await(tiles, readers, is_sync_list_wait(op), cursors=context.cursors, span=op.span),)


@attach_facet(BlockBarrier, "lower")
def lower_block_barrier(op: BlockBarrier, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to the wait for copies and readers of awaited tiles, then to a barrier of the role or a named one."""
    waits = _await_tiles(op, context, readers=True)
    if op.id is not None:
        assert op.threads is not None
        return *waits, warp.NamedBarrier(op.id, op.threads, True, span=op.span)
    # The number of the barrier is the role's (`lower.insert_sync`).
    return *waits, warp.BarSync(0, context.threads, span=op.span)


@attach_facet(BlockBarrier, "agrees")
def verify_block_barrier(op: BlockBarrier) -> Iterator[str]:
    """Yield a violation if a numbered barrier has no number of threads, or one that is not whole warps."""
    if op.id is not None and (op.threads is None or op.threads % 32):
        yield "a barrier with a number is for whole warps"


@attach_facet(WaitCopies, "agrees")
def verify_wait_copies(op: WaitCopies) -> Iterator[str]:
    """Yield a violation if the number of pending groups is missing."""
    if op.pending is None:
        yield "'pending' is missing"
