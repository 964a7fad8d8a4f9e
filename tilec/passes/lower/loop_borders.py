"""Properties of a loop that decide how waits are placed at its borders."""

from __future__ import annotations

from tilec.ir import warp
from tilec.passes.lower.numbered import Node, walk_nodes

_EXPLICIT_WAITS = (
    warp.Await, warp.BarSync, warp.ProxyFence, warp.WgmmaWait, warp.ClusterWait, warp.GridSync,
    warp.BarrierWait, warp.NamedBarrier, warp.RingWait, warp.RingAcquire, warp.PingPongWait,
)  # fmt: skip


def has_explicit_wait(loop: Node) -> bool:
    """Return True if the loop has explicit waits: then nothing before it should wait for the same sooner."""
    return any(isinstance(inner.op, _EXPLICIT_WAITS) for body in loop.bodies for inner in walk_nodes(body))


def can_drain_iterations(op: warp.Loop) -> bool:
    """Return True if the loop can end each iteration with nothing in flight: no steady state, and no early exit."""
    return op.part != "steady" and not any(isinstance(inner, warp.Break) for inner in warp.walk_operations(op.body))


def begins_with_product(loop: Node) -> bool:
    """Return True if each iteration begins with a product."""
    begins = (node.op for node in loop.bodies[0] if not isinstance(node.op, warp.PingPongWait))
    return isinstance(next(begins, None), warp.Wgmma)
