"""Which operations of a run of `warp_verify` get in each other's way: whether what touched a version of a tile, or a
part of a tensor, is complete when another operation comes there, and whether the two have met at a barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilec.ir import warp
from tilec.ir.groups import WARPGROUP_WARPS
from tilec.ir.tile import Buffer
from tilec.ir.warp import Operation, Program, Ring
from tilec.ir.warp_effects import combined, effects, name_of
from tilec.ir.warp_order import Order
from tilec.ir.warp_owners import are_disjoint
from tilec.ir.warp_regions import Parts, are_elsewhere
from tilec.ir.warp_run_state import Access, RoleState, Version
from tilec.ir.warp_scenarios import Execution
from tilec.ir.warp_structure import Overlaps


def accesses_of(state: RoleState) -> Iterator[Access]:
    """Those of a role that are kept."""
    for accesses in state.accesses.values():
        yield from accesses


class Conflicts:
    """Of one run, whose `versions`, `order`, `roles` and `executions` these are. Methods give what is wrong, or ""."""

    def __init__(
        self,
        program: Program,
        overlaps: Overlaps,
        parts: Parts,
        versions: Mapping[tuple[str, int], Version],
        order: Order,
        roles: Sequence[RoleState],
        executions: Sequence[Execution],
    ) -> None:
        self.overlaps, self.parts = overlaps, parts
        self.versions, self.order, self.roles, self.executions = versions, order, roles, executions
        self.ring_of: dict[str, Ring] = {b: r for r in program.rings for b in r.buffers}
        self.fragments = {b.name for b, _ in program.fragments}
        self.per_warpgroup = {
            op.source.name for op in program.operations() if isinstance(op, warp.TmaStore) and op.parts > 1
        }
        self.per_warpgroup |= {tile.buffer.name for tile in program.shared if tile.layout.copies > 1}
        self.tensor = {tile.buffer.name for tile in program.tensor}
        self.tensors = {p.name for p in program.params if isinstance(p, Buffer)}
        self.covered: dict[str, str] = {}  # the tiles whose memory another tile has, and which

    def wait(self, state: RoleState, queue: str, pending: int) -> str:
        done = state.groups.get(queue, 0) - pending
        self.order.complete(state.index, queue, done)
        for access in accesses_of(state):
            if access.queue == queue and 0 < access.group <= done:
                access.group, access.interval, access.part = 0, state.interval, state.part
        return ""

    def touch(self, state: RoleState, op: Operation) -> str:
        reads, writes, queue, async_reads = effects(op)
        group = 0
        if queue is not None:
            group = state.groups.get(queue, 0) + 1
            if queue != "cp.async":  # whose groups are closed by commits
                state.groups[queue] = group
        accesses = [*((n, False) for n in sorted(reads)), *((n, True) for n in sorted(writes))]
        kept_of = {}
        atomic = combined(op)
        # All conflicts before any record: an operation may read and write one tile, and does not wait for itself.
        for name, write in accesses:
            slot = self.version(state, op, name)
            if isinstance(slot, str):
                return slot
            if message := self.moves_in(state, op, name):
                return message
            kept_of[name] = state.accesses.setdefault((name, slot), [])
            for earlier in kept_of[name]:
                if earlier.atomic and name in atomic:
                    continue  # in any order
                message = self.conflict(state, op, name, earlier, write, queue, name in async_reads)
                if message and not self.is_elsewhere(state, op, name, earlier, write):
                    return message
        for name, write in accesses:
            through = self.cursor(op, name)
            number = None if through is None else state.positions.get(through.name, 0)
            slot = 0 if number is None else number % self.ring_of[name].depth
            how = name in async_reads, name in atomic, queue, group
            if message := self.order.touch(state.index, op, name, slot, number, write, *how):
                return message
        for name, write in accesses:
            kept = kept_of[name]
            if name in self.parts.tensors:
                self.parts.keep(state, op, kept)
            else:
                if write and queue is None:
                    kept.clear()
                kept[:] = kept[-8:]
            if write and (ring := self.ring_of.get(name)) is not None:
                cursor = next((c.name for c in op.cursors if c.ring == ring.name), "")
                state.missing.get((ring.name, state.positions.get(cursor, 0)), set()).discard(name)
            now = state.interval, state.part
            own_rows = name in self.overlaps.own_rows(op)
            access = Access(op, write, name in async_reads, queue, group, *now, name in atomic, own_rows)
            access.reached = self.parts.reached(op, name, write, self.executions[state.index].values)
            kept.append(access)
        return ""

    def is_elsewhere(self, state: RoleState, op: Operation, name: str, earlier: Access, write: bool) -> bool:
        """Whether both reach a tensor, but not the same part of it."""
        return are_elsewhere(earlier.reached, self.parts.reached(op, name, write, self.executions[state.index].values))

    def cursor(self, op: warp.Operation, name: str) -> warp.Cursor | None:
        """The one through which an operation reaches a tile, if that has versions."""
        ring = self.ring_of.get(name)
        return next((c for c in op.cursors if ring is not None and c.ring == ring.name), None)

    def version(self, state: RoleState, op: warp.Operation, name: str) -> int | str:
        """Which version of a tile an operation touches, or what is wrong with that."""
        if over := self.covered.get(name):
            return f"line {op.span.line}: {name_of(op)} touches {name} while {over} has its memory"
        ring = self.ring_of.get(name)
        if ring is None or (ring.depth == 1 and not ring.has_barriers):
            return 0
        cursor = next((c for c in op.cursors if c.ring == ring.name), None)
        if cursor is None:
            return f"line {op.span.line}: {name_of(op)} touches {name} without saying which version"
        position = state.positions.get(cursor.name, 0)
        filling = 0 if ring.bytes else state.acquired.get(ring.name, 0)  # what TMA fills is nobody else's meanwhile
        if ring.has_barriers and position >= max(state.waited.get(ring.name, 0), filling):
            return f"line {op.span.line}: {name_of(op)} touches {name} before it has waited for the version"
        if ring.has_barriers and position < state.left.get(ring.name, 0):
            return f"line {op.span.line}: {name_of(op)} touches {name} after it has passed the version on"
        return position % ring.depth

    def moves_in(self, state: RoleState, op: warp.Operation, name: str) -> str:
        """Promise 10, where a tile over the rings is touched."""
        for tile, rows_alike in self.overlaps.beneath.get(name, ()):
            ring = self.ring_of[tile]
            begun = max(other.acquired.get(ring.name, 0) for other in self.roles)
            for version in range(ring.depth):
                done = self.versions[(ring.name, version)]
                if ring.has_barriers and not len(range(version, begun, ring.depth)) == done.fills == done.frees:
                    return f"line {op.span.line}: {name} has the memory of {ring.name}, which is not done with"
                for other in self.roles:
                    place = (tile, version)
                    for earlier in (*other.accesses.get(place, ()), *other.spent.get(place, ())):
                        if other is not state and other not in state.mates:
                            return f"line {op.span.line}: {name} has the memory of {tile}, of {other.role.name} too"
                        per_warpgroup = rows_alike and name in self.per_warpgroup and earlier.own_rows
                        if per_warpgroup and not earlier.group and earlier.part < state.part:
                            continue
                        if message := self.conflict(state, op, tile, earlier, True, None, False, by_all=True):
                            return f"{message}, and {name} has its memory"
            self.covered[tile] = name
        return ""

    def await_(self, state: RoleState, op: warp.Await) -> str:
        """As if it read the tiles, or overwrote them; without `rendezvous`, what the thread itself has under way counts
        alone."""
        for name in op.tiles:
            slot = self.version(state, op, name)
            if isinstance(slot, str):
                return slot
            for earlier in state.accesses.get((name, slot), ()):
                if op.rendezvous and (message := self.conflict(state, op, name, earlier, op.readers, None, False)):
                    return message
                if earlier.group and (earlier.write or op.readers):
                    return f"line {op.span.line}: {name} is awaited while {earlier.op} is under way"
        return ""

    def conflict(
        self,
        state: RoleState,
        op: Operation,
        name: str,
        earlier: Access,
        write: bool,
        queue: str | None,
        by_async: bool,
        by_all: bool = False,
    ) -> str:
        if not (earlier.write or write):
            return ""
        where = f"line {op.span.line}: {name_of(op)} on {name}"
        if earlier.group and not (name in self.fragments and earlier.queue == queue == "wgmma"):
            return f"{where} does not wait for {earlier.op}"
        if name in self.fragments:
            return ""
        moves = {name_of(op), earlier.op} <= {"TensorLoad", "TensorStore"}
        if moves and name in self.tensor and state.role.warps == WARPGROUP_WARPS:
            return ""  # in tensor memory each warp of a warpgroup has lanes of its own
        is_per_warpgroup = name in self.per_warpgroup and not by_all
        has_met = earlier.part < state.part if is_per_warpgroup else earlier.interval < state.interval
        if not has_met and name in self.tensors:
            has_met = are_disjoint(earlier.by, op, name, (earlier.write, write), self.parts.fixed)
        if not has_met:
            return f"{where} has no barrier after {earlier.op}"
        if by_async and earlier.write and not earlier.async_proxy and not earlier.fenced:
            return f"{where} has no proxy fence after {earlier.op}"
        return ""
