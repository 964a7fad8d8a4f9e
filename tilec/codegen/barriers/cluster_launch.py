"""Cluster launch control: requests for the work of blocks that have not begun. `integers` decodes the answers."""

from __future__ import annotations

from tilec.codegen.barriers.barriers import address_own_barrier, emit_thread_test
from tilec.codegen.barriers.transfer import address_ring_barrier
from tilec.codegen.state import State
from tilec.ir.tile import int32_const
from tilec.ir.warp import TryCancel
from tilec.ptx.module import Address, Imm, Reg

_OPCODE = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"


def emit_try_cancel(op: TryCancel, state: State) -> None:
    """Emit the request to take over a block that has not begun; the answer arrives at a barrier."""
    builder = state.builder
    answer = state.addresses.address_shared_element(op.answer, (int32_const(0),), op.cursors)
    if op.barrier is None:
        _emit_multicast_cancel(op, answer, state)
        return
    asks, barrier = emit_thread_test(state, op.leader), address_own_barrier(op.barrier, state)
    if op.announces:
        builder.emit("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", barrier, Imm(op.answer.bytes), guard=asks)
    builder.emit(f"{_OPCODE}.b128", answer, barrier, guard=asks)


def _emit_multicast_cancel(op: TryCancel, answer: Address, state: State) -> None:
    """Emit the request of a cluster, by the role's only thread in the first block. The answer is multicast to all
    blocks and completes on the barrier of each."""
    assert state.role.single_thread
    (cursor,) = op.cursors
    full = address_ring_barrier(state, cursor.name, cursor.ring, empty=False)
    is_first: Reg | None = None if state.head is None else state.head.is_first
    multicast = "" if state.head is None else ".multicast::cluster::all"
    state.builder.emit(f"{_OPCODE}{multicast}.b128", answer, full, guard=is_first)
