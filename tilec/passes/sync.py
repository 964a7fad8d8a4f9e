"""Place every wait, fence and barrier inside each role, from what its operations touch and how they complete.

The role is executed abstractly, with a record of each access to a tile or a tensor: who made it, whether it has
completed, whether a barrier has passed since (`passes.inflight`). When an operation conflicts with an earlier one, what
is missing between them is placed in front of it: the wait of the mechanism that the earlier one uses (counted in that
mechanism's own groups), a proxy fence where ordinary writes meet the asynchronous proxy, a barrier where other threads
are concerned: all of the role, or those of the same warpgroup where each has a part of the tile. Placements belong to
operations of the program text, so that they hold in every trip of a loop; the walk repeats until nothing is missing.

Every path is covered. A loop is run until what is under way at its end has come up before; where its trip count is not
known, all that may hold after any number of trips is carried on. A pipeline of unknown trip count is run for each count
up to its stages, and on from there until nothing new comes up; where paths meet, so do their records, which lose
nothing by it: what a record demands depends on no other one.

A barrier is dear and an early wait is cheap, so a barrier placed in a run of operations also waits for what the
operations after it in that run will need.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tilec.ir import warp
from tilec.ir.tile import Buffer, Load, Store, walk_expr
from tilec.ir.tile import walk as walk_tile
from tilec.passes.handover import BY_TENSOR_CORES, BY_TMA, Handover, forget_copies, prepared
from tilec.passes.inflight import QUEUES, Key, Meeting, Queue, Record, RingUse, State, Touch
from tilec.passes.usage import expressions
from tilec.source import NOWHERE


def touches(op: warp.Operation, apart: frozenset[str] = frozenset()) -> tuple[tuple[Touch, ...], Queue | None]:
    """What an operation accesses, and the queue in which it completes (None: in program order). Of the tiles `apart`
    each warpgroup has a part."""
    mine, queue = _touches(op)
    if apart:
        mine = tuple(replace(t, apart=True) if t.buffer in apart else t for t in mine)
    return mine + tuple(Touch(name, False) for name in warp.scalar_reads(op)), queue


def _touches(op: warp.Operation) -> tuple[tuple[Touch, ...], Queue | None]:
    match op:
        case warp.Elementwise(nest=nest):
            found: list[Touch] = []
            for stmt in walk_tile(nest.body):
                for expr in expressions(stmt):
                    found += [Touch(e.buffer.name, False) for e in walk_expr(expr) if isinstance(e, Load)]
                if isinstance(stmt, Store):
                    found.append(Touch(stmt.buffer.name, True, atomic=_commuting(stmt.atomic)))
            return tuple(dict.fromkeys(found)), None
        case warp.CpAsync(source=s, destination=into):
            return (Touch(s.buffer.name, False), Touch(into.buffer.name, True)), "cp_async"
        case warp.TmaLoad(destination=d, barrier=barrier):
            if barrier is None:
                return (), None  # ordered by its ring's barriers alone
            return (Touch(d.name, True, "async", BY_TMA),), None
        case warp.TmaStore(source=s):
            return (Touch(s.name, False, "async"),), "bulk"
        case warp.StoreMatrix(source=s, destination=d):
            return (Touch(s.name, False), Touch(d.name, True)), None
        case warp.Mma(a=a, b=b, c=c, metadata=e):
            places = () if e is None else (Touch(e.name, False),)
            return (Touch(a.name, False), Touch(b.name, False), Touch(c.name, True), *places), None
        case warp.Wgmma(a=a, b=b, c=c, metadata=e):
            # From a fragment, registers of their own are filled anew each time: one group at a time may read them.
            packs = a.scope == "fragment"
            return (
                Touch(a.name, packs, "registers" if packs else "async"),
                Touch(b.name, False, "async"),
                Touch(c.name, True),
                *(() if e is None else (Touch(e.name, False), Touch(_in_registers(e), True, "registers"))),
            ), "wgmma"
        case warp.TensorMma(a=a, b=b, c=c, leader=leader):
            if leader is None:
                return (), None  # ordered by the barriers of rings alone
            operands = (Touch(a.name, False, "async"), Touch(b.name, False, "async"))
            return (*operands, Touch(c.name, True, "async", BY_TENSOR_CORES)), None
        case warp.TensorCopy(source=s, destination=d):
            return (Touch(s.name, False, "async"), Touch(d.name, True, "async", BY_TENSOR_CORES)), None
        case warp.TensorLoad(source=s, destination=d):
            return (Touch(s.name, False), Touch(d.name, True)), None
        case warp.Reduce(source=s, destination=d, scratch=scratch):
            own = () if scratch is None else (Touch(scratch.name, True),)
            return (Touch(s.name, False), Touch(d.name, True), *own), None
        case _:
            return (), None


def _in_registers(metadata: Buffer) -> str:
    """The registers that the metadata of a sparse operand passes through, filled anew for each group of wgmma."""
    return f"{metadata.name} in registers"


def _commuting(atomic: str | None) -> str:
    """Additions may come in any order, but not an addition and a maximum; of two stores the last one counts."""
    return "" if atomic in (None, "store") else atomic


@dataclass(slots=True)
class Needs:
    """What must stand in front of one operation of the text."""

    waits: dict[Queue, int] = field(default_factory=dict)
    fence: bool = False
    barrier: Meeting = ""


Part = Literal["all", "barrier", "fence"] | Queue


def _without(needs: Needs, part: Part) -> Needs:
    match part:
        case "all":
            return Needs()
        case "barrier":
            return replace(needs, barrier="")
        case "fence":
            return replace(needs, fence=False)
        case _:
            return replace(needs, waits={q: n for q, n in needs.waits.items() if q != part})


def synchronise(program: warp.Program) -> warp.Program:
    rings = {b: ring for ring in program.rings for b in ring.buffers}
    fragments = {b.name for b, _ in program.fragments}
    fragments |= {_in_registers(tile.buffer) for tile in program.shared}
    by_async = frozenset(_by_async(program)) if program.by_hand else frozenset()
    if program.by_hand:
        program = prepared(program, by_async)
    roles = []
    for number, role in enumerate(program.roles):
        barrier = warp.BarSync(program.named_barrier(number), role.threads)
        roles.append(_synchronised(role, rings, fragments, by_async, barrier))
    common = program.common
    if common is not None:
        common = _synchronised(common, rings, fragments, by_async, warp.BarSync(0, common.threads))
    return replace(program, roles=tuple(roles), common=common)


def _synchronised(
    role: warp.Role,
    rings: dict[str, warp.Ring],
    fragments: set[str],
    by_async: frozenset[str],
    barrier: warp.BarSync,
) -> warp.Role:
    execution = _Role(role, rings, fragments, by_async)
    placed = execution.place()
    return replace(role, body=_insert(role.body, placed, execution.emptied, barrier, _Counter()))


def _apart(role: warp.Role) -> frozenset[str]:
    """The tiles of which each warpgroup stores its part by itself, and of which it therefore only reaches that."""
    return frozenset(op.source.name for op in warp.walk(role.body) if isinstance(op, warp.TmaStore) and op.parts > 1)


def _by_async(program: warp.Program) -> Iterator[str]:
    """The tiles that TMA or the tensor cores reach by themselves."""
    common = () if program.common is None else (program.common,)
    for role in (*program.roles, *common):
        for op in warp.walk(role.body):
            yield from (t.buffer for t in _touches(op)[0] if t.proxy == "async")


class _Counter:
    """A running number, the same in the walk and in the rewriting."""

    def __init__(self) -> None:
        self.value = -1

    def next(self) -> int:
        self.value += 1
        return self.value


@dataclass(frozen=True, slots=True)
class _Node:
    """An operation of the text with its number, what it touches and, for structured ones, its numbered bodies."""

    place: int
    op: warp.Operation
    touches: tuple[Touch, ...]
    queue: Queue | None
    cursors: dict[str, str]  # by ring
    bodies: tuple[tuple[_Node, ...], ...]


def _number(body: tuple[warp.Operation, ...], counter: _Counter, apart: frozenset[str]) -> tuple[_Node, ...]:
    nodes = []
    for op in body:
        place = counter.next()
        mine, queue = touches(op, apart)
        cursors = {c.ring: c.name for c in op.cursors}
        nodes.append(_Node(place, op, mine, queue, cursors, tuple(_number(b, counter, apart) for b in warp.nested(op))))
    return tuple(nodes)


class _Missing(Exception):
    """Something must be placed that is not."""


_STEERING = (
    warp.Loop, warp.Forever, warp.Break, warp.Pipeline, warp.Branch, warp.Advance,
    warp.RingRelease, warp.RingWait, warp.RingAcquire, warp.RingFill, warp.CpAsyncCommit, warp.TurnWait,
    warp.Await, warp.BarSync, warp.ProxyFence, warp.WgmmaWait, warp.ClusterWait, warp.GridSync,
    warp.Arrive, warp.CopiesArrive, warp.TensorArrive, warp.BarrierWait, warp.NamedBarrier,
)  # fmt: skip
"""What is more, or less, than an access in its place."""

END = -1  # the place after the role's last operation


class _Role:
    def __init__(
        self, role: warp.Role, rings: dict[str, warp.Ring], fragments: set[str], by_async: frozenset[str]
    ) -> None:
        self.rings, self.fragments = rings, fragments
        self.nodes = _number(role.body, _Counter(), _apart(role))
        every = list(_flat(self.nodes))
        kept = [n for n in every if isinstance(n.op, warp.Loop) and not _can_be_emptied(n.op)]
        self.mixed = _mixed(every, kept, fragments)
        self.here = range(0)  # the places of the run of operations being executed, up to where it is
        self.uses = tuple(_uses(role, rings))
        self.handover = _handover(self.nodes, by_async, fragments)
        self.needs: dict[int, Needs] = {}
        self.emptied: set[int] = set()  # the loops that wait for all wgmma at the end of each trip
        self.changed = False
        self.is_final = False  # whether what is missing is an error
        self.state = State(self.uses)
        self.trip_count = 0

    def place(self) -> dict[int, Needs]:
        while self.sweep():
            pass
        self.prune()
        return self.needs

    def sweep(self) -> bool:
        """Execute the role, and say whether something was missing; the needs hold it now."""
        self.changed = False
        self.state = State(self.uses)
        self.run(self.nodes)
        self.finish()
        return self.changed

    def prune(self) -> None:
        """What was placed early may since be served by what was placed later: drop what nothing misses, the last in
        the text first, so that each trial starts where the text before it has led."""
        self.is_final = True
        self.state = State(self.uses)
        reached = []
        for node in self.nodes:
            reached.append(self.state.copy())
            self.run((node,))
        reached.append(self.state)
        firsts = [node.place for node in self.nodes]
        parts: tuple[Part, ...] = ("all", "barrier", "fence", *QUEUES)
        last_first = sorted(self.needs, key=lambda place: (place == END, place), reverse=True)
        for place, part in itertools.product(last_first, parts):
            whole = self.needs[place]
            lighter = _without(whole, part)
            if lighter not in (whole, Needs()) or part == "all":
                self.needs[place] = lighter
                at = len(self.nodes) if place == END else bisect.bisect_right(firsts, place) - 1
                self.state = reached[at].copy()
                try:
                    self.run(self.nodes[at:])
                    self.finish()
                except _Missing:
                    self.needs[place] = whole

    # ---- abstract execution ------------------------------------------------------------------------------------------

    def run(self, nodes: tuple[_Node, ...]) -> None:
        for i, node in enumerate(nodes):
            self.here = range(nodes[0].place, node.place)
            if not isinstance(node.op, _STEERING):
                self.execute(node, nodes[i + 1 :])
                continue
            match node.op:
                case warp.Advance(cursor=cursor):
                    if cursor.name in self.state.positions:
                        self.state.positions[cursor.name] += 1
                case warp.RingRelease(cursor=cursor) | warp.RingFill(cursor=cursor):
                    self.pass_on(node, cursor)
                case warp.TurnWait():
                    self.before_turn(node, nodes[i + 1 :])
                case warp.CpAsyncCommit():
                    self.state.commit()
                case warp.Await():
                    self.wait_here(node, node.op, nodes[i + 1 :])
                case warp.BarSync() | warp.ClusterWait() | warp.GridSync():
                    self.state.meet("role")
                case warp.ProxyFence():
                    self.state.fence()
                case warp.WgmmaWait(pending=pending):
                    self.apply(node.place)
                    self.state.wait("wgmma", pending)
                case warp.Arrive(condition=condition):
                    self.hand_on(node, together=condition is not None)
                case warp.NamedBarrier(waits=waits):
                    self.hand_on(node, together=False)
                    if waits:
                        self.state.meet("role")
                case warp.TensorArrive():
                    self.come_together(node)
                case warp.CopiesArrive():
                    self.execute(node, ())
                    forget_copies(self.state)
                case warp.BarrierWait(barrier=barrier):
                    self.execute(node, ())
                    self.handover.take_over(self.state, barrier.name)
                case warp.Pipeline():
                    self.pipeline(node, node.op)
                case warp.Branch(part="guard", least=least):
                    if self.trip_count >= least:
                        self.run(node.bodies[0])
                        if _is_drained(node.op):
                            self.state.wait("wgmma", 0)
                case warp.Branch():
                    self.execute(node, ())
                    self.before_branch(node, nodes[i + 1 :])
                    other = self.state.copy()
                    self.run(node.bodies[0])
                    self.state, other = other, self.state
                    self.run(node.bodies[1])
                    self.state.join(other)
                case warp.Loop():
                    self.execute(node, ())
                    self.loop(node, node.op)
                case warp.Forever():
                    self.until_stable(node.bodies[0])
                case _:
                    pass

    def before_turn(self, node: _Node, following: tuple[_Node, ...]) -> None:
        """A warpgroup that has its turn waits for no other one: barriers that its turn needs stand before it."""
        self.apply(node.place)
        turn = itertools.takewhile(lambda inner: not isinstance(inner.op, warp.TurnPass), following)
        touched = [(inner, t) for inner in turn for t in inner.touches if t.buffer not in self.fragments]
        conflicts = [
            (record, touch)
            for inner, touch in touched
            for record in self.conflicting(inner, touch, self.key(inner, touch))
        ]
        if conflicts:
            self.demand(node, conflicts, following)
            self.apply(node.place)

    def before_branch(self, node: _Node, following: tuple[_Node, ...]) -> None:
        """Products whose registers are used in the branch and behind it are waited for in front of it: in the branch
        that would be for all that is in flight (see `add_wait`)."""
        behind = {t.buffer for later in following if later.queue is None for t in later.touches}
        touched = [(inner, t) for inner in _flat((node,)) for t in inner.touches if t.buffer in self.fragments & behind]
        for inner, touch in touched:
            for record in self.conflicting(inner, touch, self.key(inner, touch)):
                self.add_wait(self.needed(node.place), record)
                self.apply(node.place)

    def loop(self, node: _Node, op: warp.Loop) -> None:
        """As often as it runs, or, where that is not known, until no further trip adds anything."""
        trips = warp.static_trips(op)
        if trips is None or any(isinstance(inner, warp.Break) for inner in warp.walk(op.body)):
            self.until_stable(node.bodies[0], node)
        else:
            self.repeat(node, trips)

    def trip(self, node: _Node) -> None:
        """The assembler lets no wgmma be in flight from one trip of a loop to the next where threads use its
        accumulator: at the border registers may have to be moved."""
        self.run(node.bodies[0])
        if node.place not in self.emptied and not self.is_final and self.crosses(node):
            self.emptied.add(node.place)
            self.changed = True
        if node.place in self.emptied:
            self.state.wait("wgmma", 0)

    def crosses(self, node: _Node) -> bool:
        """Whether a wgmma of a loop that can be emptied is in flight at the end of a trip, with registers that others
        use in the loop."""
        if not isinstance(node.op, warp.Loop) or not _can_be_emptied(node.op):
            return False
        mixed = _mixed(list(_flat((node,))), (node,), self.fragments)
        return any(record.group and record.place in mixed for record in self.state.all())

    def until_stable(self, body: tuple[_Node, ...], loop: _Node | None = None) -> None:
        """Any number of trips. What a `Break` leaves in flight is among what its trip's end does: it stands last in its
        branch, and what would follow is in the other one (`passes.jumps`), so that the two join at the end."""
        self.state.settle_cursors()
        shape = None
        while shape != (shape := self.state.shape()):
            before = self.state.copy()
            self.run(body) if loop is None else self.trip(loop)
            self.state.join(before)

    def repeat(self, node: _Node, trips: int) -> None:
        """Run the loop's body so many times, but not again through shapes that have come up before."""
        trip = 0
        seen = {self.state.shape(): trip}
        while trip < trips:
            self.trip(node)
            trip += 1
            first = seen.setdefault(self.state.shape(), trip)
            if first < trip:  # from here on it goes round
                for _ in range((trips - trip) % (trip - first)):
                    self.trip(node)
                return

    def pipeline(self, node: _Node, op: warp.Pipeline) -> None:
        """Every trip count that makes a difference."""
        body = node.bodies[0]
        at = next(i for i, inner in enumerate(body) if isinstance(inner.op, warp.Loop) and inner.op.part == "steady")
        before, steady, after = body[:at], body[at].bodies[0], body[at + 1 :]
        drained = _is_drained(body[at].op)
        outer = self.trip_count
        self.state.settle_cursors()
        ends = []
        begun = self.state
        for self.trip_count in range(op.stages + 1):
            self.state = begun.copy()
            self.run(before)
            self.run(after)
            ends.append(self.state)
        self.trip_count = op.stages + 1
        self.state = begun
        self.run(before)
        self.before_steady(body[at])
        seen = set()
        while (shape := self.state.shape()) not in seen:
            seen.add(shape)
            self.run(steady)
            reached = self.state.copy()
            if drained:
                self.state.wait("wgmma", 0)
            self.run(after)
            ends.append(self.state)
            self.state = reached
        self.state = ends[0]
        for end in ends[1:]:
            self.state.join(end)
        self.trip_count = outer

    def before_steady(self, loop: _Node) -> None:
        """What the loop reads and nothing in it writes is waited for once, in front of it."""
        self.apply(loop.place)
        inner = tuple(_flat(loop.bodies[0]))
        written = {touch.buffer for node in inner for touch in node.touches if touch.write}
        conflicts = [
            (record, touch)
            for node in inner
            for touch in node.touches
            if touch.buffer not in written and touch.buffer not in self.fragments
            for record in self.conflicting(node, touch, self.key(node, touch))
        ]
        if conflicts:
            self.demand(loop, conflicts, ())
            self.apply(loop.place)

    def execute(self, node: _Node, following: tuple[_Node, ...]) -> None:
        self.apply(node.place)
        if not node.touches:
            return
        state = self.state
        touched = [(t, self.key(node, t)) for t in node.touches]
        records = state.records
        while conflicts := [(r, t) for t, key in touched if key in records for r in self.conflicting(node, t, key)]:
            self.demand(node, conflicts, following)
            self.apply(node.place)
        group = state.begin(node.queue)
        for touch, key in touched:
            kept = state.records.setdefault(key, [])
            if touch.write and node.queue is None:
                kept.clear()  # whoever conflicts with what came before conflicts with this one first
            if any(r.place == node.place for r in kept):
                kept[:] = [r for r in kept if r.place != node.place or r.touch != touch]
            kept.append(Record(node.place, touch, node.queue, group, "", False))

    def key(self, node: _Node, touch: Touch) -> Key:
        """The buffer and its version: which one, by counting how far the cursor has moved."""
        ring = self.rings.get(touch.buffer)
        if ring is None or ring.depth == 1 or node.cursors[ring.name] not in self.state.positions:
            return (touch.buffer, 0)  # where the kernel says which version it means, they are not told apart
        return (touch.buffer, self.state.positions[node.cursors[ring.name]] % ring.depth)

    def conflicting(self, node: _Node, touch: Touch, key: Key) -> Iterator[Record]:
        for record in self.state.records.get(key, ()):
            commute = record.touch.atomic == touch.atomic != ""
            if commute or not (record.touch.write or touch.write):
                continue
            if touch.buffer in self.fragments:
                # Registers are a thread's own: only operations still in flight matter, and wgmma
                # groups keep their order.
                if record.group and (touch.proxy == "registers" or not (record.queue == node.queue == "wgmma")):
                    yield record
            elif record.group or not has_met(record, touch) or self.unfenced(record, touch):
                yield record

    def unfenced(self, record: Record, touch: Touch) -> bool:
        return touch.proxy == "async" and record.touch.proxy == "generic" and record.touch.write and not record.fenced

    # ---- what is missing ---------------------------------------------------------------------------------------------

    def demand(self, node: _Node, conflicts: list[tuple[Record, Touch]], following: tuple[_Node, ...]) -> None:
        needs = self.needed(node.place)
        before = (dict(needs.waits), needs.fence, needs.barrier)
        for record, touch in conflicts:
            self.add_wait(needs, record)
            if touch.buffer not in self.fragments:
                if needs.barrier != "role":
                    needs.barrier = "warpgroup" if touch.apart else "role"
                needs.fence |= self.unfenced(record, touch)
        if needs.barrier:
            self.look_ahead(needs, following)
        assert before != (needs.waits, needs.fence, needs.barrier), f"{node.op} still conflicts after its waits"

    def needed(self, place: int) -> Needs:
        """What stands in front of an operation, to be added to."""
        if self.is_final:
            raise _Missing
        self.changed = True
        return self.needs.setdefault(place, Needs())

    def add_wait(self, needs: Needs, record: Record) -> None:
        if record.group and record.queue:
            # Where threads use an accumulator, the assembler understands no wait for it but for all, unless the wgmma
            # stands in the same run of operations.
            whole = record.place in self.mixed and record.place not in self.here
            pending = 0 if whole else self.state.pending(record)
            needs.waits[record.queue] = min(needs.waits.get(record.queue, pending), pending)

    def look_ahead(self, needs: Needs, following: tuple[_Node, ...]) -> None:
        """Let this barrier also serve what the next operations of the run will read, up to where a person has said
        what is to be waited for."""
        for node in following:
            if node.bodies or isinstance(node.op, warp.Advance | warp.Await | warp.BarSync | warp.ProxyFence):
                return
            for touch in node.touches:
                if touch.write or touch.buffer in self.fragments:
                    continue
                for record in self.state.records.get(self.key(node, touch), ()):
                    if record.touch.write:
                        self.add_wait(needs, record)
                        needs.fence |= self.unfenced(record, touch)

    def apply(self, place: int) -> None:
        needs = self.needs.get(place)
        if needs is None:
            return
        for queue, pending in needs.waits.items():
            self.state.wait(queue, pending)
        if needs.fence:
            self.state.fence()
        if needs.barrier:
            self.state.meet(needs.barrier)

    def wait_here(self, node: _Node, op: warp.Await, following: tuple[_Node, ...]) -> None:
        """As an access would wait, which leaves no record: nothing has to wait for this one."""
        self.apply(node.place)
        touched = [Touch(name, op.readers) for name in op.tiles]
        conflicts = [(r, t) for t in touched for r in self.conflicting(node, t, self.key(node, t))]
        if op.meet and conflicts:
            self.demand(node, conflicts, following)
            self.apply(node.place)
        for record, _ in () if op.meet else conflicts:
            if record.group:
                self.add_wait(self.needed(node.place), record)
                self.apply(node.place)

    def hand_on(self, node: _Node, together: bool) -> None:
        """What an arrival at a barrier of the kernel's own needs in front of it."""
        self.execute(node, ())
        for record, what in self.handover.demands(self.state, together):
            needs = self.needed(node.place)
            if what == "wait":
                self.add_wait(needs, record)
            elif what == "fence":
                needs.fence = True
            else:
                needs.barrier = "role"
            self.apply(node.place)

    def come_together(self, node: _Node) -> None:
        """One thread speaks for all here, at a barrier that others wait for who will then go on: none of the threads
        may be left waiting for a phase that has gone by."""
        self.execute(node, ())
        if not self.needs.get(node.place, Needs()).barrier:
            self.needed(node.place).barrier = "role"
            self.apply(node.place)

    def pass_on(self, node: _Node, cursor: warp.Cursor) -> None:
        """A version may pass to another role, for the asynchronous proxy to fill or to read, when nothing of this role
        is still under way in it. Whoever touches it next has waited for that, and so for all that is done with it."""
        ring = next(r for r in self.rings.values() if r.name == cursor.ring)
        version = self.state.positions[cursor.name] % ring.depth if ring.depth > 1 else 0
        self.apply(node.place)
        for buffer in ring.buffers:
            for record in self.state.records.get((buffer, version), ()):
                if record.group:
                    self.add_wait(self.needed(node.place), record)
                    self.apply(node.place)
                if record.touch.write and not record.fenced:
                    self.needed(node.place).fence = True
                    self.apply(node.place)
            self.state.records.pop((buffer, version), None)

    def finish(self) -> None:
        """Before the role ends, shared memory must not be read by stores, nor accumulators be in flight."""
        self.apply(END)
        for record in self.state.all():
            if record.group and record.queue in ("bulk", "wgmma"):
                self.needed(END).waits[record.queue] = 0


