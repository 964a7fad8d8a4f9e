"""The mbarriers that a kernel itself arrives at and waits for, and the named barrier of a warpgroup."""

from __future__ import annotations

from tilec.codegen.address import SHARED_BASE
from tilec.codegen.clusters import in_block
from tilec.codegen.matrix import WARP
from tilec.codegen.scalar import Scalars
from tilec.codegen.state import State
from tilec.ir.affine import affine
from tilec.ir.groups import WARPGROUP_THREADS, WARPGROUP_WARPS
from tilec.ir.tile import THREAD
from tilec.ir.warp import MBARRIER_BYTES, Arrive, Barrier, BarrierWait, CopiesArrive, ExpectBytes, WarpgroupSync
from tilec.ptx.module import Address, Guard, Imm, Reg, Symbol


def own_barrier(barrier: Barrier, state: State) -> Address:
    """Return the shared address of a barrier."""
    return place_of(barrier, state.scalars, state.barriers[barrier.name])


def place_of(barrier: Barrier, scalars: Scalars, first: int) -> Address:
    """Return the shared address of a barrier, given the offset of the buffer's first one."""
    base = scalars.register(SHARED_BASE)
    form = affine(barrier.index)
    constant = first + MBARRIER_BYTES * form.constant
    if not form.terms:
        return Address(base, constant)
    moving = scalars.register(form.symbolic())
    return Address(scalars.builder.into("b32", "mad.lo.u32", moving, Imm(MBARRIER_BYTES), base), constant)


def is_thread(state: State, number: int) -> Reg:
    """Emit the test whether this thread has this number in its role."""
    return state.builder.into("pred", "setp.eq.u32", state.scalars.register(THREAD), Imm(number))


def warpgroup(state: State) -> Reg:
    """Return the number of the thread's warpgroup in its role."""

    def compute() -> Reg:
        number = state.builder.into("b32", "shr.u32", state.scalars.register(WARP), Imm(2))
        first = 0 if state.program.explicit_roles else state.role.first_warp // WARPGROUP_WARPS
        return state.builder.into("b32", "sub.u32", number, Imm(first)) if first else number

    return state.scalars.once(("warpgroup", state.role.name), compute)


def emit_warpgroup_sync(op: WarpgroupSync, state: State) -> None:
    number = warpgroup(state)
    mine = state.scalars.once(
        ("meeting", op.first, number), lambda: state.builder.into("b32", "add.u32", number, Imm(op.first))
    )
    state.builder.emit("bar.sync", mine, Imm(WARPGROUP_THREADS))


def emit_barrier(op: Arrive | CopiesArrive | ExpectBytes | BarrierWait, state: State) -> None:
    builder = state.builder
    address = own_barrier(op.barrier, state)
    match op:
        case Arrive(by_warps=True):
            builder.emit("bar.warp.sync", Imm(-1))
            builder.emit("mbarrier.arrive.shared::cta.b64", Reg("_"), address, guard=state.lane_zero)
        case Arrive(condition=condition, block=block):
            guard = None if condition is None else state.scalars.register(condition)
            space = "shared::cta" if block is None else "shared::cluster"
            address = address if block is None else in_block(address, block, state)
            builder.emit(f"mbarrier.arrive.{space}.b64", Reg("_"), address, guard=guard)
        case CopiesArrive(condition=condition):
            guard = None if condition is None else state.scalars.register(condition)
            builder.emit("cp.async.mbarrier.arrive.noinc.shared::cta.b64", address, guard=guard)
        case ExpectBytes(bytes=announced, leader=leader, arrives=True):
            opcode = "mbarrier.arrive.expect_tx.shared::cta.b64"
            builder.emit(opcode, Reg("_"), address, Imm(announced), guard=is_thread(state, leader))
        case ExpectBytes(bytes=announced, leader=leader):
            opcode = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"
            builder.emit(opcode, address, Imm(announced), guard=is_thread(state, leader))
        case BarrierWait(parity=parity, unless=unless):
            awaited = state.scalars.register(parity)
            if unless is None:
                _wait(address, awaited, state)
                return
            past = builder.label("known")
            builder.emit("bra", Symbol(past), guard=state.scalars.register(unless))
            _wait(address, awaited, state)
            builder.place(past)


def _wait(address: Address, parity: Reg, state: State) -> None:
    """Emit the loop that waits for the phase of this parity. Before sm_90 it spins, for lack of try_wait."""
    builder = state.builder
    waits = "try_wait" if state.target.has("tma") else "test_wait"
    again = builder.label("wait")
    builder.place(again)
    done = builder.into("pred", f"mbarrier.{waits}.parity.shared::cta.b64", address, parity)
    builder.emit("bra", Symbol(again), guard=Guard(done, True))
