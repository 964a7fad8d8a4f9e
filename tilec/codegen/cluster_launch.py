"""Cluster launch control: asking for the work of a block that has not begun. `integers` reads the answer."""

from __future__ import annotations

from tilec.codegen.barriers import is_thread, own_barrier
from tilec.codegen.state import State
from tilec.ir.tile import integer
from tilec.ir.warp import TryCancel
from tilec.ptx.module import Imm


def emit_try_cancel(op: TryCancel, state: State) -> None:
    builder = state.builder
    builder.at(op.span)
    asks, barrier = is_thread(state, op.leader), own_barrier(op.barrier, state)
    if op.announces:
        builder.emit("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", barrier, Imm(op.answer.bytes), guard=asks)
    answer = state.addresses.shared_element(op.answer, (integer(0),), op.cursors)
    opcode = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"
    builder.emit(opcode, answer, barrier, guard=asks)
