"""Insert every wait, fence and barrier inside each role, from what its operations touch and how they complete.

The role is executed abstractly, with a record of each access to a tile or a tensor: who made it, whether it has
completed, whether a barrier has passed since (`lower.waits.scoreboard`). When an operation conflicts with an earlier
one, the missing synchronisation is placed before it: a wait in the earlier one's mechanism (counted in its own groups),
a proxy fence where ordinary writes meet the asynchronous proxy, a barrier where other threads are concerned: all of the
role, or those of the same warpgroup where each has a part of the tile. Placements belong to operations of the program
text, so that they hold in every iteration of a loop; the execution repeats until nothing is missing.

Every path is covered. A loop is run until its state has occurred before; if its trip count is unknown, the states after
any number of iterations are joined. A pipeline of unknown trip count is run for each count up to its stages, and on
from there until no new state occurs. Where paths join, so do their records: a record's demands depend on no other
record. A loop that is entered in a known state, with nothing placed since, ends as it did then: so nested loops are run
once per state, and not twice as often for each level.

A barrier is expensive and an early wait is cheap, so a barrier in a run of operations also waits for what the later
operations of that run need."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.ir import warp
from tilec.ir.tile import Buffer, Expr, Var
from tilec.passes.lower.waits import touches
from tilec.passes.lower.waits.conflicts import (
    ConflictFinder,
    begins_with_product,
    can_drain_iterations,
    has_explicit_wait,
)
from tilec.passes.lower.waits.handover import build_handover, forget_copies, prepare_arrivals
from tilec.passes.lower.waits.numbered import Node, find_wgmma_registers, number_operations, walk_nodes
from tilec.passes.lower.waits.placed_waits import ROLE_END, NeedsPart, SyncNeeds, drop_part, insert_needs, needs_drain
from tilec.passes.lower.waits.scoreboard import QUEUES, AccessRecord, RingUse, RoleState, Touch
from tilec.passes.lower.waits.tensor_areas import UNKNOWN_AGE
from tilec.passes.lower.waits.tensor_fences import insert_tensor_fences
from tilec.support.records import dataclass


def insert_sync(program: warp.Program) -> warp.Program:
    """Insert all waits, proxy fences and barriers that each role's accesses to memory need."""
    by_async = frozenset(touches.find_async_tiles(program)) if program.explicit_roles else frozenset()
    if program.explicit_roles:
        program = prepare_arrivals(program, by_async)
    facts = _ProgramFacts.from_program(program, by_async)

    def synchronise_role(role: warp.Role, number: int) -> warp.Role:
        """Return the role with waits, fences and barriers inserted; its own barriers use named barrier `number`."""
        execution = _RoleExecution(role, facts, touches.find_warpgroup_tiles(role, program))
        placed, barrier = execution.place_waits(), warp.BarSync(number, role.threads)
        return replace(role, body=insert_needs(role.body, placed, execution.drained_loops, barrier, itertools.count()))

    def synchronise_section(roles: tuple[warp.Role, ...]) -> tuple[warp.Role, ...]:
        """Return a section's roles with waits, fences and barriers inserted."""
        section = program.isolate_section(roles)
        return tuple(synchronise_role(role, section.named_barrier(number)) for number, role in enumerate(roles))

    roles, later = synchronise_section(program.roles), tuple(map(synchronise_section, program.later))
    common = None if program.common is None else synchronise_role(program.common, 0)
    return insert_tensor_fences(replace(program, roles=roles, common=common, later=later))


@dataclass(frozen=True, slots=True)
class _ProgramFacts:
    """Facts for all roles, by name: `rings` of the tiles in them, `fragments` all registers, `by_async` the tiles that
    the asynchronous proxy reaches where the kernel has explicit roles, `answers` the tiles of cluster-launch-control
    answers, `over` the tiles whose memory others reuse."""

    rings: Mapping[str, warp.Ring]
    fragments: frozenset[str]
    by_async: frozenset[str]
    answers: frozenset[str]
    over: Mapping[str, tuple[touches.ReusingTile, ...]]
    fixed: frozenset[Var]
    tensors: frozenset[str]
    has_explicit_roles: bool

    @classmethod
    def from_program(cls, program: warp.Program, by_async: frozenset[str]) -> _ProgramFacts:
        """Collect the program's facts for all roles: its rings, registers, tensors, and reused tiles."""
        registers = (touches.name_metadata_registers(tile.buffer) for tile in program.shared)
        return cls(
            {b: ring for ring in program.rings for b in ring.buffers},
            frozenset({*(b.name for b, _ in program.fragments), *registers}),
            by_async,
            frozenset(op.answer.name for op in program.operations() if isinstance(op, warp.TryCancel)),
            touches.find_reusing_tiles(program),
            frozenset({*program.block_vars, *(p for p in program.params if isinstance(p, Var))}),
            frozenset(p.name for p in program.params if isinstance(p, Buffer)),
            program.explicit_roles,
        )


