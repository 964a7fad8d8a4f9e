"""The synchronisation that two operations of one role need when they touch the same buffer: a wait, a barrier, a fence
(rules 5, 7, 8 and 16 of `warp_verify.verify`).
"""

from __future__ import annotations

from tilec.ir import warp
from tilec.ir.groups import WARPGROUP_WARPS
from tilec.ir.tile import Buffer
from tilec.ir.warp import Operation, Program
from tilec.ir.warp_verify.effects import op_name
from tilec.ir.warp_verify.owners import are_disjoint
from tilec.ir.warp_verify.regions import TensorParts
from tilec.ir.warp_verify.run_state import Access, RoleState


class TensorFences:
    """Checks the barriers of rings in tensor memory, and with explicit roles all barriers."""

    def __init__(self, program: Program) -> None:
        self.program = program
        tensor = {tile.buffer.name for tile in program.tensor}
        self.has_tensor_memory = bool(tensor)
        self.rings = {ring.name for ring in program.rings if not tensor.isdisjoint(ring.buffers)}

    def missing(self, state: RoleState, op: Operation) -> str:
        """Return a message if the operation needs a tensor memory fence that the role has not executed, else ""; update
        the state."""
        if not self.has_tensor_memory:
            return ""
        where = f"line {op.span.line}: {op_name(op)} has no fence of tensor memory"
        match op:
            case warp.TensorFence(what="before"):
                state.moved = ""
            case warp.TensorFence(what="after"):
                state.entered = ""
            case warp.TensorLoad() | warp.TensorStore() | warp.TensorMma() | warp.TensorCopy():
                if state.entered:
                    return f"{where} after {state.entered}"
                if isinstance(op, warp.TensorLoad | warp.TensorStore):
                    state.moved = op_name(op)
            case _ if state.moved and self.signals_others(op):
                return f"{where} behind {state.moved}"
            case _:
                pass
        if self.waits_for_others(op):
            state.entered = op_name(op)
        return ""

    def signals_others(self, op: Operation) -> bool:
        """Return whether other threads, signalled by the operation, may then touch tensor memory."""
        if isinstance(op, warp.RingFill | warp.RingRelease):
            return not op.by_tensor_cores and op.cursor.ring in self.rings
        meets = warp.Arrive | warp.NamedBarrier | warp.BarSync | warp.WarpgroupSync
        return self.program.explicit_roles and isinstance(op, meets)

    def waits_for_others(self, op: Operation) -> bool:
        """Return whether the operation waits for other threads that may have touched tensor memory."""
        if isinstance(op, warp.RingWait | warp.RingAcquire):
            return op.cursor.ring in self.rings
        if isinstance(op, warp.NamedBarrier):
            return self.program.explicit_roles and op.waits
        return self.program.explicit_roles and isinstance(op, warp.BarrierWait | warp.BarSync | warp.WarpgroupSync)


class Conflicts:
    """The buffers of a program by kind: `fragments` in registers, `tensor` tiles in tensor memory, `tensors` in global
    memory, and tiles of which each warpgroup reaches its own part alone, `per_warpgroup`."""

    def __init__(self, program: Program, parts: TensorParts) -> None:
        self.fixed = parts.fixed
        self.fragments = {b.name for b, _ in program.fragments}
        self.tensor = {tile.buffer.name for tile in program.tensor}
        self.tensors = {p.name for p in program.params if isinstance(p, Buffer)}
        stored = (op for op in program.operations() if isinstance(op, warp.TmaStore) and op.parts > 1)
        copied = (tile for tile in program.shared if tile.layout.copies > 1)
        self.per_warpgroup = {op.source.name for op in stored} | {tile.buffer.name for tile in copied}

    def after(
        self,
        state: RoleState,
        op: Operation,
        name: str,
        earlier: Access,
        write: bool,
        queue: str | None,
        by_async: bool,
        by_all: bool = False,
    ) -> str:
        """Return a message if an operation lacks the wait, barrier or fence that an earlier access to its buffer needs,
        else "". Both are of one role. `write`, `queue` and `by_async` describe the operation's access; `by_all`: it may
        reach the parts of all warpgroups.
        """
        if not (earlier.write or write):
            return ""
        where = f"line {op.span.line}: {op_name(op)} on {name}"
        if earlier.group and not (name in self.fragments and earlier.queue == queue == "wgmma"):
            return f"{where} does not wait for {earlier.op}"
        if name in self.fragments:
            return ""
        moves = {op_name(op), earlier.op} <= {"TensorLoad", "TensorStore"}
        if moves and name in self.tensor and state.role.warps == WARPGROUP_WARPS:
            return ""  # in tensor memory each warp of a warpgroup has lanes of its own
        is_per_warpgroup = name in self.per_warpgroup and not by_all
        has_met = earlier.part < state.part if is_per_warpgroup else earlier.interval < state.interval
        if not has_met and name in self.tensors:
            has_met = are_disjoint(earlier.by, op, name, (earlier.write, write), self.fixed)
        if not has_met:
            return f"{where} has no barrier after {earlier.op}"
        if by_async and earlier.write and not earlier.async_proxy and not earlier.fenced:
            return f"{where} has no proxy fence after {earlier.op}"
        return ""
