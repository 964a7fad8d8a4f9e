"""Warp IR to PTX: the body of one entry, its set-up, and the code of each role."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tilec.codegen import cluster_launch, clusters
from tilec.codegen.address import SHARED_BASE, Addresses, Position
from tilec.codegen.barriers import emit_barrier, emit_warpgroup_sync, place_of, warpgroup
from tilec.codegen.builder import Builder, Class, register_class
from tilec.codegen.elementwise import emit_elementwise
from tilec.codegen.load_matrix import emit_load_matrix
from tilec.codegen.local import clear_local, read_local
from tilec.codegen.matrix import WARP, emit_store_matrix
from tilec.codegen.memory import load_vector
from tilec.codegen.mma import emit_mma
from tilec.codegen.printing import local_variables
from tilec.codegen.reduce import emit_reduce
from tilec.codegen.rings import RingProtocol
from tilec.codegen.scalar import Scalars
from tilec.codegen.state import State
from tilec.codegen.tcgen05 import (
    AFTER_SYNC,
    BEFORE_SYNC,
    emit_address,
    emit_allocation,
    emit_commit,
    emit_deallocation,
    emit_tensor_arrive,
    emit_tensor_copy,
    emit_tensor_mma,
    emit_tensor_move,
    emit_tensor_wait,
)
from tilec.codegen.transfer import emit_cp_async, emit_tma_load, emit_tma_store
from tilec.codegen.wgmma import emit_wgmma
from tilec.codegen.words import accumulated_in_pairs, held_in_words, per_word, unpacked
from tilec.ir import tile, warp
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.types import INT32
from tilec.ir.warp import Operation, Program, Role
from tilec.ir.warp_effects import own_effects
from tilec.passes.lower.touches import touches
from tilec.ptx.module import Address, Guard, Imm, Item, Operand, Pair, Reg, Symbol
from tilec.ptx.names import parameter_name
from tilec.support.diagnostics import InternalError
from tilec.target.table import Target

SMEM = "tilec_smem"
PING_PONG_THREADS = 256  # the warpgroup that waits, and the one that lets it go on

_BY_TENSOR_CORES = warp.Wgmma | warp.TensorMma | warp.TensorCopy


class EntryCode:
    """The code of one entry, whose parts `build` emits in order."""

    def __init__(self, program: Program, target: Target, imported: tuple[str, ...]) -> None:
        self.program, self.target = program, target
        self.builder = Builder(imported)
        self.scalars = Scalars(self.builder)
        self.scalars.converts_fp8 = target.has("fp8")
        self.pointers: dict[str, Reg] = {}
        self.addresses = Addresses(self.builder, self.scalars, program, self.pointers)
        self.scalars.read_uniform = self.read_uniform
        operations = (op for role in program.roles for op in warp.walk(role.body))
        self.scalars.may_call = not any(isinstance(op, warp.Wgmma) for op in operations)
        self.register_count = 0  # of a thread, where code stands
        self.exits: list[str] = []  # where a break leads, the innermost loop last
        self.cursors: tuple[warp.Cursor, ...] = ()  # of the operation whose scalars are computed
        self.fragments: dict[str, tuple[Reg, ...]] = {}
        self.barriers: dict[str, int] = {}
        offset = program.barriers_at
        for ring in program.rings:
            if ring.has_barriers:
                self.barriers[ring.name] = offset
                offset += 2 * warp.MBARRIER_BYTES * ring.depth
        for made in program.barriers:
            self.barriers[made.name] = offset
            offset += warp.MBARRIER_BYTES * len(made.counts)
        self.scalars.barrier = lambda load: place_of(
            warp.Barrier(load.buffer.name, load.indices[0]), self.scalars, self.barriers[load.buffer.name]
        )
        self.written = frozenset(_written(program))
        self.partly_written = frozenset(_partly_written(program))
        self.tensor: Reg | None = None  # where the block's tensor memory begins
        self.rings = RingProtocol(program, self.builder, self.scalars, self.addresses)

    def build(self) -> tuple[Item, ...]:
        self.load_parameters()
        thread = self.builder.into("b32", "mov.u32", Reg("%tid.x"))
        self.scalars.define(tile.THREAD, thread, (0, self.program.threads - 1))
        shifted = self.builder.into("b32", "shr.u32", thread, Imm(5))
        # The shuffle tells the assembler that the value is uniform.
        uniform = self.builder.into("b32", "shfl.sync.idx.b32", shifted, Imm(0), Imm(31), Imm(-1))
        self.scalars.define(WARP, uniform, (0, self.program.threads // 32 - 1))
        if self.program.smem_bytes:
            self.scalars.define(SHARED_BASE, self.builder.into("b32", "mov.u32", Symbol(SMEM)), (0, 1 << 18))
        for var, axis, extent in zip(self.program.block_vars, "xyz", self.program.grid, strict=False):
            most = extent - 1 if isinstance(extent, int) else (1 << 31) - 2
            self.scalars.define(var, self.builder.into("b32", "mov.u32", Reg(f"%ctaid.{axis}")), (0, most))
        if self.program.tensor:
            emit_allocation(self.program, self.builder, self.scalars)
        self.initialise_barriers(thread)
        if self.program.tensor:
            self.tensor = emit_address(self.program, self.builder, self.scalars)
        self.roles()
        self.builder.emit("ret")
        return (*local_variables(self.builder), *self.builder.declarations(), *self.builder.items)

    def load_parameters(self) -> None:
        tensors = [p for p in self.program.params if isinstance(p, tile.Buffer)]
        extents = [e for p in tensors for e in (*p.extents, *(p.strides or ())) if not isinstance(e, int)]
        sizes = {part for e in extents for part in tile.walk_expr(e)}
        for param in self.program.params:
            if isinstance(param, tile.Buffer):
                generic = self.builder.into("b64", "ld.param.u64", Address(Symbol(parameter_name(param.name))))
                self.pointers[param.name] = self.builder.into("b64", "cvta.to.global.u64", generic)
                continue
            cls = register_class(param.dtype)
            if cls == "pred":
                raise InternalError("a bool parameter")
            small = {8: "8", 16: "16"}.get(param.dtype.bits) if not param.dtype.is_float else None
            kind = f"{'s' if param.dtype.kind == 'int' else 'u'}{small}" if small else cls
            # An extent is not negative, and indices are assumed not to overflow.
            range_ = (0, (1 << 31) - 1) if param in sizes else (-(2.0**31), 2.0**31)
            place = Address(Symbol(parameter_name(param.name)))
            self.scalars.define(param, self.builder.into(cls, f"ld.param.{kind}", place), range_)
        for tensor in tensors:
            self.addresses.measure(tensor)
        for tensor_map in self.program.maps:
            address = self.builder.into("b64", "mov.u64", Symbol(parameter_name(tensor_map.name)))
            self.pointers[tensor_map.name] = self.builder.into("b64", "cvta.param.u64", address)

    def initialise_barriers(self, thread: Reg) -> None:
        """Emit the initialisation of the barriers by one thread, which also prefetches the tensor maps."""
        if not self.barriers and not self.program.maps:
            clusters.emit_start(self.program, self.builder)
            return
        done = self.builder.label("initialised")
        other = self.builder.into("pred", "setp.ne.u32", thread, Imm(0))
        self.builder.emit("bra", Symbol(done), guard=other)
        for tensor_map in self.program.maps:
            self.builder.emit("prefetch.tensormap", Address(self.pointers[tensor_map.name]))
        base = self.scalars.register(SHARED_BASE)
        for ring in self.program.rings:
            for version in range(ring.depth if ring.has_barriers else 0):
                full = self.barriers[ring.name] + 8 * version
                self.builder.emit("mbarrier.init.shared::cta.b64", Address(base, full), Imm(ring.fills))
                self.builder.emit(
                    "mbarrier.init.shared::cta.b64", Address(base, full + 8 * ring.depth), Imm(ring.arrivals)
                )
        if self.program.tells_peer:
            self.builder.emit("mbarrier.init.shared::cta.b64", Address(base, self.program.peer_barrier_at), Imm(1))
        for made in self.program.barriers:
            for number, count in enumerate(made.counts):
                place = Address(base, self.barriers[made.name] + warp.MBARRIER_BYTES * number)
                self.builder.emit("mbarrier.init.shared::cta.b64", place, Imm(count))
        if self.barriers and self.target.has("tma"):
            self.builder.emit("fence.mbarrier_init.release.cluster")
        self.builder.place(done)
        clusters.emit_start(self.program, self.builder)

    def roles(self) -> None:
        """Emit all roles. The first follows at once, the others are branched to. Branches to warpgroups come first,
        since a warpgroup changes its register count as a whole; roles that share a warpgroup then branch by warps."""
        end = self.builder.label("end")
        if self.program.common is not None:
            self.set_registers(self.program.common)
            with self.scalars.scope():
                self.role(self.program.common, 0, end)
        roles = self.program.roles
        labels = {r.name: self.builder.label(r.name) for r in roles[1:]}
        self.branch_to([r for r in roles[1:] if not _shares_warpgroup(r)], labels)
        for number, role in enumerate(roles):
            if role.name in labels:
                self.builder.place(labels[role.name])
            if not _shares_warpgroup(role):
                self.set_registers(role)
                self.branch_to(list(itertools.takewhile(_shares_warpgroup, roles[number + 1 :])), labels)
            with self.scalars.scope():
                self.role(role, self.program.named_barrier(number), end)
            if role is not roles[-1]:
                self.builder.emit("bra", Symbol(end))
        if len(roles) > 1 or roles[0].single_thread:
            self.builder.place(end)
        if self.program.signals_blocks:
            clusters.emit_cluster_barrier(self.builder)
        if self.program.explicit_roles and self.program.tensor:  # any role may read it last
            emit_deallocation(self.state, Imm(0), Imm(self.program.threads), self.scalars.register(WARP))

    def branch_to(self, roles: list[Role], labels: Mapping[str, str]) -> None:
        for role in reversed(roles):
            warp_index = self.scalars.register(WARP)
            mine = self.builder.into("pred", "setp.ge.u32", warp_index, Imm(role.first_warp))
            self.builder.emit("bra", Symbol(labels[role.name]), guard=mine)

    def set_registers(self, role: Role) -> None:
        self.register_count = self.target.limit("registers_per_sm") // self.program.threads // 8 * 8
        if role.registers is not None:
            self.registers(role.registers)

    def role(self, role: Role, barrier_id: int, end: str) -> None:
        builder = self.builder
        if role.single_thread:
            first = builder.into("pred", "setp.ne.u32", self.scalars.register(WARP), Imm(role.first_warp))
            builder.emit("bra", Symbol(end), guard=first)
            if any(isinstance(op, warp.TensorMma) and op.paired for op in warp.walk(role.body)):
                clusters.emit_only_first_of_pair(end, builder)
            elected = builder.new("pred")
            builder.emit("elect.sync", Pair(Reg("_"), elected), Imm(-1))
            builder.emit("bra", Symbol(end), guard=Guard(elected, True))
        before = self.scalars.ranges[tile.THREAD], self.scalars.ranges[WARP]
        if self.program.explicit_roles and role.first_warp:
            thread, index = self.scalars.register(tile.THREAD), self.scalars.register(WARP)
            inside = builder.into("b32", "sub.u32", thread, Imm(32 * role.first_warp))
            self.scalars.define(tile.THREAD, inside, (0, role.threads - 1))
            self.scalars.define(WARP, builder.into("b32", "sub.u32", index, Imm(role.first_warp)), (0, role.warps - 1))
        else:
            self.scalars.ranges[tile.THREAD] = (32 * role.first_warp, 32 * role.first_warp + role.threads - 1)
        layouts = {b.name: layout for b, layout in self.program.fragments}
        used = {touch.buffer for op in warp.walk(role.body) for touch in touches(op)[0]}
        mine = [(b, f) for b, f in self.program.fragments if not role.single_thread or b.name in used]
        in_words, in_pairs = held_in_words(role, layouts, self.program.tensor), accumulated_in_pairs(role)
        state = State(
            builder,
            self.scalars,
            self.addresses,
            self.program,
            self.target,
            role,
            self.pointers,
            layouts,
            {b.name: builder.many(register_class(b.dtype), f.register_count) for b, f in mine if b not in in_words},
            {b.name: builder.many("b32", f.register_count // per_word(b)) for b, f in mine if b in in_words},
            {b.name: builder.many("b32", f.register_count // per_word(b)) for b, f in mine if b in in_pairs},
            self.written,
            self.partly_written,
            self.scalars.register(WARP),
            barrier_id=barrier_id,
            barriers=self.barriers,
            tensor=self.tensor,
        )
        self.fragments = state.fragments
        self.state = state
        by_threads = (op for op in warp.walk(role.body) if not isinstance(op, _BY_TENSOR_CORES))
        state.touched = frozenset(touch.buffer for op in by_threads for touch in touches(op)[0])
        for buffer, _ in self.program.fragments:
            if buffer.scope == "local" and buffer.name in state.fragments:
                clear_local(buffer, state)
        kinds = {type(op) for op in warp.walk(role.body)}
        thread = self.scalars.register(tile.THREAD)
        for_all = (isinstance(op, warp.TmaLoad) and op.barrier is None for op in warp.walk(role.body))
        if (warp.TmaStore in kinds or any(for_all)) and not role.single_thread:
            state.leader = builder.into("pred", "setp.eq.u32", thread, Imm(int(self.scalars.ranges[tile.THREAD][0])))
        if any(isinstance(op, warp.TmaStore) and op.parts > 1 for op in warp.walk(role.body)):
            place = builder.into("b32", "and.b32", thread, Imm(WARPGROUP_THREADS - 1))
            state.first_lanes = builder.into("pred", "setp.eq.u32", place, Imm(0))
            warpgroup(state)  # once for the whole role
        by_warps = any(
            self.rings.ring(op.cursor).by == "warp" if isinstance(op, _ARRIVING) else op.by_warps
            for op in warp.walk(role.body)
            if isinstance(op, (*_ARRIVING, warp.Arrive))
        )
        if by_warps and not role.single_thread:
            lane = builder.into("b32", "and.b32", thread, Imm(31))
            state.lane_zero = builder.into("pred", "setp.eq.u32", lane, Imm(0))
        if warp.Wgmma in kinds:
            state.true = builder.into("pred", "setp.eq.u32", Imm(1), Imm(1))
        clusters.prepare(role, state)
        self.scalars.begin()
        self.set_cursors(role)
        if role.ping_pong_barrier is not None:
            self.ping_pong(role, role.ping_pong_barrier, state)
        else:
            self.body(role.body, state)
        if self.tensor is not None and role is self.program.roles[0] and not self.program.explicit_roles:
            emit_deallocation(state, Imm(barrier_id), Imm(role.threads), state.warp)
        self.scalars.ranges[tile.THREAD], self.scalars.ranges[WARP] = before

    def set_cursors(self, role: Role) -> None:
        """Emit the initial positions of the cursors: the first version. Waits for full barriers begin with parity 0,
        waits for empty barriers with 1, for which a fresh barrier counts as released."""
        operations = list(warp.walk(role.body))
        waits = {op.cursor.name: 0 for op in operations if isinstance(op, warp.RingWait)}
        waits |= {op.cursor.name: 1 for op in operations if isinstance(op, warp.RingAcquire | warp.RingDrain)}
        for cursor in dict.fromkeys(op.cursor for op in operations if isinstance(op, warp.Advance)):
            first, _ = self.addresses.first_place(self.rings.ring(cursor))
            place = self.builder.into("b32", "mov.u32", Imm(0) if first is None else first)
            parity = None
            if cursor.name in waits:
                parity = self.builder.into("b32", "mov.u32", Imm(waits[cursor.name]))
            self.addresses.positions[cursor.name] = Position(place, parity)

    def registers(self, count: int) -> None:
        """Emit the change of a thread's registers to `count`."""
        if count != self.register_count:
            direction = "inc" if count > self.register_count else "dec"
            self.builder.emit(f"setmaxnreg.{direction}.sync.aligned.u32", Imm(count))
        self.register_count = count

    def ping_pong(self, role: Role, barrier: int, state: State) -> None:
        """Emit a role with ping-pong warpgroups. The first one begins, since the last one arrives at its barrier before
        anything else. At the end the first one waits once more, so that no arrival is left pending."""
        builder, groups = self.builder, role.warps // 4
        group = builder.into("b32", "shr.u32", self.scalars.register(WARP), Imm(2))
        if role.first_warp:
            group = builder.into("b32", "sub.u32", group, Imm(role.first_warp // 4))
        is_last = builder.into("pred", "setp.eq.u32", group, Imm(groups - 1))
        mine = builder.into("b32", "add.u32", group, Imm(barrier))
        following = builder.into("b32", "add.u32", mine, Imm(1))
        state.ping_pong_barriers = (mine, builder.into("b32", "selp.b32", Imm(barrier), following, is_last))
        self.only_if(is_last, "bar.arrive", barrier)
        self.body(role.body, state)
        self.only_if(builder.into("pred", "setp.eq.u32", group, Imm(0)), "bar.sync", barrier)

    def only_if(self, condition: Reg, barrier: str, number: int) -> None:
        past = self.builder.label("past")
        self.builder.emit("bra", Symbol(past), guard=Guard(condition, True))
        self.builder.emit(barrier, Imm(number), Imm(PING_PONG_THREADS))
        self.builder.place(past)

    # ---- operations ----

    def body(self, operations: tuple[Operation, ...], state: State) -> None:
        for op in operations:
            with unpacked(op, state):
                self.operation(op, state)

    def operation(self, op: Operation, state: State) -> None:
        builder = self.builder
        builder.at(op.span)
        self.cursors = op.cursors
        match op:
            case warp.Loop():
                self.loop(op, state)
            case warp.Branch():
                self.branch(op, state)
            case warp.Pipeline(body=body):
                self.body(body, state)
            case warp.Forever(body=body):
                self.forever(body, state)
            case warp.Trap():
                builder.emit("trap")
            case warp.Break():
                builder.emit("bra", Symbol(self.exits[-1]))
            case warp.Let(var=var, value=value):
                operand = self.scalars.value(value)
                self.scalars.define(var, operand, self.scalars.interval(value))
            case warp.Elementwise():
                emit_elementwise(op, state)
            case warp.CpAsync():
                emit_cp_async(op, state)
            case warp.TmaLoad():
                emit_tma_load(op, state)
            case warp.TmaStore():
                emit_tma_store(op, state)
            case warp.StoreMatrix():
                emit_store_matrix(op, state)
            case warp.LoadMatrix():
                emit_load_matrix(op, state)
            case warp.Mma():
                emit_mma(op, state)
            case warp.Wgmma():
                emit_wgmma(op, state)
            case warp.TensorMma():
                emit_tensor_mma(op, state)
            case warp.TensorCopy():
                emit_tensor_copy(op, state)
            case warp.TensorLoad() | warp.TensorStore():
                emit_tensor_move(op, state)
            case warp.Reduce():
                emit_reduce(op, state)
            case warp.BarSync(id=number, threads=threads):
                builder.emit("bar.sync", Imm(number), Imm(threads))
            case warp.WarpgroupSync():
                emit_warpgroup_sync(op, state)
            case warp.Await():
                pass  # its waits have been inserted before it
            case warp.CpAsyncCommit():
                builder.emit("cp.async.commit_group")
            case warp.CpAsyncWait(pending=pending):
                builder.emit("cp.async.wait_group", Imm(pending))
            case warp.WgmmaWait(pending=pending):
                builder.emit("wgmma.wait_group.sync.aligned", Imm(pending))
            case warp.BulkWait(pending=pending):
                builder.emit("cp.async.bulk.wait_group.read", Imm(pending), guard=state.first_lanes or state.leader)
            case warp.ProxyFence():
                builder.emit("fence.proxy.async.shared::cta")
            case warp.RingAcquire(cursor=cursor):
                self.rings.acquire(cursor, state)
            case warp.RingWait(cursor=cursor):
                self.rings.wait(cursor, state, empty=False)
            case warp.RingFill(cursor=cursor, by_tensor_cores=True):
                emit_commit(self.rings.ring(cursor), cursor, state, empty=False)
            case warp.RingFill(cursor=cursor):
                self.rings.arrive(cursor, state, empty=False)
            case warp.RingRelease(cursor=cursor, by_tensor_cores=True):
                emit_commit(self.rings.ring(cursor), cursor, state, empty=True)
            case warp.RingRelease(cursor=cursor):
                self.rings.release(cursor, state)
            case warp.RingDrain(cursor=cursor):
                self.rings.drain(cursor, state)
            case warp.ClusterArrive():
                clusters.emit_cluster_arrive(op, state)
            case warp.ClusterWait():
                clusters.emit_cluster_wait(state)
            case warp.GridSync():
                clusters.emit_grid_sync(op, state)
            case warp.GridControl(what=what):
                builder.emit(f"griddepcontrol.{what}")
            case warp.PingPongWait():
                builder.emit("bar.sync", state.ping_pong_barriers[0], Imm(PING_PONG_THREADS))
            case warp.PingPongPass():
                builder.emit("bar.arrive", state.ping_pong_barriers[1], Imm(PING_PONG_THREADS))
            case warp.Advance(cursor=cursor, behind=behind):
                self.rings.advance(cursor, behind)
            case warp.Arrive() | warp.CopiesArrive() | warp.ExpectBytes() | warp.BarrierWait():
                emit_barrier(op, state)
            case warp.TryCancel():
                cluster_launch.emit_try_cancel(op, state)
            case warp.TensorWait():
                emit_tensor_wait(op, state)
            case warp.TensorFence(what=what):
                builder.emit(BEFORE_SYNC if what == "before" else AFTER_SYNC)
            case warp.TensorArrive():
                emit_tensor_arrive(op, state)
            case warp.NamedBarrier(id=number, threads=threads, waits=waits):
                builder.emit("bar.sync" if waits else "bar.arrive", Imm(number), Imm(threads))
            case warp.SetRegisters(count=count):
                self.registers(count)
            case _:
                raise InternalError(f"no code for {type(op).__name__}")

    def loop(self, op: warp.Loop, state: State) -> None:
        builder = self.builder
        start, stop = self.scalars.value(op.start), self.scalars.value(op.stop)
        counter = builder.into("b32", "mov.u32", start)
        if op.following is not None:
            self.dynamic_iterations(op, op.following, counter, state)
            return
        runs_once = self.scalars.interval(op.start)[1] < self.scalars.interval(op.stop)[0]
        for phase in op.phases:
            until = self.scalars.value(tile.Binary("min", phase.until, op.stop, INT32))
            self.iterations(replace(op, body=phase.body), counter, until, False, state)
        self.iterations(op, counter, stop, runs_once and not op.phases, state)

    def iterations(self, op: warp.Loop, counter: Reg, stop: Operand, runs_once: bool, state: State) -> None:
        """Emit the iterations until the counter reaches `stop`."""
        builder = self.builder
        low, high = self.scalars.interval(op.start)[0], self.scalars.interval(op.stop)[1] - 1
        again, done = builder.label("loop"), builder.label("done")
        self.exits.append(done)
        if not runs_once:
            builder.emit("bra", Symbol(done), guard=self.compare("ge", counter, stop))
        builder.place(again)
        self.addresses.forget_positions()
        with self.scalars.scope():
            self.scalars.define(op.var, counter, (low, max(low, high)))
            guard = warp.final_guard(op)
            self.body(op.body if guard is None else op.body[:-1], state)
            if (
                guard is not None
            ):  # the assembler spends fewer instructions where an iteration is not skipped but the last
                self.branch(guard, state, done)
        builder.emit("add.s32", counter, counter, Imm(op.step))
        builder.emit("bra", Symbol(again), guard=self.compare("lt", counter, stop))
        builder.place(self.exits.pop())
        self.addresses.forget_positions()

    def dynamic_iterations(self, op: warp.Loop, following: warp.Following, counter: Reg, state: State) -> None:
        """Emit a loop whose iterations each find out whether there is another one."""
        builder, again = self.builder, self.builder.label("loop")
        builder.place(again)
        self.addresses.forget_positions()
        with self.scalars.scope():
            self.scalars.define(op.var, counter, (0, self.scalars.interval(op.stop)[1] - 1))
            self.body(op.body, state)
            builder.emit("mov.u32", counter, self.scalars.register(following.value))
            builder.emit("bra", Symbol(again), guard=self.scalars.register(following.is_there))
        self.addresses.forget_positions()

    def forever(self, body: tuple[Operation, ...], state: State) -> None:
        again = self.builder.label("again")
        self.exits.append(self.builder.label("done"))
        self.builder.place(again)
        self.addresses.forget_positions()
        with self.scalars.scope():
            self.body(body, state)
        self.builder.emit("bra", Symbol(again))
        self.builder.place(self.exits.pop())
        self.addresses.forget_positions()

    def read_uniform(self, load: tile.Load) -> Operand:
        """Load an element that every thread reads for itself, such as an index or a bound in a tensor or a tile."""
        if load.buffer.scope == "shared":
            load = replace(load, indices=self.scalars.settle_indices(load.indices))
            address = self.addresses.shared_element(load.buffer, load.indices, self.cursors)
            return load_vector(self.builder, load.buffer, address, 1, self.within(load), False)[0]
        if load.buffer.scope == "local":
            held = read_local(load.buffer, load.indices, self.state)
            return self.builder.into(*_move(load.buffer), held)
        if load.buffer.scope == "fragment" and load.buffer.shape == (1,):
            (held,) = self.fragments[load.buffer.name]
            # A register of its own, for the variable may change.
            return self.builder.into(*_move(load.buffer), held)
        if load.buffer.scope != "global":
            raise InternalError(f"{load.buffer.name} is read outside T.Parallel")
        load = replace(load, indices=self.scalars.settle_indices(load.indices))
        guard = self.within(load)
        address = self.addresses.global_element(load.buffer, load.indices)
        return load_vector(self.builder, load.buffer, address, 1, guard, load.buffer.name not in self.written)[0]

    def within(self, load: tile.Load) -> Reg | None:
        """Return a predicate that holds if the element exists; None: always."""
        dimensions = zip(load.indices, load.buffer.extents, strict=True)
        return self.scalars.all_of(c for index, extent in dimensions for c in self.scalars.bounds(index, extent))

    def compare(self, op: str, a: Reg, b: Operand) -> Reg:
        return self.builder.into("pred", f"setp.{op}.s32", a, b)

    def branch(self, op: warp.Branch, state: State, leave: str = "") -> None:
        """Emit a branch. If the condition fails the code goes on at `leave`, if given, instead of after the branch."""
        builder = self.builder
        builder.at(op.span)
        self.cursors = op.cursors
        other, end = leave or builder.label("else"), builder.label("endif")
        condition = self.scalars.register(op.condition)
        builder.emit("bra", Symbol(other), guard=Guard(condition, True))
        for body, follow in ((op.then, True), (op.orelse, False)):
            self.addresses.forget_positions()
            with self.scalars.scope():
                self.body(body, state)
            if follow and op.orelse:
                builder.emit("bra", Symbol(end))
            if follow and not leave:
                builder.place(other)
        if op.orelse:
            builder.place(end)
        self.addresses.forget_positions()


_ARRIVING = (warp.RingRelease, warp.RingFill)


def _shares_warpgroup(role: Role) -> bool:
    """Return whether an earlier role has the first warps of the role's warpgroup."""
    return role.registers is not None and role.first_warp % 4 != 0


def _move(buffer: tile.Buffer) -> tuple[Class, str]:
    cls = register_class(buffer.dtype)
    return cls, f"mov.{cls}"


def _written(program: Program) -> set[str]:
    """Return the tensors that the kernel stores to, or that an overlapping previous kernel may store to. Their loads
    must not take the read-only path."""
    if any(isinstance(op, warp.GridControl) and op.what == "wait" for op in program.operations()):
        return {p.name for p in program.params if isinstance(p, tile.Buffer)}
    names: set[str] = set()
    for role in program.roles:
        for op in warp.walk(role.body):
            if isinstance(op, warp.Elementwise):
                names |= {s.buffer.name for s in tile.walk(op.nest.body) if isinstance(s, tile.Store)}
            elif isinstance(op, warp.TmaStore):
                names.add(op.map.tensor.name)
    return names


def _partly_written(program: Program) -> set[str]:
    """Return the shared tiles of which elements may never be written: only nests of fewer elements, or under conditions
    of each element, store them."""
    partly, whole = set[str](), set[str]()
    for op in program.operations():
        if not isinstance(op, warp.Elementwise):
            whole |= own_effects(op)[1]
            continue
        for store in tile.walk(op.nest.body):
            if isinstance(store, tile.Store) and store.buffer.scope == "shared":
                is_whole = store in op.nest.body and prod(op.layout.shape) >= prod(store.buffer.shape)
                (whole if is_whole else partly).add(store.buffer.name)
    return partly - whole
