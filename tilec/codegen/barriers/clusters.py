"""Cooperation of a block with its cluster and with other grids: slices of multicast loads, releases, barriers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilec.codegen.address import SHARED_BASE
from tilec.codegen.builder import Builder
from tilec.codegen.state import LeaderBlock, MulticastShare, RingMate, State
from tilec.ir import warp
from tilec.ir.manifest import Attribute
from tilec.ir.multicast import count_multicast_blocks, multicast_ranks
from tilec.ir.tile import THREAD, Expr, Var
from tilec.ptx.module import Address, Guard, Imm, Operand, Reg, Symbol


def find_launch_attributes(operations: Sequence[warp.Operation]) -> tuple[Attribute, ...]:
    """Return the launch attributes that the operations need: cooperative for a grid sync, dependent for a grid wait."""
    needed: list[Attribute] = []
    if any(isinstance(op, warp.GridSync) for op in operations):
        needed.append("cooperative")
    if any(isinstance(op, warp.GridControl) and op.what == "wait" for op in operations):
        needed.append("dependent")
    return tuple(needed)


def emit_start_barrier(program: warp.Program, builder: Builder) -> None:
    """Emit the wait until barriers and tensor memory are set up: of the cluster, the block, or none if not needed.

    All threads of the cluster wait if its blocks signal or store to one another, for which they must have begun (CUDA
    programming guide, distributed shared memory).
    """
    sends = any(isinstance(op, warp.Elementwise) and op.block is not None for op in program.operations())
    if sends or program.signals_blocks or any(ring.crosses_blocks for ring in program.rings):
        emit_cluster_barrier(builder)
    elif program.tensor or program.barriers or any(ring.has_barriers for ring in program.rings):
        builder.emit("bar.sync", Imm(0))


def emit_cluster_barrier(builder: Builder) -> None:
    """Emit an arrival at, and wait for, the barrier of all threads of the cluster.

    At the end it keeps blocks alive that others still signal.
    """
    builder.emit("barrier.cluster.arrive.release.aligned")
    builder.emit("barrier.cluster.wait.acquire.aligned")


def prepare_role(role: warp.Role, state: State) -> None:
    """Emit, and set in `state`, what the role's operations need of the cluster: shares, mates, pair and head."""
    operations = list(warp.walk_operations(role.body))
    for axes in dict.fromkeys(op.shared for op in operations if isinstance(op, warp.TmaLoad) and op.shared):
        state.shares[axes] = _prepare_share(axes, state)
    released = {op.cursor.ring for op in operations if isinstance(op, warp.RingRelease) and not op.by_tensor_cores}
    for ring in state.program.rings:
        if ring.name in released and ring.shared and ring.shared not in state.mates:
            state.mates[ring.shared] = _prepare_mate(ring.shared, state)
    filled = {op.cursor.ring for op in operations if isinstance(op, warp.RingAcquire)}
    if any(r.paired and (r.name in released or (r.bytes and r.name in filled)) for r in state.program.rings):
        rank = _read_rank(state)  # those of a pair differ in the last bit (PTX ISA, tcgen05 "CTA Pair")
        state.pair = _locate_leader(rank, state.builder.create("b32", "and.b32", rank, Imm(-2)), state)
    if any(r.heard_by > 1 and r.name in released for r in state.program.rings):
        state.head = _locate_leader(_read_rank(state), Imm(0), state)


def _read_rank(state: State) -> Reg:
    """Emit the read of the block's rank in its cluster, and return its register."""
    return state.builder.create("b32", "mov.u32", Reg("%cluster_ctarank"))


def _get_cluster_digit(axis: str, state: State) -> Reg:
    """Return a register with the block's index in its cluster along an axis, read once."""
    return state.scalars.create_once(("cluster place", axis), "mov.u32", Reg(f"%cluster_ctaid.{axis}"))


def _combine_digits(digits: list[tuple[Reg, int]], state: State) -> Operand:
    """Emit the sum of digits times weights, and return it; 0 without digits."""
    total: Operand = Imm(0)
    for digit, weight in digits:
        total = state.builder.create("b32", "mad.lo.u32", digit, Imm(weight), total)
    return total


def _prepare_share(axes: str, state: State) -> MulticastShare:
    """Emit and return this block's slice number of a multicast load along these axes, and the mask of blocks that get
    it."""
    cluster, builder = state.program.cluster, state.builder
    mine = [
        (_get_cluster_digit(axis, state), count_multicast_blocks(cluster, axes[:place]))
        for place, axis in enumerate(axes)
    ]
    which = Var(f"%slice.{axes}")
    state.scalars.define_variable(which, _combine_digits(mine, state), (0, count_multicast_blocks(cluster, axes) - 1))
    mask = builder.create("b32", "mov.u32", _compute_mask(axes, state))
    return MulticastShare(which, builder.create("b16", "cvt.u16.u32", mask))


