"""What of a loop's text decides how waits are placed at its borders."""

from __future__ import annotations

from tilec.ir import warp
from tilec.passes.lower.numbered import Node, flat

_SAID = (
    warp.Await, warp.BarSync, warp.ProxyFence, warp.WgmmaWait, warp.ClusterWait, warp.GridSync,
    warp.BarrierWait, warp.NamedBarrier, warp.RingWait, warp.RingAcquire, warp.PingPongWait,
)  # fmt: skip


def says_what_to_wait_for(loop: Node) -> bool:
    """Whether something in the loop waits of itself: in front of it nothing should wait for the same sooner."""
    return any(isinstance(inner.op, _SAID) for body in loop.bodies for inner in flat(body))


def can_be_emptied(op: warp.Loop) -> bool:
    """Whether nothing of it need be in flight at the end of an iteration: not a steady state, which lives by that, nor
    a loop that is left early."""
    return op.part != "steady" and not any(isinstance(inner, warp.Break) for inner in warp.walk(op.body))


def begins_with_product(loop: Node) -> bool:
    """Whether a product comes first in each of its iterations."""
    begins = (node.op for node in loop.bodies[0] if not isinstance(node.op, warp.PingPongWait))
    return isinstance(next(begins, None), warp.Wgmma)
