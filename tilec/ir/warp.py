"""Warp IR: the operations of each warp role, in issue order, with every wait, arrival and fence in place.

A program has one role (all warps run the same code) or several (warp specialisation). Operations are still tile-sized,
but each is one hardware mechanism: a TMA load, a wgmma group, an elementwise sweep in a known layout.

Tiles that have several versions in flight are addressed through *cursors*: a position in a ring, held in registers,
advanced once per logical iteration. Two statements of one role that work on different iterations have different
cursors.
"""

from __future__ import annotations

from tilec.ir.warp_nodes.closed import AnyOperation as AnyOperation, as_known_operation as as_known_operation
from tilec.ir.warp_nodes.memory import (
    FIRST_PER_WARPGROUP as FIRST_PER_WARPGROUP,
    FIRST_PING_PONG as FIRST_PING_PONG,
    MBARRIER_BYTES as MBARRIER_BYTES,
    PART_ROWS as PART_ROWS,
    SMALL_STRIDE as SMALL_STRIDE,
    Barrier as Barrier,
    BarrierArray as BarrierArray,
    Cursor as Cursor,
    Im2colCorners as Im2colCorners,
    Ring as Ring,
    SharedTile as SharedTile,
    TensorMap as TensorMap,
    TensorTile as TensorTile,
    count_arrivals as count_arrivals,
)
from tilec.ir.warp_nodes.operations import (
    Branch as Branch,
    Break as Break,
    CpAsync as CpAsync,
    Elementwise as Elementwise,
    Forever as Forever,
    FourRows as FourRows,
    Gather as Gather,
    Let as Let,
    LoadMatrix as LoadMatrix,
    Loop as Loop,
    Mma as Mma,
    NextIteration as NextIteration,
    Operation as Operation,
    Phase as Phase,
    Pipeline as Pipeline,
    PipelinePosition as PipelinePosition,
    Reduce as Reduce,
    Scales as Scales,
    StoreMatrix as StoreMatrix,
    TensorCopy as TensorCopy,
    TensorLoad as TensorLoad,
    TensorMma as TensorMma,
    TensorStore as TensorStore,
    TmaLoad as TmaLoad,
    TmaStore as TmaStore,
    TransposeMatrix as TransposeMatrix,
    Trap as Trap,
    Wgmma as Wgmma,
)
from tilec.ir.warp_nodes.program import Program as Program, Role as Role
from tilec.ir.warp_nodes.waits import (
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
from tilec.ir.warp_nodes.walk import (
    final_guard as final_guard,
    nested_bodies as nested_bodies,
    scalar_reads as scalar_reads,
    static_trip_count as static_trip_count,
    tiles_read_by_own_rows as tiles_read_by_own_rows,
    walk_operations as walk_operations,
)