def has_met(record: Record, touch: Touch) -> bool:
    """Whether who has met since the access is enough for this one. A tile is reached apart by all, or by none."""
    return record.met == "role" or (touch.apart and record.met == "warpgroup")


def _uses(role: warp.Role, rings: dict[str, warp.Ring]) -> Iterator[RingUse]:
    """The rings that this role moves through."""
    moved = dict.fromkeys(op.cursor for op in warp.walk(role.body) if isinstance(op, warp.Advance))
    for ring in dict.fromkeys(rings.values()):
        cursors = tuple(c.name for c in moved if c.ring == ring.name)
        if ring.depth > 1 and cursors:
            yield RingUse(ring.depth, ring.buffers, cursors)


def _can_be_emptied(op: warp.Loop) -> bool:
    """Whether nothing of it need be in flight at the end of a trip: not a steady state, which lives by that, nor a loop
    that is left early."""
    return op.part != "steady" and not any(isinstance(inner, warp.Break) for inner in warp.walk(op.body))


def _mixed(nodes: Sequence[_Node], loops: Sequence[_Node], fragments: set[str]) -> frozenset[int]:
    """The places of the wgmma among `nodes` whose accumulator, or operand in registers, other operations use in one of
    the loops with one."""
    registers = {n.place: {n.op.a.name, n.op.c.name} & fragments for n in nodes if isinstance(n.op, warp.Wgmma)}
    mixed: set[str] = set()
    for loop in loops:
        inner = [n for body in loop.bodies for n in _flat(body)]
        multiplied = {name for n in inner for name in registers.get(n.place, ())}
        mixed |= multiplied & {t.buffer for n in inner if n.place not in registers for t in n.touches}
    return frozenset(place for place, names in registers.items() if names & mixed)


