"""The protocol of rings: versions are acquired, filled, awaited and released, and cursors advance through them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilec.codegen.address import Addresses
from tilec.codegen.barriers import clusters
from tilec.codegen.barriers.barriers import emit_phase_wait
from tilec.codegen.barriers.transfer import address_ring_barrier
from tilec.codegen.builder import Builder
from tilec.codegen.scalar.scalar import Scalars
from tilec.codegen.state import State
from tilec.ir import warp
from tilec.ptx.module import Guard, Imm, Operand, Reg, Symbol


class RingProtocol:
    """Emits the protocol of a program's rings; `advance` moves the positions that `addresses` holds in registers."""

    def __init__(self, program: warp.Program, builder: Builder, scalars: Scalars, addresses: Addresses) -> None:
        self.program, self.builder, self.scalars, self.addresses = program, builder, scalars, addresses
        self.in_tensor = frozenset(tile.buffer.name for tile in program.tensor)

    def acquire(self, cursor: warp.Cursor, state: State) -> None:
        """Emit the wait for the cursor's version to be empty, and for TMA the announcement of its bytes by the leader.

        Only the thread that issues the TMA loads of a ring waits for it. A pair's first block announces the bytes of
        both.
        """
        builder, ring = self.builder, self.find_ring(cursor)
        if not ring.bytes:
            self.wait(cursor, state, empty=True)
            return
        past = builder.new_label("acquired")
        if state.leader is not None:
            builder.emit("bra", Symbol(past), guard=Guard(state.leader, True))
        with self.skip_uncounted_blocks(ring, state):
            self.wait(cursor, state, empty=True)
        full = address_ring_barrier(state, cursor.name, cursor.ring, empty=False)
        first = state.pair.is_first if ring.paired and state.pair is not None else None
        builder.emit("mbarrier.arrive.expect_tx.shared::cta.b64", Reg("_"), full, Imm(ring.bytes), guard=first)
        if state.leader is not None:
            builder.place_label(past)

    def drain(self, cursor: warp.Cursor, state: State) -> None:
        """Emit waits until every version of the cursor's ring is empty, advancing the cursor once around."""
        with self.skip_uncounted_blocks(self.find_ring(cursor), state):
            for _ in range(self.find_ring(cursor).depth):
                self.wait(cursor, state, empty=True)
                self.advance(cursor)

    @contextmanager
    def skip_uncounted_blocks(self, ring: warp.Ring, state: State) -> Iterator[None]:
        """Let the code emitted inside run in the cluster's first block only, if only it hears of releases; else in all.

        The others learn of empty versions by the multicast answers (PTX ISA, clusterlaunchcontrol.try_cancel,
        multicast).
        """
        if ring.heard_by < 2 or state.head is None:
            yield
            return
        past = self.builder.new_label("others")
        self.builder.emit("bra", Symbol(past), guard=Guard(state.head.is_first, True))
        self.addresses.forget_positions()
        yield
        self.builder.place_label(past)
        self.addresses.forget_positions()

    def wait(self, cursor: warp.Cursor, state: State, *, empty: bool) -> None:
        """Emit a loop that waits until the cursor's version is empty, if `empty`, else full, by the cursor's parity."""
        parity = self.addresses.positions[cursor.name].parity
        assert parity is not None
        emit_phase_wait(address_ring_barrier(state, cursor.name, cursor.ring, empty=empty), parity, state)

    def find_ring(self, cursor: warp.Cursor) -> warp.Ring:
        """Return the program's ring that the cursor moves through."""
        return next(r for r in self.program.rings if r.name == cursor.ring)

    def release(self, cursor: warp.Cursor, state: State) -> None:
        """Emit the release of the cursor's version to its producers, in this block or in several."""
        ring = self.find_ring(cursor)
        if not ring.shared:
            self.arrive(cursor, state, empty=True)
            return
        self.gather(ring, state)
        clusters.emit_release_to_mates(ring, cursor, state)

    def arrive(self, cursor: warp.Cursor, state: State, *, empty: bool) -> None:
        """Emit an arrival at the version's empty or full barrier, in the first block of a pair or cluster if it counts.

        Each warp or each thread arrives, as the ring says. A warp arrives once its threads are done.
        """
        ring = self.find_ring(cursor)
        if ring.by == "warp":
            self.gather(ring, state)
        address = address_ring_barrier(state, cursor.name, cursor.ring, empty=empty)
        elected = state.lane_zero if ring.by == "warp" else None
        counts = state.pair if ring.paired else state.head if ring.heard_by > 1 else None
        if counts is not None:
            address = clusters.address_in_leader(address, cursor, counts, state)
        space = "shared::cluster" if counts is not None else "shared::cta"
        self.builder.emit(f"mbarrier.arrive.{space}.b64", Reg("_"), address, guard=elected)

    def gather(self, ring: warp.Ring, state: State) -> None:
        """Emit a warp synchronisation after use of a version; none for one thread or tiles that only wgmma reads.

        Waiting for wgmma is for the whole warp already.
        """
        if state.role.single_thread:
            return
        if not ring.buffers or ring.name in self.in_tensor or not state.touched.isdisjoint(ring.buffers):
            self.builder.emit("bar.warp.sync", Imm(-1))

    def advance(self, cursor: warp.Cursor, behind: warp.Cursor | None = None) -> None:
        """Emit the step of a cursor to the next version, from the last to the first with the other parity.

        Addresses computed from the cursor become invalid. If the cursor has no parity, and `behind` is given, which is
        already at the next version, the position of `behind` is copied.
        """
        builder = self.builder
        position, ring = self.addresses.positions[cursor.name], self.find_ring(cursor)
        place, parity = position.place, position.parity
        position.moves += 1
        first: Operand
        end: Operand
        if ring.depth == 1:
            wrapped = None
        elif behind is not None and parity is None:
            builder.emit("mov.u32", place, self.addresses.positions[behind.name].place)
            return
        else:
            start, step = self.addresses.get_first_place(ring)
            first, end, size = Imm(0), Imm(ring.depth), warp.MBARRIER_BYTES * ring.depth
            if start is not None:
                first, end = start, self.scalars.create_hoisted(("end", size), "add.u32", start, Imm(size))
            builder.emit("add.u32", place, place, Imm(step))
            wrapped = builder.create("pred", "setp.eq.u32", place, end)
            builder.emit("selp.b32", place, first, place, wrapped)
        if parity is not None:
            builder.emit("xor.b32", parity, parity, Imm(1), guard=wrapped)
