"""The closed set of warp operations.

Code that handles every operation matches over the set and ends in `assert_never`: the type checker then names every
place that does not handle a new operation yet, and at run time an operation outside the set is refused.
"""

from __future__ import annotations

from typing import cast, get_args

from tilec.ir.warp_nodes.operations import (
    Branch,
    Break,
    CpAsync,
    Elementwise,
    Forever,
    Let,
    LoadMatrix,
    Loop,
    Mma,
    Operation,
    Pipeline,
    Reduce,
    StoreMatrix,
    TensorCopy,
    TensorLoad,
    TensorMma,
    TensorStore,
    TmaLoad,
    TmaStore,
    TransposeMatrix,
    Trap,
    Wgmma,
)
from tilec.ir.warp_nodes.waits import (
    Advance,
    Arrive,
    Await,
    BarrierWait,
    BarSync,
    BulkWait,
    ClusterArrive,
    ClusterWait,
    CopiesArrive,
    CpAsyncCommit,
    CpAsyncWait,
    ExpectBytes,
    GridControl,
    GridSync,
    NamedBarrier,
    PingPongPass,
    PingPongWait,
    ProxyFence,
    RingAcquire,
    RingDrain,
    RingFill,
    RingRelease,
    RingWait,
    SetRegisters,
    TensorArrive,
    TensorFence,
    TensorWait,
    TryCancel,
    WarpgroupSync,
    WgmmaWait,
)
from tilec.support.diagnostics import InternalError

AnyOperation = (
    Advance
    | Arrive
    | Await
    | BarSync
    | BarrierWait
    | Branch
    | Break
    | BulkWait
    | ClusterArrive
    | ClusterWait
    | CopiesArrive
    | CpAsync
    | CpAsyncCommit
    | CpAsyncWait
    | Elementwise
    | ExpectBytes
    | Forever
    | GridControl
    | GridSync
    | Let
    | LoadMatrix
    | Loop
    | Mma
    | NamedBarrier
    | Pipeline
    | ProxyFence
    | Reduce
    | RingAcquire
    | RingDrain
    | RingFill
    | RingRelease
    | RingWait
    | SetRegisters
    | StoreMatrix
    | TensorArrive
    | TensorCopy
    | TensorLoad
    | TensorMma
    | TensorStore
    | TmaLoad
    | TmaStore
    | TransposeMatrix
    | Trap
    | TryCancel
    | PingPongPass
    | PingPongWait
    | WarpgroupSync
    | Wgmma
    | WgmmaWait
    | TensorFence
    | TensorWait
)

_KNOWN_TYPES = frozenset(get_args(AnyOperation))


def as_known_operation(op: Operation) -> AnyOperation:
    """Return the operation as one of the set. Raises `InternalError` for any other."""
    if type(op) not in _KNOWN_TYPES:
        raise InternalError(f"{type(op).__name__} is not in the closed set of warp operations")
    return cast(AnyOperation, op)
