"""How versions of a ring are acquired, filled, awaited and released, and how cursors walk through them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilec.codegen import clusters
from tilec.codegen.address import Addresses
from tilec.codegen.builder import Builder
from tilec.codegen.scalar import Scalars
from tilec.codegen.state import State
from tilec.codegen.transfer import barrier_address
from tilec.ir import warp
from tilec.ir.warp import Program
from tilec.ptx.module import Guard, Imm, Reg, Symbol


class RingProtocol:
    """Of the rings of one program; `advance` moves the positions that `addresses` holds in registers."""

    def __init__(self, program: Program, builder: Builder, scalars: Scalars, addresses: Addresses) -> None:
        self.program, self.builder, self.scalars, self.addresses = program, builder, scalars, addresses
        self.in_tensor = frozenset(tile.buffer.name for tile in program.tensor)

    def acquire(self, cursor: warp.Cursor, state: State) -> None:
        """What TMA fills is waited for by who asks for it alone."""
        builder, ring = self.builder, self.ring(cursor)
        if not ring.bytes:
            self.wait(cursor, state, empty=True)
            return
        past = builder.label("acquired")
        if state.leader is not None:
            builder.emit("bra", Symbol(past), guard=Guard(state.leader, True))
        with self.where_counted(ring, state):
            self.wait(cursor, state, empty=True)
        full = barrier_address(state, cursor.name, cursor.ring, empty=False)
        # Of a pair of blocks the first one announces what both of them load.
        first = state.pair.is_first if ring.paired and state.pair is not None else None
        builder.emit("mbarrier.arrive.expect_tx.shared::cta.b64", Reg("_"), full, Imm(ring.bytes), guard=first)
        if state.leader is not None:
            builder.place(past)

    def drain(self, cursor: warp.Cursor, state: State) -> None:
        """Until every version is empty."""
        with self.where_counted(self.ring(cursor), state):
            for _ in range(self.ring(cursor).depth):
                self.spin(cursor, state, empty=True)
                self.advance(cursor)

    @contextmanager
    def where_counted(self, ring: warp.Ring, state: State) -> Iterator[None]:
        """Of a ring that only the cluster's first block is told of, that block alone waits for empty versions: to the
        others it announces them by what they hear (PTX ISA, clusterlaunchcontrol.try_cancel, multicast)."""
        if ring.heard_by < 2 or state.head is None:
            yield
            return
        past = self.builder.label("others")
        self.builder.emit("bra", Symbol(past), guard=Guard(state.head.is_first, True))
        self.addresses.forget_positions()
        yield
        self.builder.place(past)
        self.addresses.forget_positions()

    def wait(self, cursor: warp.Cursor, state: State, *, empty: bool) -> None:
        """Until the version is empty, or full."""
        self.spin(cursor, state, empty=empty)

    def spin(self, cursor: warp.Cursor, state: State, *, empty: bool) -> None:
        """On the version's barrier."""
        builder = self.builder
        parity = self.addresses.positions[cursor.name].parity
        assert parity is not None
        address = barrier_address(state, cursor.name, cursor.ring, empty=empty)
        again = builder.label("wait")
        builder.place(again)
        done = builder.into("pred", "mbarrier.try_wait.parity.shared::cta.b64", address, parity)
        builder.emit("bra", Symbol(again), guard=Guard(done, True))

    def ring(self, cursor: warp.Cursor) -> warp.Ring:
        return next(r for r in self.program.rings if r.name == cursor.ring)

    def release(self, cursor: warp.Cursor, state: State) -> None:
        """To whoever fills the version, in this block or in several."""
        ring = self.ring(cursor)
        if not ring.shared:
            self.arrive(cursor, state, empty=True)
            return
        self.gather(ring, state)
        clusters.release_to_mates(ring, cursor, state)

    def arrive(self, cursor: warp.Cursor, state: State, *, empty: bool) -> None:
        """Once a warp, when all of it is done; or each thread, as one that is alone with its role does."""
        ring = self.ring(cursor)
        if ring.by == "warp":
            self.gather(ring, state)
        address = barrier_address(state, cursor.name, cursor.ring, empty=empty)
        elected = state.lane_zero if ring.by == "warp" else None
        counts = state.pair if ring.paired else state.head if ring.heard_by > 1 else None
        if counts is not None:
            address = clusters.in_first(address, cursor, counts, state)
        space = "shared::cluster" if counts is not None else "shared::cta"
        self.builder.emit(f"mbarrier.arrive.{space}.b64", Reg("_"), address, guard=elected)

    def gather(self, ring: warp.Ring, state: State) -> None:
        """The warp's threads, each done with the version; whoever waits for its wgmma waits for the warp's."""
        if state.role.single_thread:
            return
        if not ring.buffers or ring.name in self.in_tensor or not state.touched.isdisjoint(ring.buffers):
            self.builder.emit("bar.warp.sync", Imm(-1))

    def advance(self, cursor: warp.Cursor, behind: warp.Cursor | None = None) -> None:
        """The next version, which is where a cursor stands that this one is `behind`; after the last one the first
        again, in the next phase."""
        builder = self.builder
        position, ring = self.addresses.positions[cursor.name], self.ring(cursor)
        place, parity = position.place, position.parity
        position.moves += 1
        if ring.depth == 1:
            wrapped = None
        elif behind is not None and parity is None:
            builder.emit("mov.u32", place, self.addresses.positions[behind.name].place)
            return
        else:
            start, step = self.addresses.first_place(ring)
            first, end = (Imm(0), Imm(ring.depth)) if start is None else (start, self.end_of(ring, start))
            builder.emit("add.u32", place, place, Imm(step))
            wrapped = builder.into("pred", "setp.eq.u32", place, end)
            builder.emit("selp.b32", place, first, place, wrapped)
        if parity is not None:
            builder.emit("xor.b32", parity, parity, Imm(1), guard=wrapped)

    def end_of(self, ring: warp.Ring, start: Reg) -> Reg:
        size = warp.MBARRIER_BYTES * ring.depth
        return self.scalars.hoisted(("end", size), lambda: self.builder.into("b32", "add.u32", start, Imm(size)))