def _handover(nodes: tuple[_Node, ...], by_async: frozenset[str], fragments: set[str]) -> Handover:
    every = [(node.place, node.op) for node in _flat(nodes)] if by_async else []
    later = frozenset(place for place, op in every if isinstance(op, warp.Wgmma) and op.waits_later)
    signals: dict[int, tuple[str, ...]] = {}
    signals |= {p: (op.barrier.name,) for p, op in every if isinstance(op, warp.TmaLoad) and op.barrier is not None}
    committed = tuple(dict.fromkeys(op.barrier.name for _, op in every if isinstance(op, warp.TensorArrive)))
    signals |= {p: committed for p, op in every if isinstance(op, warp.TensorMma | warp.TensorCopy)}
    return Handover(later, signals, by_async, frozenset(fragments))


def _flat(nodes: tuple[_Node, ...]) -> Iterator[_Node]:
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from _flat(body)


def _is_drained(op: warp.Operation) -> bool:
    """Whether no wgmma may be in flight at its end: after the steady state of a pipeline, and in the guards that follow
    it. The assembler does not see that a wait in a guard is skipped only where there is nothing to wait for, and would
    serialise them all."""
    match op:
        case warp.Loop(part="steady") | warp.Branch(part="guard", moment=warp.Moment(part="epilogue")):
            return any(isinstance(inner, warp.Wgmma) for inner in warp.walk((op,)))
        case _:
            return False


