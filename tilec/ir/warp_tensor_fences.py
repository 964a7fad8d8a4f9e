"""Fences of tensor memory (rule 16 of `warp_verify`): threads fence their accesses before they signal a barrier, and
fence after they wait at one."""

from __future__ import annotations

from tilec.ir import warp
from tilec.ir.warp import Operation, Program
from tilec.ir.warp_effects import op_name
from tilec.ir.warp_run_state import RoleState


class TensorFences:
    """Checks the barriers of rings in tensor memory, and with explicit roles all barriers."""

    def __init__(self, program: Program) -> None:
        self.program = program
        tensor = {tile.buffer.name for tile in program.tensor}
        self.has_tensor_memory = bool(tensor)
        self.rings = {ring.name for ring in program.rings if not tensor.isdisjoint(ring.buffers)}

    def missing(self, state: RoleState, op: Operation) -> str:
        """Return the violation of an operation after those that the role has executed, or ""."""
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
        """Return whether the operation signals others that may then touch tensor memory."""
        if isinstance(op, warp.RingFill | warp.RingRelease):
            return not op.by_tensor_cores and op.cursor.ring in self.rings
        meets = warp.Arrive | warp.NamedBarrier | warp.BarSync | warp.WarpgroupSync
        return self.program.explicit_roles and isinstance(op, meets)

    def waits_for_others(self, op: Operation) -> bool:
        """Return whether the operation waits for others that may have touched tensor memory."""
        if isinstance(op, warp.RingWait | warp.RingAcquire):
            return op.cursor.ring in self.rings
        if isinstance(op, warp.NamedBarrier):
            return self.program.explicit_roles and op.waits
        return self.program.explicit_roles and isinstance(op, warp.BarrierWait | warp.BarSync | warp.WarpgroupSync)