class _MissingWait(Exception):
    """Synchronisation is missing in the final check."""


_CONTROL_OPERATIONS = (
    warp.Loop, warp.Forever, warp.Break, warp.Pipeline, warp.Branch, warp.Advance,
    warp.RingRelease, warp.RingWait, warp.RingAcquire, warp.RingFill, warp.CpAsyncCommit, warp.PingPongWait,
    warp.Await, warp.BarSync, warp.ProxyFence, warp.WgmmaWait, warp.ClusterWait, warp.GridSync,
    warp.Arrive, warp.CopiesArrive, warp.TensorArrive, warp.BarrierWait, warp.NamedBarrier,
)  # fmt: skip
"""Operations that are executed in another way than an access in program order."""


class _RoleExecution:
    """The abstract execution of a role. `needs` has the synchronisation placed so far, by place."""

    def __init__(self, role: warp.Role, facts: _ProgramFacts, per_warpgroup: frozenset[str]) -> None:
        self.rings, self.fragments = facts.rings, facts.fragments
        self.nodes = number_operations(role.body, per_warpgroup, facts.over, facts.fixed)
        self.spans = {node.place: node.op.span for node in walk_nodes(self.nodes)}
        # Without explicit roles, tensors that the role only reads need no records.
        written = {t.buffer for node in walk_nodes(self.nodes) for t in node.touches if t.write}
        self.read_only_tensors: frozenset[str] = frozenset() if facts.has_explicit_roles else facts.tensors - written
        self.registers = find_wgmma_registers(self.nodes, facts.fragments)
        self.mixed_registers: frozenset[str] = frozenset()  # of wgmma in flight between iterations, and used by threads
        self.run_places = range(0)  # the places executed so far in the current run of operations
        self.uses = tuple(_find_ring_uses(role, facts.rings))
        self.fenced = None if facts.has_explicit_roles else self.find_fenced_tiles(role) | facts.answers
        self.handover = build_handover(self.nodes, facts.by_async, facts.answers, facts.fragments)
        self.conflicts = ConflictFinder(facts.rings, facts.fragments, role.warps, self.handover)
        self.needs: dict[int, SyncNeeds] = {}
        self.drained_loops: set[int] = set()  # loops that wait for all wgmma at the end of each iteration
        self.changed = False
        self.is_final = False  # missing synchronisation is an error
        self.state = RoleState(self.uses, self.fenced)
        self.trip_count = 0
        self.steady: tuple[Node, ...] = ()  # one iteration of the current pipeline
        self.read_by_loops: dict[int, tuple[tuple[Node, Touch], ...]] = {}
        self.outcomes: dict[object, RoleState] = {}  # end states of loops, by entry state

    def find_fenced_tiles(self, role: warp.Role) -> frozenset[str]:
        """Return the tiles that TMA or tensor cores access in this role, or in a role that it passes a ring to."""
        async_tiles = {t.buffer for node in walk_nodes(self.nodes) for t in node.touches if t.proxy == "async"}
        handovers = [op for op in warp.walk_operations(role.body) if isinstance(op, warp.RingRelease | warp.RingFill)]
        passed = {cursor.ring for op in handovers for cursor in (op.cursor, *op.cursors)}
        return frozenset(async_tiles | {name for name, ring in self.rings.items() if ring.name in passed})

    def place_waits(self) -> dict[int, SyncNeeds]:
        """Return the synchronisation that the role needs, by place: repeat execution until none is missing, then
        prune."""
        while self.execute_role():
            pass
        self.prune_needs()
        return self.needs

    def execute_role(self) -> bool:
        """Execute the role once, adding missing synchronisation to the needs; return True if anything was added."""
        self.changed = False
        self.state = RoleState(self.uses, self.fenced)
        self.run_nodes(self.nodes)
        self.finish_role()
        return self.changed

    def prune_needs(self) -> None:
        """Drop each need without which the role still has no conflict, the last in the text first. So each trial can
        start from the recorded state before it."""
        self.is_final = True
        self.outcomes = {}
        self.state = RoleState(self.uses, self.fenced)
        reached = []
        for node in self.nodes:
            reached.append(self.state.copy())
            self.run_nodes((node,))
        reached.append(self.state)
        standing = [state.exact_shape() for state in reached]
        firsts = [node.place for node in self.nodes]
        parts: tuple[NeedsPart, ...] = ("all", "barrier", "fence", *QUEUES)
        last_first = sorted(self.needs, key=lambda place: (place == ROLE_END, place), reverse=True)
        for place, part in itertools.product(last_first, parts):
            whole = self.needs[place]
            lighter = drop_part(whole, part)
            if lighter not in (whole, SyncNeeds()) or part == "all":
                self.needs[place], self.outcomes = lighter, {}
                at = len(self.nodes) if place == ROLE_END else bisect.bisect_right(firsts, place) - 1
                self.state = reached[at].copy()
                try:
                    self.resume_run(at, standing)
                except _MissingWait:
                    self.needs[place], self.outcomes = whole, {}

    def resume_run(self, first: int, standing: list[object]) -> None:
        """Run the nodes from `first` on, to the end or until the state is the recorded one; raise `_MissingWait` at
        a conflict."""
        for at in range(first, len(self.nodes)):
            if at > first and self.state.exact_shape() == standing[at]:
                return
            self.run_nodes((self.nodes[at],), self.nodes[at + 1 :])
        self.finish_role()

    # ---- abstract execution ------------------------------------------------------------------------------------------

    def run_nodes(self, nodes: tuple[Node, ...], behind: tuple[Node, ...] = ()) -> None:
        """Execute nodes in order, dispatching on their operation; those in `behind` come later, run by the caller."""
        for i, node in enumerate(nodes):
            self.run_places = range(nodes[0].place, node.place)
            following = nodes[i + 1 :] + behind
            if not isinstance(node.op, _CONTROL_OPERATIONS):
                self.execute_operation(node, following)
                continue
            match node.op:
                case warp.Advance(cursor=cursor):
                    if cursor.name in self.state.positions:
                        self.state.positions[cursor.name] += 1
                case warp.RingRelease(cursor=cursor):
                    self.release_version(node, cursor)
                case warp.RingFill(cursor=cursor, keeps=keeps):
                    for passed in node.op.cursors or (cursor,):
                        self.release_version(node, passed, keeps)
                case warp.PingPongWait():
                    self.wait_before_ping_pong(node, following)
                case warp.CpAsyncCommit():
                    self.state.commit()
                case warp.Await():
                    self.execute_await(node, node.op, following)
                case warp.BarSync() | warp.ClusterWait(meets=True) | warp.GridSync():
                    self.state.pass_barrier("role")
                case warp.ProxyFence():
                    self.state.record_fence()
                case warp.WgmmaWait(pending=pending):
                    self.apply_needs(node.place)
                    self.state.record_wait("wgmma", pending)
                case warp.Arrive(condition=condition):
                    released = node.op.barrier.index if node.op.by_warps else None
                    self.execute_arrival(node, together=condition is not None, released=released)
                case warp.NamedBarrier(waits=waits):
                    self.execute_arrival(node, together=False)
                    if waits:
                        self.state.pass_barrier("role")
                case warp.TensorArrive():
                    self.require_role_barrier(node)
                case warp.CopiesArrive():
                    self.execute_operation(node, ())
                    forget_copies(self.state)
                case warp.BarrierWait(barrier=barrier):
                    self.execute_operation(node, ())
                    self.handover.forget_signalled(self.state, barrier.name)
                case warp.Pipeline() | warp.Loop() | warp.Forever():
                    self.execute_cached_loop(node, node.op)
                case warp.Branch(part="guard", least=least):
                    if self.trip_count >= least:
                        self.run_nodes(node.bodies[0])
                        if needs_drain(node.op):
                            self.state.record_wait("wgmma", 0)
                case warp.Branch():
                    self.execute_operation(node, ())
                    self.wait_before_branch(node, (*following, *self.steady))
                    other = self.state.copy()
                    self.run_nodes(node.bodies[0])
                    self.state, other = other, self.state
                    self.run_nodes(node.bodies[1])
                    self.state.join(other)

    def execute_cached_loop(self, node: Node, op: warp.Pipeline | warp.Loop | warp.Forever) -> None:
        """Execute a loop, or restore the end state recorded for the same state at its entry."""
        outcomes, entered = self.outcomes, (node.place, self.trip_count, self.state.exact_shape())
        if entered in outcomes:
            self.state = outcomes[entered].copy()
            return
        match op:
            case warp.Pipeline():
                self.execute_pipeline(node, op)
            case warp.Loop():
                self.execute_operation(node, ())
                self.execute_loop(node, op)
            case warp.Forever():
                if not has_explicit_wait(node):
                    self.wait_before_loop(node)
                self.run_until_stable(node.bodies[0])
        # Lost if something was placed meanwhile: `self.outcomes` is another one then.
        outcomes[entered] = self.state.copy()

    def wait_before_ping_pong(self, node: Node, following: tuple[Node, ...]) -> None:
        """Place the synchronisation that a ping-pong turn's operations need before the turn begins."""
        self.apply_needs(node.place)
        within = itertools.takewhile(lambda inner: not isinstance(inner.op, warp.PingPongPass), following)
        touched = [(inner, t) for inner in within for t in inner.touches if t.buffer not in self.fragments]
        conflicts = [
            (record, touch) for inner, touch in touched for record in self.find_conflicting_records(inner, touch)
        ]
        if conflicts:
            self.demand_sync(node, conflicts, following)
            self.apply_needs(node.place)

    def wait_before_branch(self, node: Node, others: tuple[Node, ...]) -> None:
        """Place waits before a branch for wgmma products whose registers are used both in it and behind it. In the
        branch, the wait would be for all groups (see `add_wait`), and the assembler does not follow it to the next
        iteration."""
        shared = {t.buffer for other in others if other.queue is None for t in other.touches} & self.fragments
        touched = [(inner, t) for inner in walk_nodes((node,)) for t in inner.touches if t.buffer in shared]
        for inner, touch in touched:
            for record in self.find_conflicting_records(inner, touch):
                self.add_wait(self.get_needs(node.place), record)
                self.apply_needs(node.place)

    def execute_loop(self, node: Node, op: warp.Loop) -> None:
        """Execute a loop for its trip count; if that is unknown or it has a break, until an iteration adds nothing."""
        if op.part == "steady" or not has_explicit_wait(node):
            self.wait_before_loop(node)
        trip_count = warp.static_trip_count(op)
        if node.frame is not None:
            self.state.enter_loop(node.frame)
        if trip_count is None or any(isinstance(inner, warp.Break) for inner in warp.walk_operations(op.body)):
            self.run_until_stable(node.bodies[0], node)
        else:
            self.repeat_iterations(node, trip_count)
        if node.frame is not None:
            self.state.leave_loop()

    def execute_iteration(self, node: Node) -> None:
        """Execute one iteration of a loop, and make it drain wgmma at its end where registers in flight require it. The
        assembler allows no wgmma in flight at its end where threads use the accumulator, as it may move registers
        there. A loop that must keep one in flight has dearer waits, all placed anew."""
        if node.frame is not None:
            self.state.next_iteration()
        self.run_nodes(node.bodies[0])
        is_checked = not self.is_final and node.place not in self.drained_loops
        crossing = self.find_crossing_registers(node) if is_checked else frozenset()
        if crossing and isinstance(node.op, warp.Loop) and can_drain_iterations(node.op):
            self.drained_loops.add(node.place)
            self.changed, self.outcomes = True, {}
        elif not crossing <= self.mixed_registers:
            self.mixed_registers |= crossing
            self.needs, self.drained_loops = {}, set()
            self.changed, self.outcomes = True, {}
        if node.place in self.drained_loops:
            self.state.record_wait("wgmma", 0)

    def find_crossing_registers(self, loop: Node) -> frozenset[str]:
        """Return the registers that wgmma and other operations use in a loop, if one is in flight at an iteration's
        end. Operands may cross the border where iterations begin with a product."""
        inner = [n for body in loop.bodies for n in walk_nodes(body)]
        multiplied = {name for n in inner for name in self.registers.get(n.place, ())}
        if begins_with_product(loop):
            multiplied &= {n.op.c.name for n in inner if isinstance(n.op, warp.Wgmma)}
        mixed = multiplied & {t.buffer for n in inner if n.place not in self.registers for t in n.touches}
        flying = (self.registers.get(record.place, frozenset()) for record in self.state.list_records() if record.group)
        return frozenset(mixed) if any(names & mixed for names in flying) else frozenset()

    def run_until_stable(self, body: tuple[Node, ...], loop: Node | None = None) -> None:
        """Execute a loop's body until the state recurs, and join the states after any number of iterations. What is in
        flight at a `Break` is in flight at the end of its iteration: it is the last in its branch, what would follow is
        in the other branch (`sema.statements.jumps`), and the two join at the end."""
        self.state.settle_cursors()
        seen: set[object] = set()
        # Where rings advance in the loop, shapes recur: a known one demands nothing new.
        while (shape := self.state.shape()) not in seen:
            seen.add(shape)
            before = self.state.copy()
            self.run_nodes(body) if loop is None else self.execute_iteration(loop)
            self.state.join(before)

    def repeat_iterations(self, node: Node, trip_count: int) -> None:
        """Execute `trip_count` iterations of a loop, skipping whole periods once its state recurs."""
        iteration = 0
        seen = {self.state.shape(): iteration}
        while iteration < trip_count:
            self.execute_iteration(node)
            iteration += 1
            first = seen.setdefault(self.state.shape(), iteration)
            if first < iteration:  # periodic from here on
                for _ in range((trip_count - iteration) % (iteration - first)):
                    self.execute_iteration(node)
                return

    def execute_pipeline(self, node: Node, op: warp.Pipeline) -> None:
        """Execute a pipeline of unknown trip count for each count that makes a difference, and join the end states."""
        body = node.bodies[0]
        at = next(i for i, inner in enumerate(body) if isinstance(inner.op, warp.Loop) and inner.op.part == "steady")
        before, after = body[:at], body[at + 1 :]
        drained = needs_drain(body[at].op)
        outer, self.steady = (self.trip_count, self.steady), body[at].bodies[0]
        self.state.settle_cursors()
        ends = []
        begun = self.state
        for self.trip_count in range(op.stages + 1):
            self.state = begun.copy()
            self.run_nodes(before)
            self.run_nodes(after)
            ends.append(self.state)
        self.trip_count = op.stages + 1
        self.state = begun
        self.run_nodes(before)
        self.wait_before_loop(body[at])
        frame = body[at].frame
        if frame is not None:
            self.state.enter_loop(frame)
        seen = set()
        while (shape := self.state.shape()) not in seen:
            seen.add(shape)
            self.execute_iteration(body[at])
            reached = self.state.copy()
            if drained:
                self.state.record_wait("wgmma", 0)
            if frame is not None:
                self.state.leave_loop()
            self.run_nodes(after)
            ends.append(self.state)
            self.state = reached
        self.state = ends[0]
        for end in ends[1:]:
            self.state.join(end)
        self.trip_count, self.steady = outer

    def wait_before_loop(self, loop: Node) -> None:
        """Place before a loop the synchronisation for memory that the loop only reads. Where its iterations wait
        anyway, `prune_needs` drops this, but not before a steady state, which would wait many times."""
        self.apply_needs(loop.place)
        if self.is_final and getattr(loop.op, "part", "") != "steady":
            return
        read = self.find_only_read(loop)
        conflicts = [(record, touch) for n, touch in read for record in self.find_conflicting_records(n, touch)]
        if conflicts:
            self.demand_sync(loop, conflicts, ())
            self.apply_needs(loop.place)

    def find_only_read(self, loop: Node) -> tuple[tuple[Node, Touch], ...]:
        """Return the touches of buffers that the loop reads and never writes, each with its node; cached by loop."""
        known = self.read_by_loops.get(loop.place)
        if known is None:
            inner = tuple(walk_nodes(loop.bodies[0]))
            changed = self.fragments | {touch.buffer for node in inner for touch in node.touches if touch.write}
            read = [(node, touch) for node in inner for touch in node.touches if touch.buffer not in changed]
            known = self.read_by_loops[loop.place] = tuple((node, replace(touch, area=None)) for node, touch in read)
        return known

    def execute_operation(self, node: Node, following: tuple[Node, ...]) -> None:
        """Place what an operation's accesses need before it until none conflicts, then record these accesses."""
        self.apply_needs(node.place)
        if not node.touches:
            return
        state = self.state
        touched = [
            (t, self.conflicts.find_key(state, node, t)) for t in node.touches if t.buffer not in self.read_only_tensors
        ]
        records, found = state.records, self.conflicts.find_conflicts
        while conflicts := [(r, t) for t, key in touched if key in records for r in found(state, node, t, key)]:
            self.demand_sync(node, conflicts, following)
            self.apply_needs(node.place)
        group = state.begin(node.queue)
        for touch, key in touched:
            kept = state.records.setdefault(key, [])
            if touch.write and node.queue is None:
                # What conflicts with earlier accesses conflicts with this write, unless that reaches another area, or
                # other threads read in this operation than write.
                kept[:] = [
                    r
                    for r in kept
                    if (touch.area is not None and not r.is_settled and not r.is_same(touch))
                    or (r.place == node.place and r.touch.owner != touch.owner)
                ]
            self.record_touch(kept, node, touch, group)
        for touch in node.early:  # any version: it only conflicts with the tile that reuses the memory
            self.record_touch(state.records.setdefault((touch.buffer, 0), []), node, touch, group)

    def record_touch(self, kept: list[AccessRecord], node: Node, touch: Touch, group: int) -> None:
        """Add an access record to the list `kept` of its version, in place of an equal one of the same operation."""
        if any(r.place == node.place for r in kept):
            kept[:] = [r for r in kept if r.place != node.place or not r.is_same(touch)]
        age = UNKNOWN_AGE if touch.area is None else 0
        kept.append(AccessRecord(node.place, touch, node.queue, group, "", False, age))

    def find_conflicting_records(self, node: Node, touch: Touch) -> Iterator[AccessRecord]:
        """Return the recorded accesses that this touch of a node's operation conflicts with."""
        return self.conflicts.find_conflicts(self.state, node, touch, self.conflicts.find_key(self.state, node, touch))

    # ---- what is missing ---------------------------------------------------------------------------------------------

    def demand_sync(self, node: Node, conflicts: list[tuple[AccessRecord, Touch]], following: tuple[Node, ...]) -> None:
        """Add to a node's needs the waits, fence and barrier that resolve these conflicts with earlier accesses."""
        needs = self.get_needs(node.place)
        before = (dict(needs.waits), needs.fence, needs.barrier)
        for record, touch in conflicts:
            self.add_wait(needs, record)
            if touch.buffer not in self.fragments:
                if not needs.over:
                    needs.over, needs.after = touch.buffer, self.spans[record.place]
                if needs.barrier != "role":
                    needs.barrier = "warpgroup" if record.touch.per_warpgroup and touch.per_warpgroup else "role"
                needs.fence |= self.conflicts.is_fence_missing(record, touch)
        if needs.barrier:
            self.look_ahead(needs, following)
        assert before != (needs.waits, needs.fence, needs.barrier), f"{node.op} still conflicts after its waits"

    def get_needs(self, place: int) -> SyncNeeds:
        """Return the needs of a place, to be added to; raise `_MissingWait` in the final check."""
        if self.is_final:
            raise _MissingWait
        self.changed, self.outcomes = True, {}
        return self.needs.setdefault(place, SyncNeeds())

    def add_wait(self, needs: SyncNeeds, record: AccessRecord) -> None:
        """Add to the needs a wait for a recorded access, if it may still be in flight."""
        if record.group and record.queue:
            # Where threads use an accumulator, the assembler needs a wait for all groups, unless the wgmma is in the
            # same run of operations.
            registers = self.registers.get(record.place, frozenset())
            whole = record.place not in self.run_places and self.mixed_registers & registers
            pending = 0 if whole else self.state.count_pending(record)
            needs.waits[record.queue] = min(needs.waits.get(record.queue, pending), pending)

    def look_ahead(self, needs: SyncNeeds, following: tuple[Node, ...]) -> None:
        """Extend a barrier's needs by waits and fences for reads of the following operations, up to explicit
        synchronisation."""
        for node in following:
            if node.bodies or isinstance(node.op, warp.Advance | warp.Await | warp.BarSync | warp.ProxyFence):
                return
            for touch in node.touches:
                if touch.write or touch.buffer in self.fragments:
                    continue
                for record in self.state.records.get(self.conflicts.find_key(self.state, node, touch), ()):
                    if record.touch.write:
                        self.add_wait(needs, record)
                        needs.fence |= self.conflicts.is_fence_missing(record, touch)

    def apply_needs(self, place: int) -> None:
        """Update the state by the waits, fence and barrier placed at this place, if any."""
        needs = self.needs.get(place)
        if needs is None:
            return
        for queue, pending in needs.waits.items():
            self.state.record_wait(queue, pending)
        if needs.fence:
            self.state.record_fence()
        if needs.barrier:
            self.state.pass_barrier(needs.barrier)

    def execute_await(self, node: Node, op: warp.Await, following: tuple[Node, ...]) -> None:
        """Place what an explicit wait for tiles needs, as if it accessed them, without recording an access."""
        self.apply_needs(node.place)
        touched = [Touch(name, op.readers) for name in op.tiles]
        conflicts = [(r, t) for t in touched for r in self.find_conflicting_records(node, t)]
        if op.rendezvous and conflicts:
            self.demand_sync(node, conflicts, following)
            self.apply_needs(node.place)
        for record, _ in () if op.rendezvous else conflicts:
            if record.group:
                self.add_wait(self.get_needs(node.place), record)
                self.apply_needs(node.place)

    def execute_arrival(self, node: Node, together: bool, released: Expr | None = None) -> None:
        """Place the waits, fence or barrier that an arrival at a kernel's barrier needs before it."""
        self.execute_operation(node, ())
        for record, what in self.handover.find_demands(self.state, together, released):
            needs = self.get_needs(node.place)
            if what == "wait":
                self.add_wait(needs, record)
            elif what == "fence":
                needs.fence = True
            else:
                needs.barrier = "role"
            self.apply_needs(node.place)

    def require_role_barrier(self, node: Node) -> None:
        """Place a barrier of the role before an operation by which one thread arrives for all."""
        self.execute_operation(node, ())
        if not self.needs.get(node.place, SyncNeeds()).barrier:
            self.get_needs(node.place).barrier = "role"
            self.apply_needs(node.place)

    def release_version(self, node: Node, cursor: warp.Cursor, keeps: bool = False) -> None:
        """Place waits and fences for a ring version before it is passed on, and drop its records unless `keeps`.
        Whoever touches it next has waited for that."""
        ring = next((r for r in self.rings.values() if r.name == cursor.ring), None)
        if ring is None:
            return  # it has no tiles
        version = self.state.positions[cursor.name] % ring.depth if ring.depth > 1 else 0
        self.apply_needs(node.place)
        for buffer in ring.buffers:
            for record in self.state.records.get((buffer, version), ()):
                if record.group:
                    self.add_wait(self.get_needs(node.place), record)
                    self.apply_needs(node.place)
                if (record.touch.write and not record.fenced) or self.handover.needs_fence(record):
                    self.get_needs(node.place).fence = True
                    self.apply_needs(node.place)
            if not keeps:
                self.state.records.pop((buffer, version), None)

    def finish_role(self) -> None:
        """Place waits at the role's end for TMA stores and wgmma products that may still be in flight."""
        self.apply_needs(ROLE_END)
        for record in self.state.list_records():
            if record.group and record.queue in ("bulk", "wgmma"):
                self.get_needs(ROLE_END).waits[record.queue] = 0


def _find_ring_uses(role: warp.Role, rings: Mapping[str, warp.Ring]) -> Iterator[RingUse]:
    """Yield the rings of several versions whose cursors this role advances, with these cursors."""
    advanced = dict.fromkeys(op.cursor for op in warp.walk_operations(role.body) if isinstance(op, warp.Advance))
    for ring in dict.fromkeys(rings.values()):
        cursors = tuple(c.name for c in advanced if c.ring == ring.name)
        if ring.depth > 1 and cursors:
            yield RingUse(ring.depth, ring.buffers, cursors)
