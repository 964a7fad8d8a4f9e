"""The mbarriers that a kernel itself arrives at and waits for, and the named barrier of a warpgroup."""

from __future__ import annotations

from tilec.codegen.address import SHARED_BASE
from tilec.codegen.barriers.clusters import map_to_block
from tilec.codegen.scalar.scalar import Scalars
from tilec.codegen.state import State
from tilec.codegen.tensor_cores.matrix import WARP
from tilec.ir.affine import affine_form
from tilec.ir.groups import WARPGROUP_THREADS, WARPGROUP_WARPS
from tilec.ir.tile import THREAD
from tilec.ir.warp import MBARRIER_BYTES, Arrive, Barrier, BarrierWait, CopiesArrive, ExpectBytes, WarpgroupSync
from tilec.ptx.module import Address, Guard, Imm, Reg, Symbol


def address_own_barrier(barrier: Barrier, state: State) -> Address:
    """Return the shared address of one of the kernel's own mbarriers, by its name and index."""
    return address_barrier(barrier, state.scalars, state.barriers[barrier.name])


def address_barrier(barrier: Barrier, scalars: Scalars, first: int) -> Address:
    """Emit the shared address of a barrier buffer's element, given the offset of the first one, and return it."""
    base = scalars.get_register(SHARED_BASE)
    form = affine_form(barrier.index)
    constant = first + MBARRIER_BYTES * form.constant
    if not form.terms:
        return Address(base, constant)
    moving = scalars.get_register(form.without_constant())
    return Address(scalars.builder.create("b32", "mad.lo.u32", moving, Imm(MBARRIER_BYTES), base), constant)


def emit_thread_test(state: State, number: int) -> Reg:
    """Emit a predicate that holds in the role's thread of this number, and return it."""
    return state.builder.create("pred", "setp.eq.u32", state.scalars.get_register(THREAD), Imm(number))


def get_warpgroup_index(state: State) -> Reg:
    """Return a register with the number of the thread's warpgroup in its role, computed once."""

    def compute_index() -> Reg:
        """Emit the warp's index / 4, less the role's first warpgroup unless roles are explicit."""
        number = state.builder.create("b32", "shr.u32", state.scalars.get_register(WARP), Imm(2))
        first = 0 if state.program.explicit_roles else state.role.first_warp // WARPGROUP_WARPS
        return state.builder.create("b32", "sub.u32", number, Imm(first)) if first else number

    return state.scalars.compute_once(("warpgroup", state.role.name), compute_index)


def emit_warpgroup_sync(op: WarpgroupSync, state: State) -> None:
    """Emit the wait of each warpgroup's threads for one another, at a named barrier of their own."""
    number = get_warpgroup_index(state)
    mine = state.scalars.create_once(("meeting", op.first, number), "add.u32", number, Imm(op.first))
    state.builder.emit("bar.sync", mine, Imm(WARPGROUP_THREADS))


def emit_barrier(op: Arrive | CopiesArrive | ExpectBytes | BarrierWait, state: State) -> None:
    """Emit an arrival, an announcement of bytes or a wait at an mbarrier of the kernel's own."""
    builder = state.builder
    address = address_own_barrier(op.barrier, state)
    match op:
        case Arrive(by_warps=True):
            builder.emit("bar.warp.sync", Imm(-1))
            builder.emit("mbarrier.arrive.shared::cta.b64", Reg("_"), address, guard=state.lane_zero)
        case Arrive(condition=condition, block=block):
            guard = None if condition is None else state.scalars.get_register(condition)
            space = "shared::cta" if block is None else "shared::cluster"
            address = address if block is None else map_to_block(address, block, state)
            order = "release.cluster." if block is not None and state.program.hands_tiles_to_peer else ""
            builder.emit(f"mbarrier.arrive.{order}{space}.b64", Reg("_"), address, guard=guard)
        case CopiesArrive(condition=condition):
            guard = None if condition is None else state.scalars.get_register(condition)
            builder.emit("cp.async.mbarrier.arrive.noinc.shared::cta.b64", address, guard=guard)
        case ExpectBytes(bytes=announced, leader=leader, arrives=True):
            opcode = "mbarrier.arrive.expect_tx.shared::cta.b64"
            builder.emit(opcode, Reg("_"), address, Imm(announced), guard=emit_thread_test(state, leader))
        case ExpectBytes(bytes=announced, leader=leader):
            opcode = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"
            builder.emit(opcode, address, Imm(announced), guard=emit_thread_test(state, leader))
        case BarrierWait(parity=parity, unless=unless):
            awaited = state.scalars.get_register(parity)
            if unless is None:
                emit_phase_wait(address, awaited, state)
                return
            past = builder.new_label("known")
            builder.emit("bra", Symbol(past), guard=state.scalars.get_register(unless))
            emit_phase_wait(address, awaited, state)
            builder.place_label(past)


def emit_phase_wait(address: Address, parity: Reg, state: State) -> None:
    """Emit a loop that polls an mbarrier until its phase of this parity is over; before sm_90 by test_wait."""
    builder = state.builder
    waits = "try_wait" if state.target.has("tma") else "test_wait"
    order = "acquire.cluster." if state.program.hands_tiles_to_peer else ""
    again = builder.new_label("wait")
    builder.place_label(again)
    done = builder.create("pred", f"mbarrier.{waits}.parity.{order}shared::cta.b64", address, parity)
    builder.emit("bra", Symbol(again), guard=Guard(done, True))
