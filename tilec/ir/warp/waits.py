"""The operations by which roles, warps, blocks and grids wait for each other."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from tilec.ir.tile import Buffer, Expr
from tilec.ir.warp.memory import Barrier, Cursor
from tilec.ir.warp.operations import Operation
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span

# ---- synchronisation: placed by code.sync, except the ring protocol, which follows from the roles, and what a kernel
# ---- asks for itself -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Await(Operation):
    """Nothing by itself: a place where all that fills the named tiles has completed, and with `readers` all that reads
    them, as far as the thread itself does it; with `rendezvous`, for all threads of the role. The waits for it are
    placed like all others."""

    tiles: tuple[str, ...]
    readers: bool = False
    rendezvous: bool = False


@dataclass(frozen=True, slots=True)
class BarSync(Operation):
    """All threads of the role meet at named barrier `id`. `over` is what is touched behind it, and has been touched at
    `after`, by other threads: to be read, and empty where the kernel asks for the barrier or it has another purpose."""

    id: int
    threads: int
    over: str = field(default="", compare=False)
    after: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class WarpgroupSync(Operation):
    """The threads of each warpgroup of the role meet by themselves: at named barrier `first`, or the one so many after
    it as the warpgroup has in the role."""

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
    """Who issues TMA stores waits until at most `pending` of its newest ones still read shared memory."""

    pending: int


@dataclass(frozen=True, slots=True)
class ProxyFence(Operation):
    """Make this thread's ordinary shared-memory writes visible to the asynchronous proxy."""


@dataclass(frozen=True, slots=True)
class TensorWait(Operation):
    """Wait until all loads of this thread from tensor memory are complete, or all its stores: of the last one, that to
    `fragment` or from it."""

    what: Literal["load", "store"]
    fragment: Buffer


@dataclass(frozen=True, slots=True)
class TensorFence(Operation):
    """Order what this thread has done to tensor memory before the barrier that follows, or what it does there next
    after the barrier that it has waited at."""

    what: Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class RingAcquire(Operation):
    """Who fills: wait until the version is empty, then announce the bytes that TMA will copy into it, if any."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class RingFill(Operation):
    """Who fills by ordinary writes: it arrives on the version's full barrier, and leaves the version alone, or with
    `keeps` leaves it to others for the time being. `by_tensor_cores`: they arrive themselves, once they have done all
    that this thread has asked them for. Of a ring without tiles `cursors` say which versions of others are meant."""

    cursor: Cursor
    by_tensor_cores: bool = False
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class RingWait(Operation):
    """Who reads: wait until the version is full."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class RingRelease(Operation):
    """Who reads: it arrives on the version's empty barrier; or as in `RingFill` the tensor cores do."""

    cursor: Cursor
    by_tensor_cores: bool = False


@dataclass(frozen=True, slots=True)
class RingDrain(Operation):
    """Producer: wait until every version is empty, so that nobody signals a block that has gone."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class ClusterArrive(Operation):
    """Each thread says to the blocks of its cluster that it has come here; `relaxed`: and nothing else."""

    relaxed: bool = False


@dataclass(frozen=True, slots=True)
class ClusterWait(Operation):
    """Each thread waits until all threads of its cluster that have not ended have arrived. `meets`: it stands right
    behind an arrival that releases, and so is a barrier of the block too; else nobody knows what others did before they
    arrived, or since."""

    meets: bool = False


@dataclass(frozen=True, slots=True)
class GridSync(Operation):
    """All threads of the role, in all blocks of the grid, wait for each other at a tensor of one number, `counter`,
    which begins as 0."""

    counter: str


@dataclass(frozen=True, slots=True)
class GridControl(Operation):
    """Wait for the grid that was launched before this one, or let the one after it begin."""

    what: Literal["wait", "launch_dependents"]


@dataclass(frozen=True, slots=True)
class PingPongWait(Operation):
    """Each warpgroup of the role waits at its own named barrier for its turn at the tensor cores."""


@dataclass(frozen=True, slots=True)
class PingPongPass(Operation):
    """Each warpgroup of the role arrives at the named barrier of the next one, whose turn it is then."""


@dataclass(frozen=True, slots=True)
class Advance(Operation):
    """Move a cursor to the next version. `behind` is one of the same ring that stands there and has yet to move on."""

    cursor: Cursor
    behind: Cursor | None = None


# ---- what a kernel orders its roles by -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrive(Operation):
    """Each thread of the role arrives, or those for which `condition` holds, after what it has done before; or with
    `by_warps` one of each warp, after what all of it have done. The barrier is that of the cluster's `block`, or where
    that is None of this one."""

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
    """The tensor cores arrive once they have done all that the role's thread `leader` has asked them for: where those
    of two blocks do it (`paired`), at the barriers of both."""

    barrier: Barrier
    leader: int
    paired: bool = False


@dataclass(frozen=True, slots=True)
class TryCancel(Operation):
    """The role's thread `leader` asks for the work of a block that has not begun. The answer's bytes signal the
    barrier, and with `announces` it first announces them there; else the kernel does. Without a barrier the answer is
    one of a ring: the thread asks in the first block of a cluster for the work of another cluster, all blocks hear the
    answer, and each has announced its bytes when it acquired the version."""

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
    """All threads of the role wait until the barrier's phase of this parity has completed. Where `unless` holds, it has
    already, and nobody looks."""

    barrier: Barrier
    parity: Expr
    unless: Expr | None = None


@dataclass(frozen=True, slots=True)
class NamedBarrier(Operation):
    """All threads of the role arrive at named barrier `id`, at which so many `threads` do, of other roles too; and
    with `waits` they wait for these."""

    id: int
    threads: int
    waits: bool


@dataclass(frozen=True, slots=True)
class SetRegisters(Operation):
    """From here on each thread of the role has so many registers (setmaxnreg)."""

    count: int
