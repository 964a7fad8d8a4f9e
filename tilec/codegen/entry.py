"""Warp IR to PTX: the body of one entry, its set-up, and the code of each role."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tilec.codegen.address import SHARED_BASE, Addresses, CursorPosition, find_table_entries
from tilec.codegen.barriers import clusters
from tilec.codegen.barriers.barriers import address_barrier, emit_barrier, emit_warpgroup_sync, get_warpgroup_index
from tilec.codegen.barriers.rings import RingProtocol
from tilec.codegen.barriers.transfer import emit_cp_async, emit_tma_load, emit_tma_store, emit_try_cancel
from tilec.codegen.builder import Builder, RegisterClass, get_register_class
from tilec.codegen.elementwise.elementwise import emit_elementwise
from tilec.codegen.elementwise.local import clear_local, read_local
from tilec.codegen.elementwise.reduce import emit_reduce
from tilec.codegen.elementwise.scan import emit_scan
from tilec.codegen.elementwise.unit_factors import find_unit_fragments
from tilec.codegen.memory import load_element
from tilec.codegen.printing import make_local_variables
from tilec.codegen.scalar.scalar import Scalars
from tilec.codegen.state import State
from tilec.codegen.tensor_cores import tcgen05, words
from tilec.codegen.tensor_cores.matrix import WARP, emit_load_matrix, emit_store_matrix
from tilec.codegen.tensor_cores.mma import emit_mma
from tilec.codegen.tensor_cores.transpose import emit_transpose_matrix
from tilec.codegen.tensor_cores.wgmma import emit_wgmma
from tilec.ir import tile, warp
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.types import INT32
from tilec.ir.warp_verify.effects import effects_without_scalars
from tilec.passes.lower.waits.touches import find_touches
from tilec.ptx.module import Address, Guard, Imm, Item, Operand, Pair, Reg, Symbol
from tilec.ptx.names import parameter_name
from tilec.support.diagnostics import InternalError
from tilec.target.table import Target

SMEM = "tilec_smem"
PING_PONG_THREADS = 256  # the warpgroup that waits, and the one that lets it go on
_BY_TENSOR_CORES = warp.Wgmma | warp.TensorMma | warp.TensorCopy


class EntryCode:
    """The code of one entry, whose parts `build` emits in order."""

    def __init__(self, program: warp.Program, target: Target, imported: tuple[str, ...]) -> None:
        self.program, self.target = program, target
        self.builder = Builder(imported)
        self.scalars = Scalars(self.builder)
        self.scalars.converts_fp8 = target.has("fp8")
        self.pointers: dict[str, Reg] = {}
        self.addresses = Addresses(self.builder, self.scalars, program, self.pointers)
        self.scalars.read_uniform = self.read_uniform
        self.scalars.may_call = not any(isinstance(op, warp.Wgmma) for op in program.operations())
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
        self.scalars.barrier = lambda load: address_barrier(
            warp.Barrier(load.buffer.name, load.indices[0]), self.scalars, self.barriers[load.buffer.name]
        )
        self.written = frozenset(_find_written_tensors(program))
        self.partly_written = frozenset(_partly_written(program))
        self.tensor: Reg | None = None  # where the block's tensor memory begins
        self.rings = RingProtocol(program, self.builder, self.scalars, self.addresses)

    def build(self) -> tuple[Item, ...]:
        """Emit the whole entry: parameters, barriers, roles; return its declarations and instructions."""
        self.load_parameters()
        thread = self.builder.create("b32", "mov.u32", Reg("%tid.x"))
        self.scalars.define_variable(tile.THREAD, thread, (0, self.program.threads - 1))
        shifted = self.builder.create("b32", "shr.u32", thread, Imm(5))
        # The shuffle tells the assembler that the value is uniform.
        uniform = self.builder.create("b32", "shfl.sync.idx.b32", shifted, Imm(0), Imm(31), Imm(-1))
        self.scalars.define_variable(WARP, uniform, (0, self.program.threads // 32 - 1))
        if self.program.smem_bytes:
            self.scalars.define_variable(SHARED_BASE, self.builder.create("b32", "mov.u32", Symbol(SMEM)), (0, 1 << 18))
        for var, axis, extent in zip(self.program.block_vars, "xyz", self.program.grid, strict=False):
            most = extent - 1 if isinstance(extent, int) else (1 << 31) - 2
            self.scalars.define_variable(var, self.builder.create("b32", "mov.u32", Reg(f"%ctaid.{axis}")), (0, most))
        if self.program.tensor:
            tcgen05.emit_allocation(self.program, self.builder, self.scalars)
        self.initialise_barriers(thread)
        clusters.emit_start_barrier(self.program, self.builder)
        if self.program.tensor:
            self.tensor = tcgen05.emit_address_load(self.program, self.builder, self.scalars)
        self.emit_roles()
        self.builder.emit("ret")
        return (*make_local_variables(self.builder), *self.builder.list_declarations(), *self.builder.items)

    def load_parameters(self) -> None:
        """Emit and record the loads of parameters, strides and addresses of tensor maps; InternalError for a bool."""
        tensors = [p for p in self.program.params if isinstance(p, tile.Buffer)]
        extents = [e for p in tensors for e in (*p.extents, *(p.strides or ())) if not isinstance(e, int)]
        sizes = {part for e in extents for part in tile.walk_expr(e)}
        for param in self.program.params:
            if isinstance(param, tile.Buffer):
                generic = self.builder.create("b64", "ld.param.u64", Address(Symbol(parameter_name(param.name))))
                self.pointers[param.name] = self.builder.create("b64", "cvta.to.global.u64", generic)
                continue
            cls = get_register_class(param.dtype)
            if cls == "pred":
                raise InternalError("a bool parameter")
            small = {8: "8", 16: "16"}.get(param.dtype.bits) if not param.dtype.is_float else None
            kind = f"{'s' if param.dtype.kind == 'int' else 'u'}{small}" if small else cls
            # An extent is not negative, and indices are assumed not to overflow.
            range_ = (0, (1 << 31) - 1) if param in sizes else (-(2.0**31), 2.0**31)
            place = Address(Symbol(parameter_name(param.name)))
            self.scalars.define_variable(param, self.builder.create(cls, f"ld.param.{kind}", place), range_)
        for tensor in tensors:
            self.addresses.get_strides(tensor)
        for tensor_map in self.program.maps:
            address = self.builder.create("b64", "mov.u64", Symbol(parameter_name(tensor_map.name)))
            self.pointers[tensor_map.name] = self.builder.create("b64", "cvta.param.u64", address)

    def initialise_barriers(self, thread: Reg) -> None:
        """Emit code by which thread 0 prefetches tensor maps and initialises all mbarriers; nothing without either."""
        if not self.barriers and not self.program.maps:
            return
        done = self.builder.new_label("initialised")
        other = self.builder.create("pred", "setp.ne.u32", thread, Imm(0))
        self.builder.emit("bra", Symbol(done), guard=other)
        for tensor_map in self.program.maps:
            self.builder.emit("prefetch.tensormap", Address(self.pointers[tensor_map.name]))
        base = self.scalars.get_register(SHARED_BASE)

        def initialise_barrier(offset: int, count: int) -> None:
            self.builder.emit("mbarrier.init.shared::cta.b64", Address(base, offset), Imm(count))

        for ring in self.program.rings:
            for version in range(ring.depth if ring.has_barriers else 0):
                full = self.barriers[ring.name] + 8 * version
                initialise_barrier(full, ring.fills)
                initialise_barrier(full + 8 * ring.depth, ring.arrivals)
        if self.program.tells_peer:
            initialise_barrier(self.program.peer_barrier_at, 1)
        for made in self.program.barriers:
            for number, count in enumerate(made.counts):
                initialise_barrier(self.barriers[made.name] + warp.MBARRIER_BYTES * number, count)
        if self.barriers and self.target.has("tma"):
            self.builder.emit("fence.mbarrier_init.release.cluster")
        self.builder.place_label(done)

    def emit_roles(self) -> None:
        """Emit the sections of the program one after the other, and the end of the block."""
        for roles in self.program.sections:
            self.emit_section(roles)
        if self.program.signals_blocks:
            clusters.emit_cluster_barrier(self.builder)
        if self.program.explicit_roles and self.program.tensor:  # any role may read it last
            tcgen05.emit_deallocation(self.state, Imm(0), Imm(self.program.threads), self.scalars.get_register(WARP))

    def emit_section(self, roles: tuple[warp.Role, ...]) -> None:
        """Emit the branches to a section's roles by warp, and each role's code.

        The first role follows at once, the others are branched to. Branches to warpgroups come first, since a warpgroup
        changes its register count as a whole; roles that share a warpgroup then branch by warps.
        """
        end = self.builder.new_label("end")
        section = self.program.isolate_section(roles)
        labels = {r.name: self.builder.new_label(r.name) for r in roles[1:]}
        self.emit_role_branches([r for r in roles[1:] if not _shares_warpgroup(r)], labels)
        for number, role in enumerate(roles):
            if role.name in labels:
                self.builder.place_label(labels[role.name])
            if not _shares_warpgroup(role):
                self.set_registers(role)
                self.emit_role_branches(list(itertools.takewhile(_shares_warpgroup, roles[number + 1 :])), labels)
            with self.scalars.open_scope():
                self.emit_role(role, section.named_barrier(number), end)
            if role is not roles[-1]:
                self.builder.emit("bra", Symbol(end))
        if len(roles) > 1 or roles[0].single_thread:
            self.builder.place_label(end)

    def emit_role_branches(self, roles: list[warp.Role], labels: Mapping[str, str]) -> None:
        """Emit the branches to these roles for warps from their first one on, the last role first."""
        for role in reversed(roles):
            warp_index = self.scalars.get_register(WARP)
            mine = self.builder.create("pred", "setp.ge.u32", warp_index, Imm(role.first_warp))
            self.builder.emit("bra", Symbol(labels[role.name]), guard=mine)

    def set_registers(self, role: warp.Role) -> None:
        """Emit the change of a thread's registers from the launch's even share to the role's count, if it has one."""
        self.register_count = self.target.limit("registers_per_sm") // self.program.threads // 8 * 8
        if role.registers is not None:
            self.change_registers(role.registers)

    def emit_role(self, role: warp.Role, barrier_id: int, end: str) -> None:
        """Emit one role: skip threads that do not take part, allocate its registers and cursors, then emit its body."""
        builder = self.builder
        if role.single_thread:
            first = builder.create("pred", "setp.ne.u32", self.scalars.get_register(WARP), Imm(role.first_warp))
            builder.emit("bra", Symbol(end), guard=first)
            if any(isinstance(op, warp.TensorMma) and op.paired for op in warp.walk_operations(role.body)):
                clusters.emit_skip_second_block(end, builder)
            elected = builder.new_register("pred")
            builder.emit("elect.sync", Pair(Reg("_"), elected), Imm(-1))
            builder.emit("bra", Symbol(end), guard=Guard(elected, True))
        before = self.scalars.ranges[tile.THREAD], self.scalars.ranges[WARP]
        if self.program.explicit_roles and role.first_warp:
            thread, index = self.scalars.get_register(tile.THREAD), self.scalars.get_register(WARP)
            inside = builder.create("b32", "sub.u32", thread, Imm(32 * role.first_warp))
            self.scalars.define_variable(tile.THREAD, inside, (0, role.threads - 1))
            index = builder.create("b32", "sub.u32", index, Imm(role.first_warp))
            self.scalars.define_variable(WARP, index, (0, role.warps - 1))
        else:
            self.scalars.ranges[tile.THREAD] = (32 * role.first_warp, 32 * role.first_warp + role.threads - 1)
        layouts = {b.name: layout for b, layout in self.program.fragments}
        used = {touch.buffer for op in warp.walk_operations(role.body) for touch in find_touches(op)[0]}
        mine = [(b, f) for b, f in self.program.fragments if not role.single_thread or b.name in used]
        in_words = words.find_word_fragments(role, layouts, self.program.tensor)
        in_pairs = words.find_paired_accumulators(role)

        def hold_words(chosen: frozenset[tile.Buffer]) -> dict[str, tuple[Reg, ...]]:
            """Return new registers for the words of the chosen fragments."""
            held = ((b, f.register_count // words.count_per_word(b)) for b, f in mine if b in chosen)
            return {b.name: builder.new_registers("b32", count) for b, count in held}

        single = ((b, f.register_count) for b, f in mine if b not in in_words)
        fragments = {b.name: builder.new_registers(get_register_class(b.dtype), count) for b, count in single}
        state = State(
            builder, self.scalars, self.addresses, self.program, self.target, role, self.pointers, layouts, fragments,
            hold_words(in_words), hold_words(in_pairs), self.written, self.partly_written,
            self.scalars.get_register(WARP), barrier_id=barrier_id, barriers=self.barriers, tensor=self.tensor,
        )  # fmt: skip
        self.fragments = state.fragments
        self.state = state
        by_threads = (op for op in warp.walk_operations(role.body) if not isinstance(op, _BY_TENSOR_CORES))
        state.unit_fragments = find_unit_fragments(role)
        state.touched = frozenset(touch.buffer for op in by_threads for touch in find_touches(op)[0])
        for buffer, _ in self.program.fragments:
            if buffer.scope == "local" and buffer.name in state.fragments:
                clear_local(buffer, state)
        kinds = {type(op) for op in warp.walk_operations(role.body)}
        thread = self.scalars.get_register(tile.THREAD)
        for_all = (isinstance(op, warp.TmaLoad) and op.barrier is None for op in warp.walk_operations(role.body))
        if (warp.TmaStore in kinds or any(for_all)) and not role.single_thread:
            state.leader = builder.create("pred", "setp.eq.u32", thread, Imm(int(self.scalars.ranges[tile.THREAD][0])))
        if any(isinstance(op, warp.TmaStore) and op.parts > 1 for op in warp.walk_operations(role.body)):
            place = builder.create("b32", "and.b32", thread, Imm(WARPGROUP_THREADS - 1))
            state.first_lanes = builder.create("pred", "setp.eq.u32", place, Imm(0))
            get_warpgroup_index(state)  # once for the whole role
        by_warps = any(
            self.rings.find_ring(op.cursor).by == "warp" if isinstance(op, _RING_ARRIVALS) else op.by_warps
            for op in warp.walk_operations(role.body)
            if isinstance(op, (*_RING_ARRIVALS, warp.Arrive))
        )
        if by_warps and not role.single_thread:
            lane = builder.create("b32", "and.b32", thread, Imm(31))
            state.lane_zero = builder.create("pred", "setp.eq.u32", lane, Imm(0))
        if warp.Wgmma in kinds:
            state.true = builder.create("pred", "setp.eq.u32", Imm(1), Imm(1))
        clusters.prepare_role(role, state)
        self.scalars.mark_hoist_place()
        self.set_cursors(role)
        if role.ping_pong_barrier is not None:
            self.emit_ping_pong(role, role.ping_pong_barrier, state)
        else:
            self.emit_body(role.body, state)
        if self.tensor is not None and role is self.program.roles[0] and not self.program.explicit_roles:
            tcgen05.emit_deallocation(state, Imm(barrier_id), Imm(role.threads), state.warp)
        self.scalars.ranges[tile.THREAD], self.scalars.ranges[WARP] = before

    def set_cursors(self, role: warp.Role) -> None:
        """Emit each advancing cursor's start: slot 0, and parity 0 to await full slots, 1 for empty ones, or none.

        For parity 1 a fresh barrier counts as released.
        """
        operations = list(warp.walk_operations(role.body))
        waits = {op.cursor.name: 0 for op in operations if isinstance(op, warp.RingWait)}
        waits |= {op.cursor.name: 1 for op in operations if isinstance(op, warp.RingAcquire | warp.RingDrain)}
        for cursor in dict.fromkeys(op.cursor for op in operations if isinstance(op, warp.Advance)):
            first, _ = self.addresses.get_first_place(self.rings.find_ring(cursor))
            place = self.builder.create("b32", "mov.u32", Imm(0) if first is None else first)
            parity = None
            if cursor.name in waits:
                parity = self.builder.create("b32", "mov.u32", Imm(waits[cursor.name]))
            self.addresses.positions[cursor.name] = CursorPosition(place, parity)

    def change_registers(self, count: int) -> None:
        """Emit setmaxnreg to `count` registers a thread, unless that is the current number."""
        if count != self.register_count:
            direction = "inc" if count > self.register_count else "dec"
            self.builder.emit(f"setmaxnreg.{direction}.sync.aligned.u32", Imm(count))
        self.register_count = count

    def emit_ping_pong(self, role: warp.Role, barrier: int, state: State) -> None:
        """Emit a role's body between its first arrival and last wait, and set `state.ping_pong_barriers` for its turns.

        The warpgroups take turns by operations in the body. The first one begins, since the last one arrives at its
        barrier before anything else. At the end the first one waits once more, so that no arrival is left pending.
        """
        builder, groups = self.builder, role.warps // 4
        group = builder.create("b32", "shr.u32", self.scalars.get_register(WARP), Imm(2))
        if role.first_warp:
            group = builder.create("b32", "sub.u32", group, Imm(role.first_warp // 4))
        is_last = builder.create("pred", "setp.eq.u32", group, Imm(groups - 1))
        mine = builder.create("b32", "add.u32", group, Imm(barrier))
        following = builder.create("b32", "add.u32", mine, Imm(1))
        state.ping_pong_barriers = (mine, builder.create("b32", "selp.b32", Imm(barrier), following, is_last))
        self.emit_barrier_if(is_last, "bar.arrive", barrier)
        self.emit_body(role.body, state)
        self.emit_barrier_if(builder.create("pred", "setp.eq.u32", group, Imm(0)), "bar.sync", barrier)

    def emit_barrier_if(self, condition: Reg, barrier: str, number: int) -> None:
        """Emit `barrier` (bar.sync or bar.arrive) `number` of two warpgroups for threads where the condition holds."""
        past = self.builder.new_label("past")
        self.builder.emit("bra", Symbol(past), guard=Guard(condition, True))
        self.builder.emit(barrier, Imm(number), Imm(PING_PONG_THREADS))
        self.builder.place_label(past)

    def emit_body(self, operations: tuple[warp.Operation, ...], state: State) -> None:
        """Emit operations in order, with float16 accumulators unpacked around those that need single elements."""
        for op in operations:
            with words.unpack_accumulators(op, state):
                self.emit_operation(op, state)

    def emit_operation(self, op: warp.Operation, state: State) -> None:
        """Emit one warp operation, with its source line and nested operations; an internal error if it has no code."""
        builder = self.builder
        builder.set_location(op.span)
        self.cursors = op.cursors
        if (emit := _EMITTERS.get(type(op))) is not None:
            emit(op, state)
            return
        match op:
            case warp.Loop():
                self.emit_loop(op, state)
            case warp.Branch():
                self.emit_branch(op, state)
            case warp.Pipeline(body=body):
                self.emit_body(body, state)
            case warp.Forever(body=body):
                self.emit_forever(body, state)
            case warp.Trap():
                builder.emit("trap")
            case warp.Break():
                builder.emit("bra", Symbol(self.exits[-1]))
            case warp.Let(var=var, value=value):
                operand = self.scalars.get_operand(value)
                self.scalars.define_variable(var, operand, self.scalars.find_interval(value))
            case warp.BarSync(id=number, threads=threads):
                builder.emit("bar.sync", Imm(number), Imm(threads))
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
                tcgen05.emit_commit(self.rings.find_ring(cursor), cursor, state, empty=False)
            case warp.RingFill(cursor=cursor):
                self.rings.arrive(cursor, state, empty=False)
            case warp.RingRelease(cursor=cursor, by_tensor_cores=True):
                tcgen05.emit_commit(self.rings.find_ring(cursor), cursor, state, empty=True)
            case warp.RingRelease(cursor=cursor):
                self.rings.release(cursor, state)
            case warp.RingDrain(cursor=cursor):
                self.rings.drain(cursor, state)
            case warp.ClusterWait():
                clusters.emit_cluster_wait(state)
            case warp.GridControl(what=what):
                builder.emit(f"griddepcontrol.{what}")
            case warp.PingPongWait():
                builder.emit("bar.sync", state.ping_pong_barriers[0], Imm(PING_PONG_THREADS))
            case warp.PingPongPass():
                builder.emit("bar.arrive", state.ping_pong_barriers[1], Imm(PING_PONG_THREADS))
            case warp.Advance(cursor=cursor, behind=behind):
                self.rings.advance(cursor, behind)
            case warp.TensorFence(what=what):
                builder.emit(tcgen05.BEFORE_SYNC if what == "before" else tcgen05.AFTER_SYNC)
            case warp.NamedBarrier(id=number, threads=threads, waits=waits):
                builder.emit("bar.sync" if waits else "bar.arrive", Imm(number), Imm(threads))
            case warp.SetRegisters(count=count):
                self.change_registers(count)
            case _:
                raise InternalError(f"no code for {type(op).__name__}")

    def emit_loop(self, op: warp.Loop, state: State) -> None:
        """Emit a loop: its phases' iterations, then the rest; or iterations that compute the next one."""
        builder = self.builder
        start, stop = self.scalars.get_operand(op.start), self.scalars.get_operand(op.stop)
        counter = builder.create("b32", "mov.u32", start)
        if op.following is not None:
            self.emit_dynamic_iterations(op, op.following, counter, state)
            return
        runs_once = self.scalars.find_interval(op.start)[1] < self.scalars.find_interval(op.stop)[0]
        for phase in op.phases:
            until = self.scalars.get_operand(tile.Binary("min", phase.until, op.stop, INT32))
            self.emit_iterations(replace(op, body=phase.body), counter, until, False, state)
        self.emit_iterations(op, counter, stop, runs_once and not op.phases, state)

    def load_table_entries(self, body: tuple[warp.Operation, ...]) -> None:
        """Emit, before a loop, the loads of the addresses of tables that its iterations share. Where the loop itself
        waits for the grid before, they stay in it.
        """
        if not any(isinstance(p, tile.Buffer) and p.table_rank for p in self.program.params):
            return
        if any(isinstance(op, warp.GridControl) for op in warp.walk_operations(body)):
            return
        for table, indices in find_table_entries(body):
            parts = [part for index in indices for part in tile.walk_expr(index)]
            variables = (part for part in parts if isinstance(part, tile.Var))
            if not any(isinstance(part, tile.Load) for part in parts) and all(map(self.scalars.is_known, variables)):
                self.addresses.load_entry(table, indices)

    def emit_iterations(self, op: warp.Loop, counter: Reg, stop: Operand, runs_once: bool, state: State) -> None:
        """Emit iterations until register `counter` reaches `stop`, tested before the first too unless `runs_once`."""
        builder = self.builder
        low, high = self.scalars.find_interval(op.start)[0], self.scalars.find_interval(op.stop)[1] - 1
        self.load_table_entries(op.body)
        again, done = builder.new_label("loop"), builder.new_label("done")
        self.exits.append(done)
        if not runs_once:
            builder.emit("bra", Symbol(done), guard=builder.create("pred", "setp.ge.s32", counter, stop))
        builder.place_label(again)
        self.addresses.forget_positions()
        with self.scalars.open_scope():
            self.scalars.define_variable(op.var, counter, (low, max(low, high)))
            guard = warp.final_guard(op)
            self.emit_body(op.body if guard is None else op.body[:-1], state)
            # The assembler spends fewer instructions where an iteration is not skipped but the last.
            if guard is not None:
                self.emit_branch(guard, state, done)
        builder.emit("add.s32", counter, counter, Imm(op.step))
        builder.emit("bra", Symbol(again), guard=builder.create("pred", "setp.lt.s32", counter, stop))
        builder.place_label(self.exits.pop())
        self.addresses.forget_positions()

    def emit_dynamic_iterations(self, op: warp.Loop, following: warp.NextIteration, counter: Reg, state: State) -> None:
        """Emit a loop in which each iteration computes the next counter and whether there is one."""
        builder, again = self.builder, self.builder.new_label("loop")
        self.load_table_entries(op.body)
        builder.place_label(again)
        self.addresses.forget_positions()
        with self.scalars.open_scope():
            self.scalars.define_variable(op.var, counter, (0, self.scalars.find_interval(op.stop)[1] - 1))
            self.emit_body(op.body, state)
            builder.emit("mov.u32", counter, self.scalars.get_register(following.value))
            builder.emit("bra", Symbol(again), guard=self.scalars.get_register(following.is_there))
        self.addresses.forget_positions()

    def emit_forever(self, body: tuple[warp.Operation, ...], state: State) -> None:
        """Emit a loop without a condition, which only a break leaves."""
        self.load_table_entries(body)
        again = self.builder.new_label("again")
        self.exits.append(self.builder.new_label("done"))
        self.builder.place_label(again)
        self.addresses.forget_positions()
        with self.scalars.open_scope():
            self.emit_body(body, state)
        self.builder.emit("bra", Symbol(again))
        self.builder.place_label(self.exits.pop())
        self.addresses.forget_positions()

    def read_uniform(self, load: tile.Load) -> Operand:
        """Emit the load of an element that every thread reads by itself, as an index or a bound, and return its value.

        InternalError for fragments of more than one element. An element outside its tensor or tile reads as zero.
        """
        if load.buffer.scope == "shared":
            load = replace(load, indices=self.scalars.settle_indices(load.indices))
            address = self.addresses.address_shared_element(load.buffer, load.indices, self.cursors)
            return load_element(self.builder, load.buffer, address, self.test_within(load))
        if load.buffer.scope == "local":
            held = read_local(load.buffer, load.indices, self.state)
            return self.builder.create(*_select_move(load.buffer), held)
        if load.buffer.scope == "fragment" and load.buffer.shape == (1,):
            (held,) = self.fragments[load.buffer.name]
            # A register of its own, for the variable may change.
            return self.builder.create(*_select_move(load.buffer), held)
        if load.buffer.scope != "global":
            raise InternalError(f"{load.buffer.name} is read outside T.Parallel")
        load = replace(load, indices=self.scalars.settle_indices(load.indices))
        guard = self.test_within(load)
        address = self.addresses.address_global_element(load.buffer, load.indices)
        return load_element(self.builder, load.buffer, address, guard, self.written)

    def test_within(self, load: tile.Load) -> Reg | None:
        """Return a predicate that holds if the indices are inside the buffer; None if they surely are."""
        dimensions = zip(load.indices, load.buffer.extents, strict=True)
        return self.scalars.test_all(c for index, extent in dimensions for c in self.scalars.list_bounds(index, extent))

    def emit_branch(self, op: warp.Branch, state: State, leave: str = "") -> None:
        """Emit both bodies of a branch; if the condition fails, code goes on at `leave`, if given, or the else body."""
        builder = self.builder
        builder.set_location(op.span)
        self.cursors = op.cursors
        other, end = leave or builder.new_label("else"), builder.new_label("endif")
        condition = self.scalars.get_register(op.condition)
        builder.emit("bra", Symbol(other), guard=Guard(condition, True))
        for body, follow in ((op.then, True), (op.orelse, False)):
            self.addresses.forget_positions()
            with self.scalars.open_scope():
                self.emit_body(body, state)
            if follow and op.orelse:
                builder.emit("bra", Symbol(end))
            if follow and not leave:
                builder.place_label(other)
        if op.orelse:
            builder.place_label(end)
        self.addresses.forget_positions()


_RING_ARRIVALS = (warp.RingRelease, warp.RingFill)
_EMITTERS: dict[type[warp.Operation], Callable[[Any, State], None]] = {
    warp.Elementwise: emit_elementwise, warp.CpAsync: emit_cp_async, warp.TmaLoad: emit_tma_load,
    warp.TmaStore: emit_tma_store, warp.StoreMatrix: emit_store_matrix, warp.LoadMatrix: emit_load_matrix,
    warp.TransposeMatrix: emit_transpose_matrix,
    warp.Mma: emit_mma, warp.Wgmma: emit_wgmma, warp.Reduce: emit_reduce, warp.Scan: emit_scan,
    warp.WarpgroupSync: emit_warpgroup_sync,
    warp.TensorMma: tcgen05.emit_tensor_mma, warp.TensorCopy: tcgen05.emit_tensor_copy,
    warp.TensorLoad: tcgen05.emit_tensor_move, warp.TensorStore: tcgen05.emit_tensor_move,
    warp.TensorWait: tcgen05.emit_tensor_wait, warp.TensorArrive: tcgen05.emit_tensor_arrive,
    warp.Arrive: emit_barrier, warp.CopiesArrive: emit_barrier, warp.ExpectBytes: emit_barrier,
    warp.BarrierWait: emit_barrier, warp.TryCancel: emit_try_cancel,
    warp.ClusterArrive: clusters.emit_cluster_arrive, warp.GridSync: clusters.emit_grid_sync,
}  # fmt: skip
"""The function that emits an operation, of those that need nothing but the role's state."""


def _shares_warpgroup(role: warp.Role) -> bool:
    """Return whether a role with its own register count begins within a warpgroup, behind another role's warps."""
    return role.registers is not None and role.first_warp % 4 != 0


def _select_move(buffer: tile.Buffer) -> tuple[RegisterClass, str]:
    """Return the register class and the mov instruction for the buffer's elements."""
    cls = get_register_class(buffer.dtype)
    return cls, f"mov.{cls}"


def _find_written_tensors(program: warp.Program) -> set[str]:
    """Return the names of buffers that this kernel, or one before it that overlaps it, may store to."""
    if any(isinstance(op, warp.GridControl) and op.what == "wait" for op in program.operations()):
        return {p.name for p in program.params if isinstance(p, tile.Buffer)}
    names: set[str] = set()
    for op in program.operations():
        if isinstance(op, warp.Elementwise):
            names |= {s.buffer.name for s in tile.walk_statements(op.nest.body) if isinstance(s, tile.Store)}
        elif isinstance(op, warp.TmaStore):
            names.add(op.map.tensor.name)
    return names


def _partly_written(program: warp.Program) -> set[str]:
    """Return the names of shared tiles that may have unwritten elements: stores are too few or under conditions."""
    partly, whole = set[str](), set[str]()
    for op in program.operations():
        if not isinstance(op, warp.Elementwise):
            whole |= effects_without_scalars(op)[1]
            continue
        for store in tile.walk_statements(op.nest.body):
            if isinstance(store, tile.Store) and store.buffer.scope == "shared":
                is_whole = store in op.nest.body and prod(op.layout.shape) >= prod(store.buffer.shape)
                (whole if is_whole else partly).add(store.buffer.name)
    return partly - whole
