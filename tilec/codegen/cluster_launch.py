"""Cluster launch control: requests for the work of blocks that have not begun. `integers` decodes the answers."""

from __future__ import annotations

from tilec.codegen.barriers import is_thread, own_barrier
from tilec.codegen.state import State
from tilec.codegen.transfer import barrier_address
from tilec.ir.tile import integer
from tilec.ir.warp import TryCancel
from tilec.ptx.module import Address, Imm, Reg

_OPCODE = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"


def emit_try_cancel(op: TryCancel, state: State) -> None:
    builder = state.builder
    answer = state.addresses.shared_element(op.answer, (integer(0),), op.cursors)
    if op.barrier is None:
        _ask_for_all(op, answer, state)
        return
    asks, barrier = is_thread(state, op.leader), own_barrier(op.barrier, state)
    if op.announces:
        builder.emit("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", barrier, Imm(op.answer.bytes), guard=asks)
    builder.emit(f"{_OPCODE}.b128", answer, barrier, guard=asks)


def _ask_for_all(op: TryCancel, answer: Address, state: State) -> None:
    """Emit the request of a cluster, by the role's only thread in the first block. The answer is multicast to all
    blocks and completes on the barrier of each."""
    assert state.role.single_thread
    (cursor,) = op.cursors
    full = barrier_address(state, cursor.name, cursor.ring, empty=False)
    is_first: Reg | None = None if state.head is None else state.head.is_first
    multicast = "" if state.head is None else ".multicast::cluster::all"
    state.builder.emit(f"{_OPCODE}{multicast}.b128", answer, full, guard=is_first)
