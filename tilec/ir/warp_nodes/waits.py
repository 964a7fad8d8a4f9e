"""The operations by which roles, warps, blocks and grids wait for each other."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from tilec.ir.tile import Buffer, Expr
from tilec.ir.warp_nodes.memory import Barrier, Cursor
from tilec.ir.warp_nodes.operations import Operation
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span

# ---- synchronisation: placed by code.sync, but for the ring protocol, which follows from the roles, and kernels' own


@dataclass(frozen=True, slots=True)
class Await(Operation):
    """A place where all writes to the named tiles, and with `readers` all reads of them, must be complete. Emits
    nothing itself: its waits are placed like all others. It covers the thread's own operations, with `rendezvous` those
    of all threads of the role."""

    tiles: tuple[str, ...]
    readers: bool = False
    rendezvous: bool = False


@dataclass(frozen=True, slots=True)
class BarSync(Operation):
    """A barrier of all threads of the role, the named barrier `id`. `over` is what is accessed after it, and was
    accessed at `after` by other threads: for readers, and empty where the kernel asks for the barrier or it has another
    purpose."""

    id: int
    threads: int
    over: str = field(default="", compare=False)
    after: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class WarpgroupSync(Operation):
    """A barrier of each warpgroup of the role by itself: warpgroup number n uses named barrier `first` + n."""

    first: int


@dataclass(frozen=True, slots=True)
class CpAsyncCommit(Operation):
    """Close a group of this thread's cp.async (possibly an empty one, to keep the count)."""


@dataclass(frozen=True, slots=True)
class CpAsyncWait(Operation):
    """Wait until at most `pending` of this thread's newest groups are in flight."""

    pending: int


@dataclass(frozen=True, slots=True)
class WgmmaWait(Operation):
    """Wait until at most `pending` of this warpgroup's newest wgmma groups are in flight."""

    pending: int


@dataclass(frozen=True, slots=True)
class BulkWait(Operation):
    """Wait, in the thread that issues TMA stores, until at most `pending` of its newest ones still read shared
    memory."""

    pending: int


@dataclass(frozen=True, slots=True)
class ProxyFence(Operation):
    """Make this thread's ordinary shared-memory writes visible to the asynchronous proxy."""


@dataclass(frozen=True, slots=True)
class TensorWait(Operation):
    """Wait until all loads of this thread from tensor memory are complete, or all its stores. `fragment` is the
    register operand of the last one."""

    what: Literal["load", "store"]
    fragment: Buffer


@dataclass(frozen=True, slots=True)
class TensorFence(Operation):
    """Order this thread's earlier accesses to tensor memory before the barrier that follows, or its later ones after
    the barrier that it has waited at."""

    what: Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class RingAcquire(Operation):
    """In a producer: wait until the version is empty, then announce the bytes that TMA will copy into it, if any."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class RingFill(Operation):
    """In a producer that writes with ordinary stores: arrive on the version's full barrier, and give the version up, or
    with `keeps` give it up for the time being. `by_tensor_cores`: the tensor cores arrive, once they have completed
    everything that this thread has issued. Of a ring without tiles `cursors` name the versions of other rings."""

    cursor: Cursor
    by_tensor_cores: bool = False
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class RingWait(Operation):
    """In a consumer: wait until the version is full."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class RingRelease(Operation):
    """In a consumer: arrive on the version's empty barrier; with `by_tensor_cores` as in `RingFill`."""

    cursor: Cursor
    by_tensor_cores: bool = False


@dataclass(frozen=True, slots=True)
class RingDrain(Operation):
    """In a producer: wait until every version is empty, so that nobody signals a block that has exited."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class ClusterArrive(Operation):
    """Each thread arrives at the cluster's barrier; `relaxed`: without ordering memory."""

    relaxed: bool = False


@dataclass(frozen=True, slots=True)
class ClusterWait(Operation):
    """Each thread waits until all threads of its cluster that have not exited have arrived. `meets`: it directly
    follows an arrival that releases, and so is a barrier of the block too; else it orders no accesses of the block."""

    meets: bool = False


@dataclass(frozen=True, slots=True)
class GridSync(Operation):
    """All threads of the role, in all blocks of the grid, wait for each other at a tensor of one number, `counter`,
    which is initially 0."""

    counter: str


@dataclass(frozen=True, slots=True)
class GridControl(Operation):
    """Wait for the grid that was launched before this one, or let the next one begin."""

    what: Literal["wait", "launch_dependents"]


@dataclass(frozen=True, slots=True)
class PingPongWait(Operation):
    """Each warpgroup of the role waits at its own named barrier for its turn at the tensor cores."""


@dataclass(frozen=True, slots=True)
class PingPongPass(Operation):
    """Each warpgroup of the role arrives at the named barrier of the next warpgroup, which gives it the turn."""


@dataclass(frozen=True, slots=True)
class Advance(Operation):
    """Move a cursor to the next version. `behind` is a cursor of the same ring that is already there."""

    cursor: Cursor
    behind: Cursor | None = None


# ---- synchronisation that the kernel itself writes -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrive(Operation):
    """Each thread of the role, or those for which `condition` holds, arrives after its earlier accesses; or with
    `by_warps` one thread of each warp, after those of the whole warp. The barrier belongs to the cluster's `block`, or
    where that is None to this block."""

    barrier: Barrier
    condition: Expr | None = None
    by_warps: bool = False
    block: Expr | None = None


@dataclass(frozen=True, slots=True)
class CopiesArrive(Operation):
    """Each thread, or those for which `condition` holds, arrives when its cp.async so far have completed."""

    barrier: Barrier
    condition: Expr | None = None


@dataclass(frozen=True, slots=True)
class TensorArrive(Operation):
    """The tensor cores arrive once they have completed everything that the role's thread `leader` has issued; for those
    of two blocks (`paired`), at the barriers of both."""

    barrier: Barrier
    leader: int
    paired: bool = False


@dataclass(frozen=True, slots=True)
class TryCancel(Operation):
    """The role's thread `leader` asks cluster launch control for the work of a block that has not begun. The response's
    bytes signal the barrier; with `announces` the thread first announces them there, else the kernel does. Without a
    barrier the response is a version of a ring: the thread asks in the first block of a cluster for the work of another
    cluster, all blocks receive the response, and each announces its bytes when it acquires the version."""

    answer: Buffer
    barrier: Barrier | None
    leader: int
    announces: bool = True


@dataclass(frozen=True, slots=True)
class ExpectBytes(Operation):
    """The role's thread `leader` announces bytes to the barrier, and with `arrives` arrives."""

    barrier: Barrier
    bytes: int
    leader: int
    arrives: bool


@dataclass(frozen=True, slots=True)
class BarrierWait(Operation):
    """All threads of the role wait until the barrier's phase of this parity has completed. Where `unless` holds, it is
    known to have completed, and nobody tests it."""

    barrier: Barrier
    parity: Expr
    unless: Expr | None = None


@dataclass(frozen=True, slots=True)
class NamedBarrier(Operation):
    """All threads of the role arrive at named barrier `id`, which counts `threads` arrivals, of other roles too; with
    `waits` they also wait for these."""

    id: int
    threads: int
    waits: bool


@dataclass(frozen=True, slots=True)
class SetRegisters(Operation):
    """Each thread of the role has this many registers from here on (setmaxnreg)."""

    count: int