def _insert(
    body: tuple[warp.Operation, ...],
    placed: dict[int, Needs],
    emptied: set[int],
    barrier: warp.BarSync,
    counter: _Counter,
    outer: bool = True,
) -> tuple[warp.Operation, ...]:
    new: list[warp.Operation] = []
    for op in body:
        place = counter.next()
        new += (replace(n, moment=op.moment) for n in _before(placed.get(place), barrier, op))
        match op:
            case warp.Loop() | warp.Forever() | warp.Pipeline():
                inside = _insert(op.body, placed, emptied, barrier, counter, False)
                end = (warp.WgmmaWait(0, span=op.span, moment=op.moment),) if place in emptied else ()
                op = replace(op, body=(*inside, *end))
                if isinstance(op, warp.Pipeline):
                    op = replace(op, body=tuple(itertools.chain.from_iterable(map(_drained, op.body))))
            case warp.BarSync():
                op = replace(barrier, moment=op.moment, span=op.span)
            case warp.Branch():
                then = _insert(op.then, placed, emptied, barrier, counter, False)
                op = replace(op, then=then, orelse=_insert(op.orelse, placed, emptied, barrier, counter, False))
            case _:
                pass
        new.append(op)
    if outer:
        new += _before(placed.get(END), barrier, None)
    return tuple(new)


def _drained(piece: warp.Operation) -> tuple[warp.Operation, ...]:
    """A piece of a pipeline, and the wait that `_is_drained` asks for."""
    if not _is_drained(piece):
        return (piece,)
    wait = warp.WgmmaWait(0, span=piece.span)
    if isinstance(piece, warp.Branch):
        return (replace(piece, then=(*piece.then, wait)),)
    return (piece, wait)


def _before(needs: Needs | None, barrier: warp.BarSync, op: warp.Operation | None) -> Iterator[warp.Operation]:
    if needs is None:
        return
    span = NOWHERE if op is None else op.span
    waits = {"cp_async": warp.CpAsyncWait, "wgmma": warp.WgmmaWait, "bulk": warp.BulkWait}
    for queue in QUEUES:
        if queue in needs.waits:
            yield waits[queue](needs.waits[queue], span=span)
    if needs.fence:
        yield warp.ProxyFence(span=span)
    if needs.barrier:
        yield (
            replace(barrier, span=span) if needs.barrier == "role" else warp.WarpgroupSync(warp.FIRST_APART, span=span)
        )