def _compute_mask(axes: str, state: State) -> Operand:
    """Emit and return the mask of this block and the cluster's blocks that differ from it along these axes only."""
    cluster = state.program.cluster
    first = sum(1 << mate for mate in multicast_ranks(cluster, axes))
    others = [
        (_get_cluster_digit(axis, state), math.prod(cluster[:place]))
        for place, axis in enumerate("xyz")
        if axis not in axes and cluster[place] > 1
    ]
    if not others:
        return Imm(first)
    return state.builder.create("b32", "shl.b32", Imm(first), _combine_digits(others, state))


def compute_mates_mask(shared: tuple[str, ...], state: State) -> Operand:
    """Emit and return the mask of this block and of those that differ from it along one of the groups of axes only."""
    all_of_them, *more = (_compute_mask(axes, state) for axes in shared)
    for mask in more:
        all_of_them = state.builder.create("b32", "or.b32", all_of_them, mask)
    return all_of_them


def _prepare_mate(shared: tuple[str, ...], state: State) -> RingMate:
    """Emit and return, for lane n of each warp, whether block n shares the ring, and that block's shared-memory
    address."""
    builder, all_of_them = state.builder, compute_mates_mask(shared, state)
    lane = builder.create("b32", "and.b32", state.scalars.get_register(THREAD), Imm(31))
    bit = builder.create("b32", "and.b32", builder.create("b32", "shr.u32", all_of_them, lane), Imm(1))
    exists = builder.create("pred", "setp.eq.u32", bit, Imm(1))
    base = builder.create("b32", "mov.u32", Imm(0))
    builder.emit("mapa.shared::cluster.u32", base, state.scalars.get_register(SHARED_BASE), lane, guard=exists)
    return RingMate(exists, base)


def _locate_leader(rank: Reg, first: Operand, state: State) -> LeaderBlock:
    """Emit and return the offset from this block's shared memory to block `first`'s, and whether this block is
    `first`."""
    builder, base = state.builder, state.scalars.get_register(SHARED_BASE)
    theirs = builder.create("b32", "mapa.shared::cluster.u32", base, first)
    away = builder.create("b32", "sub.u32", theirs, base)
    return LeaderBlock(away, builder.create("pred", "setp.eq.u32", rank, first))


def address_in_leader(barrier: Address, cursor: warp.Cursor, leader: LeaderBlock, state: State) -> Address:
    """Return the address of a version's barrier in the shared memory of the pair's or cluster's first block."""
    place, away = barrier.base, leader.away
    moves = state.addresses.positions[cursor.name].moves
    theirs = state.scalars.create_once(("first block's barrier", cursor.name, moves), "add.u32", place, away)
    return Address(theirs, barrier.offset)


def emit_peer_wait(state: State) -> None:
    """Emit a warp's wait, possible once only, for its counterpart in the pair's other block, by mbarriers.

    The cluster's barrier would not do: other roles have ended, or still wait for these blocks' rings.
    """
    builder, base, at = state.builder, state.scalars.get_register(SHARED_BASE), state.program.peer_barrier_at
    rank = builder.create("b32", "mov.u32", Reg("%cluster_ctarank"))
    theirs = builder.create("b32", "mapa.shared::cluster.u32", base, builder.create("b32", "xor.b32", rank, Imm(1)))
    lane = builder.create("b32", "and.b32", state.scalars.get_register(THREAD), Imm(31))
    first = builder.create("pred", "setp.eq.u32", lane, Imm(0))
    builder.emit("mbarrier.arrive.release.cluster.shared::cluster.b64", Reg("_"), Address(theirs, at), guard=first)
    again = builder.new_label("peer")
    builder.place_label(again)
    opcode = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64"
    done = builder.create("pred", opcode, Address(base, at), Imm(0))
    builder.emit("bra", Symbol(again), guard=Guard(done, True))
    builder.emit("bar.warp.sync", Imm(-1))


def emit_skip_second_block(end: str, builder: Builder) -> None:
    """Emit a branch by which the pair's second block goes to `end`: the first block's thread issues for both."""
    rank = builder.create("b32", "mov.u32", Reg("%cluster_ctarank"))
    bit = builder.create("b32", "and.b32", rank, Imm(1))
    builder.emit("bra", Symbol(end), guard=builder.create("pred", "setp.ne.u32", bit, Imm(0)))


