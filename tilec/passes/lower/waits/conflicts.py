"""Find the pending accesses of a role that a later access must not overtake, so that a wait or barrier is needed, and
the properties of a loop that decide how waits are placed at its borders."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tilec.ir import warp
from tilec.ir.groups import WARPGROUP_WARPS
from tilec.passes.lower.waits.handover import Handover
from tilec.passes.lower.waits.numbered import Node, walk_nodes
from tilec.passes.lower.waits.scoreboard import AccessRecord, RoleState, Touch, VersionKey


class ConflictFinder:
    """Finds the conflicts of a role of `warps` warps. `rings`: by tile name; `fragments`: all names of registers."""

    def __init__(
        self, rings: Mapping[str, warp.Ring], fragments: Collection[str], warps: int, handover: Handover
    ) -> None:
        self.rings, self.fragments, self.warps, self.handover = rings, fragments, warps, handover

    def find_key(self, state: RoleState, node: Node, touch: Touch) -> VersionKey:
        """Return the name and version number that a touch reaches: 0 unless a ring's cursor tells versions apart."""
        ring = self.rings.get(touch.buffer)
        if ring is None or ring.depth == 1 or node.cursors[ring.name] not in state.positions:
            return (touch.buffer, 0)  # versions that the kernel names are not distinguished
        return (touch.buffer, state.positions[node.cursors[ring.name]] % ring.depth)

    def find_conflicts(self, state: RoleState, node: Node, touch: Touch, key: VersionKey) -> Iterator[AccessRecord]:
        """Yield the recorded accesses of this version that need a wait, fence or barrier before the node's touch."""
        for record in state.records.get(key, ()):
            commute = record.touch.atomic == touch.atomic != "" or self.is_same_warp(record.touch, touch)
            if commute or not (record.touch.write or touch.write):
                continue
            if touch.owner is not None and touch.owner == record.touch.owner:
                continue
            if record.is_elsewhere(touch, state.frame):
                continue
            if touch.buffer in self.fragments:
                # Registers are a thread's own: only operations still in flight matter, and wgmma
                # groups keep their order.
                if record.group and (touch.proxy == "registers" or not (record.queue == node.queue == "wgmma")):
                    yield record
            elif record.group or not is_synchronised(record, touch) or self.is_fence_missing(record, touch):
                yield record

    def is_same_warp(self, one: Touch, other: Touch) -> bool:
        """Return True if both are non-atomic accesses of tensor memory by a role of four warps, which have their own
        lanes."""
        return self.warps == WARPGROUP_WARPS and one.proxy == other.proxy == "tensor" and not one.atomic + other.atomic

    def is_fence_missing(self, record: AccessRecord, touch: Touch) -> bool:
        """Return True if the touch is by the asynchronous proxy, and the recorded access needs a fence before that."""
        return touch.proxy == "async" and self.handover.needs_fence(record)


def is_synchronised(record: AccessRecord, touch: Touch) -> bool:
    """Return True if the recorded access has met a barrier of the role, or of the warpgroup if that is enough."""
    return record.met == "role" or (record.touch.per_warpgroup and touch.per_warpgroup and record.met == "warpgroup")


_EXPLICIT_WAITS = (
    warp.Await, warp.BarSync, warp.ProxyFence, warp.WgmmaWait, warp.ClusterWait, warp.GridSync,
    warp.BarrierWait, warp.NamedBarrier, warp.RingWait, warp.RingAcquire, warp.PingPongWait,
)  # fmt: skip


def has_explicit_wait(loop: Node) -> bool:
    """Return True if the loop contains a wait, fence or barrier of its own."""
    return any(isinstance(inner.op, _EXPLICIT_WAITS) for body in loop.bodies for inner in walk_nodes(body))


def can_drain_iterations(op: warp.Loop) -> bool:
    """Return True if the loop can wait for all wgmma at each iteration's end: it is no steady loop and has no break."""
    return op.part != "steady" and not any(isinstance(inner, warp.Break) for inner in warp.walk_operations(op.body))


def begins_with_product(loop: Node) -> bool:
    """Return True if each iteration of the loop begins with a wgmma product, ping-pong waits aside."""
    begins = (node.op for node in loop.bodies[0] if not isinstance(node.op, warp.PingPongWait))
    return isinstance(next(begins, None), warp.Wgmma)
