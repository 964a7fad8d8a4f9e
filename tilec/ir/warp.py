"""Warp IR: the operations of each warp role, in issue order, with every wait, arrival and fence in place.

A program has one role (all warps run the same code) or several (warp specialisation). Operations are still tile-sized,
but each is one hardware mechanism: a TMA load, a wgmma group, an elementwise sweep in a known layout.

Tiles that have several versions in flight are addressed through *cursors*: a position in a ring, held in registers,
advanced once per logical iteration. Two statements of one role that work on different iterations have different
cursors.

Code that handles every operation matches over `AnyOperation` and ends in `assert_never`: the type checker then names
every place that does not handle a new operation yet, and at run time an operation outside the set is refused.
"""

from __future__ import annotations

from typing import cast, get_args

from tilec.ir.warp_nodes import operations, waits
from tilec.ir.warp_nodes.memory import *  # noqa: F403  (this module has the names of those files)
from tilec.ir.warp_nodes.operations import *  # noqa: F403
from tilec.ir.warp_nodes.program import *  # noqa: F403
from tilec.ir.warp_nodes.waits import *  # noqa: F403
from tilec.ir.warp_nodes.walk import *  # noqa: F403
from tilec.support.diagnostics import InternalError

AnyOperation = (
    waits.Advance | waits.Arrive | waits.Await | waits.BarSync | waits.BarrierWait | operations.Branch
    | operations.Break | waits.BulkWait | waits.ClusterArrive | waits.ClusterWait | waits.CopiesArrive
    | operations.CpAsync | waits.CpAsyncCommit | waits.CpAsyncWait | operations.Elementwise | waits.ExpectBytes
    | operations.Forever | waits.GridControl | waits.GridSync | operations.Let | operations.LoadMatrix
    | operations.Loop | operations.Mma | waits.NamedBarrier | operations.Pipeline | waits.ProxyFence
    | operations.Reduce | waits.RingAcquire | waits.RingDrain | waits.RingFill | waits.RingRelease | waits.RingWait
    | operations.Scan
    | waits.SetRegisters | operations.StoreMatrix | waits.TensorArrive | operations.TensorCopy | operations.TensorLoad
    | operations.TensorMma | operations.TensorStore | operations.TmaLoad | operations.TmaStore
    | operations.TransposeMatrix | operations.Trap
    | waits.TryCancel | waits.PingPongPass | waits.PingPongWait | waits.WarpgroupSync | operations.Wgmma
    | waits.WgmmaWait | waits.TensorFence | waits.TensorWait
)  # fmt: skip
"""The closed set of warp operations."""

_KNOWN_TYPES = frozenset(get_args(AnyOperation))


def as_known_operation(op: operations.Operation) -> AnyOperation:
    """Return the operation typed as one of the closed set of warp operations; raises `InternalError` for any other."""
    if type(op) not in _KNOWN_TYPES:
        raise InternalError(f"{type(op).__name__} is not in the closed set of warp operations")
    return cast(AnyOperation, op)