def emit_release_to_mates(ring: warp.Ring, cursor: warp.Cursor, state: State) -> None:
    """Emit the release of a ring's version in each block that fills it: one lane per block arrives there."""
    builder, mate = state.builder, state.mates[ring.shared]
    position, base = state.addresses.positions[cursor.name], state.scalars.get_register(SHARED_BASE)
    away = state.scalars.create_hoisted(("mate", ring.shared), "sub.u32", mate.base, base)
    key = ("mate's barrier", cursor.name, position.moves, ring.shared)
    version = state.scalars.create_once(key, "add.u32", position.place, away)
    empty = Address(version, state.barriers[ring.name] + warp.MBARRIER_BYTES * ring.depth)
    # Not .release.cluster, which costs a fence of the whole GPU in every step. The reads are complete, and no writes of
    # these threads need to become visible. CUTLASS's ClusterBarrier::arrive does the same.
    builder.emit("mbarrier.arrive.shared::cluster.b64", Reg("_"), empty, guard=mate.exists)


def map_to_block(address: Address, block: Expr, state: State) -> Address:
    """Emit the address mapped to the same place in another block's shared memory, and return it."""
    number, base = state.scalars.get_register(block), address.base
    theirs = state.scalars.create_once(("in block", number, base), "mapa.shared::cluster.u32", base, number)
    return Address(theirs, address.offset)


def emit_cluster_arrive(op: warp.ClusterArrive, state: State) -> None:
    """Emit the arrival at the cluster's barrier, unaligned in a role of one thread."""
    # In a role of one thread the warp's other threads have ended.
    aligned = "" if state.role.single_thread else ".aligned"
    state.builder.emit(f"barrier.cluster.arrive.{'relaxed' if op.relaxed else 'release'}{aligned}")


def emit_cluster_wait(state: State) -> None:
    """Emit the wait at the cluster's barrier, unaligned in a role of one thread."""
    aligned = "" if state.role.single_thread else ".aligned"
    state.builder.emit(f"barrier.cluster.wait.acquire{aligned}")


HIGH_BIT = 1 << 31


def emit_grid_sync(op: warp.GridSync, state: State) -> None:
    """Emit a barrier of all blocks of the grid, by a counter in global memory; the role's TMA stores are awaited first.

    The role's first thread adds to the counter. The arrivals of all blocks add up to the counter's highest bit, so that
    each barrier flips this bit and leaves the others 0 for the next one. All threads of a block arrive and leave
    together.
    """
    builder = state.builder
    if any(isinstance(inner, warp.TmaStore) for inner in warp.walk_operations(state.role.body)):
        builder.emit("cp.async.bulk.wait_group", Imm(0), guard=state.first_lanes or state.leader)
    barrier = (Imm(state.barrier_id), Imm(state.role.threads))
    builder.emit("bar.sync", *barrier)
    passed, again = builder.new_label("met"), builder.new_label("meet")
    first_thread = Imm(32 * state.role.first_warp)
    other = builder.create("pred", "setp.ne.u32", state.scalars.get_register(THREAD), first_thread)
    builder.emit("bra", Symbol(passed), guard=other)
    mine = _compute_arrival(state)
    counter = Address(state.pointers[op.counter])
    # The fences order the accesses of the block: those to the counter need no order of their own, which costs as much.
    builder.emit("fence.acq_rel.gpu")
    before = builder.create("b32", "atom.global.relaxed.gpu.add.u32", counter, mine)
    builder.place_label(again)
    now = builder.create("b32", "ld.relaxed.gpu.global.u32", counter)
    flipped = builder.create("b32", "xor.b32", now, before)
    waits = builder.create("pred", "setp.ge.s32", flipped, Imm(0))
    builder.emit("bra", Symbol(again), guard=waits)
    builder.emit("fence.acq_rel.gpu")
    builder.place_label(passed)
    builder.emit("bar.sync", *barrier)


def _compute_arrival(state: State) -> Reg:
    """Emit the amount that this block adds to a grid barrier's counter, and return it.

    It is 1, and for the first block what the others lack to the highest bit.
    """
    builder = state.builder
    index: Operand = Imm(0)
    blocks: Operand = Imm(1)
    for axis in "xyz":
        index = builder.create("b32", "or.b32", builder.create("b32", "mov.u32", Reg(f"%ctaid.{axis}")), index)
        blocks = builder.create("b32", "mul.lo.u32", builder.create("b32", "mov.u32", Reg(f"%nctaid.{axis}")), blocks)
    rest = builder.create("b32", "sub.u32", Imm(HIGH_BIT + 1), blocks)
    return builder.create("b32", "selp.b32", rest, Imm(1), builder.create("pred", "setp.eq.u32", index, Imm(0)))
