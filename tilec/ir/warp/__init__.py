"""Warp IR: the operations of each warp role, in issue order, with every wait, arrival and fence in place.

A program has one role (all warps run the same code) or several (warp specialisation). Operations are still tile-sized,
but each is one hardware mechanism: a TMA load, a wgmma group, an elementwise sweep in a known layout.

Tiles that have several versions in flight are addressed through *cursors*: a position in a ring, held in registers,
advanced once per logical iteration. Two statements of one role that work on different iterations have different
cursors.
"""

from __future__ import annotations

from tilec.ir.warp.closed import (
    AnyOperation as AnyOperation,
    known as known,
)
from tilec.ir.warp.memory import (
    FIRST_PER_WARPGROUP as FIRST_PER_WARPGROUP,
    FIRST_PING_PONG as FIRST_PING_PONG,
    MBARRIER_BYTES as MBARRIER_BYTES,
    PART_ROWS as PART_ROWS,
    SMALL_STRIDE as SMALL_STRIDE,
    Barrier as Barrier,
    Barriers as Barriers,
    Corners as Corners,
    Cursor as Cursor,
    Ring as Ring,
    SharedTile as SharedTile,
    TensorMap as TensorMap,
    TensorTile as TensorTile,
    arrivals_of as arrivals_of,
)
from tilec.ir.warp.operations import (
    Branch as Branch,
    Break as Break,
    CpAsync as CpAsync,
    Elementwise as Elementwise,
    Following as Following,
    Forever as Forever,
    FourRows as FourRows,
    Gather as Gather,
    Let as Let,
    LoadMatrix as LoadMatrix,
    Loop as Loop,
    Mma as Mma,
    Moment as Moment,
    Operation as Operation,
    Phase as Phase,
    Pipeline as Pipeline,
    Reduce as Reduce,
    Scales as Scales,
    StoreMatrix as StoreMatrix,
    TensorCopy as TensorCopy,
    TensorLoad as TensorLoad,
    TensorMma as TensorMma,
    TensorStore as TensorStore,
    TmaLoad as TmaLoad,
    TmaStore as TmaStore,
    Trap as Trap,
    Wgmma as Wgmma,
)
from tilec.ir.warp.program import (
    Program as Program,
    Role as Role,
)
from tilec.ir.warp.waits import (
    Advance as Advance,
    Arrive as Arrive,
    Await as Await,
    BarrierWait as BarrierWait,
    BarSync as BarSync,
    BulkWait as BulkWait,
    ClusterArrive as ClusterArrive,
    ClusterWait as ClusterWait,
    CopiesArrive as CopiesArrive,
    CpAsyncCommit as CpAsyncCommit,
    CpAsyncWait as CpAsyncWait,
    ExpectBytes as ExpectBytes,
    GridControl as GridControl,
    GridSync as GridSync,
    NamedBarrier as NamedBarrier,
    PingPongPass as PingPongPass,
    PingPongWait as PingPongWait,
    ProxyFence as ProxyFence,
    RingAcquire as RingAcquire,
    RingDrain as RingDrain,
    RingFill as RingFill,
    RingRelease as RingRelease,
    RingWait as RingWait,
    SetRegisters as SetRegisters,
    TensorArrive as TensorArrive,
    TensorFence as TensorFence,
    TensorWait as TensorWait,
    TryCancel as TryCancel,
    WarpgroupSync as WarpgroupSync,
    WgmmaWait as WgmmaWait,
)
from tilec.ir.warp.walk import (
    final_guard as final_guard,
    nested as nested,
    own_rows as own_rows,
    scalar_reads as scalar_reads,
    static_trip_count as static_trip_count,
    walk as walk,
)
