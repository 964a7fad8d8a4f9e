"""Place every wait, fence and barrier inside each role, from what its operations touch and how they complete.

The role is executed abstractly, loops a few times over, with a record of each shared-memory access: who made it,
whether it has completed, whether a barrier has passed since. When an operation conflicts with an earlier one, what
is missing between them is placed in front of it: the wait of the mechanism that the earlier one uses (counted in
that mechanism's own groups), a proxy fence where ordinary writes meet the asynchronous proxy, a barrier where other
threads are concerned. Placements belong to operations of the program text, so that they hold in every trip of a
loop; the walk repeats until nothing is missing.

A barrier is dear and an early wait is cheap, so a barrier placed in a run of operations also waits for what the
operations after it in that run will need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from tilec.ir import warp
from tilec.ir.tile import Const, Load, Store, walk_expr
from tilec.ir.tile import walk as walk_tile
from tilec.passes.usage import expressions
from tilec.source import NOWHERE

Queue = Literal["cp_async", "wgmma", "bulk"]
QUEUES: tuple[Queue, ...] = ("cp_async", "wgmma", "bulk")


@dataclass(frozen=True, slots=True)
class Touch:
    """One access: a tensor, a shared tile or a fragment, by name. Atomic ones need no order among themselves."""

    buffer: str
    write: bool
    proxy: Literal["generic", "async", "registers"] = "generic"
    atomic: bool = False


def touches(op: warp.Operation) -> tuple[tuple[Touch, ...], Queue | None]:
    """What an operation accesses, and the queue in which it completes (None: in program order)."""
    mine, queue = _touches(op)
    return mine + tuple(Touch(name, False) for name in warp.scalar_reads(op)), queue


def _touches(op: warp.Operation) -> tuple[tuple[Touch, ...], Queue | None]:
    match op:
        case warp.Elementwise(nest=nest):
            found: list[Touch] = []
            for stmt in walk_tile(nest.body):
                for expr in expressions(stmt):
                    found += [Touch(e.buffer.name, False) for e in walk_expr(expr) if isinstance(e, Load)]
                if isinstance(stmt, Store):
                    found.append(Touch(stmt.buffer.name, True, atomic=stmt.atomic is not None))
            return tuple(dict.fromkeys(found)), None
        case warp.CpAsync(source=s, destination=d):
            return (Touch(s.buffer.name, False), Touch(d.name, True)), "cp_async"
        case warp.TmaLoad():
            return (), None  # ordered by its ring's barriers alone
        case warp.TmaStore(source=s):
            return (Touch(s.name, False, "async"),), "bulk"
        case warp.StoreMatrix(source=s, destination=d):
            return (Touch(s.name, False), Touch(d.name, True)), None
        case warp.Mma(a=a, b=b, c=c):
            return (Touch(a.name, False), Touch(b.name, False), Touch(c.name, True)), None
        case warp.Wgmma(a=a, b=b, c=c):
            # From a fragment, registers of their own are filled anew each time: one group at a time may read them.
            packs = a.scope == "fragment"
            return (
                Touch(a.name, packs, "registers" if packs else "async"),
                Touch(b.name, False, "async"),
                Touch(c.name, True),
            ), "wgmma"
        case warp.Reduce(source=s, destination=d, scratch=scratch):
            own = () if scratch is None else (Touch(scratch.name, True),)
            return (Touch(s.name, False), Touch(d.name, True), *own), None
        case _:
            return (), None


@dataclass(slots=True)
class Needs:
    """What must stand in front of one operation of the text."""

    waits: dict[Queue, int] = field(default_factory=dict)
    fence: bool = False
    barrier: bool = False


Part = Literal["all", "barrier", "fence"] | Queue


def _without(needs: Needs, part: Part) -> Needs:
    match part:
        case "all":
            return Needs()
        case "barrier":
            return replace(needs, barrier=False)
        case "fence":
            return replace(needs, fence=False)
        case _:
            return replace(needs, waits={q: n for q, n in needs.waits.items() if q != part})


@dataclass(slots=True)
class Record:
    """An access that a later operation may conflict with. `group` is its place in its queue until it has completed;
    `epoch` counts the barriers passed when it completed."""

    place: int
    touch: Touch
    queue: Queue | None
    group: int
    epoch: int
    fenced: bool


def synchronise(program: warp.Program) -> warp.Program:
    rings = {b: ring for ring in program.rings for b in ring.buffers}
    fragments = {b.name for b, _ in program.fragments}
    roles = []
    for number, role in enumerate(program.roles):
        placed = _Role(role, rings, fragments).place()
        barrier = warp.BarSync(0 if len(program.roles) == 1 else 1 + number, role.threads)
        roles.append(replace(role, body=_insert(role.body, placed, barrier, _Counter())))
    return replace(program, roles=tuple(roles))


class _Counter:
    """A running number, the same in the walk and in the rewriting."""

    def __init__(self) -> None:
        self.value = -1

    def next(self) -> int:
        self.value += 1
        return self.value


@dataclass(frozen=True, slots=True)
class _Node:
    """An operation of the text with its number and, for structured ones, its numbered bodies."""

    place: int
    op: warp.Operation
    bodies: tuple[tuple[_Node, ...], ...]


def _number(body: tuple[warp.Operation, ...], counter: _Counter) -> tuple[_Node, ...]:
    nodes = []
    for op in body:
        place = counter.next()
        nodes.append(_Node(place, op, tuple(_number(b, counter) for b in warp.nested(op))))
    return tuple(nodes)


@dataclass(slots=True)
class _State:
    """Where the abstract execution stands: see `_Role`."""

    records: dict[tuple[str, int], list[Record]]
    issued: dict[Queue, int]
    epoch: int
    position: dict[str, int]


Scenario = dict[int, tuple[int, int]]
"""The trip counts of each pipeline whose count is not known: when it is entered first, and when it is entered again."""


def _scenarios(pipelines: list[tuple[int, int, bool]], many: int) -> Iterator[Scenario]:
    """Every trip count up to one more than the stages, and many; two in turn where a loop repeats the pipeline. One
    pipeline is varied at a time, all others being skipped or long."""
    if not pipelines:
        yield {}
    for others in (0, many) if len(pipelines) > 1 else (0,):
        rest = {place: (n := others and stages + others, n) for place, stages, _ in pipelines}
        for place, stages, repeated in pipelines:
            counts = [*range(stages + 2), stages + many]
            for first in counts:
                for second in counts if repeated else (first,):
                    yield {**rest, place: (first, second)}


END = -1  # the place after the role's last operation


class _Role:
    def __init__(self, role: warp.Role, rings: dict[str, warp.Ring], fragments: set[str]) -> None:
        self.rings, self.fragments = rings, fragments
        self.nodes = _number(role.body, _Counter())
        depths = [r.depth for r in rings.values()]
        period = math.lcm(*depths)
        self.trips = period * -(-(max(depths, default=1) + 2) // period)
        self.needs: dict[int, Needs] = {}
        self.changed = False
        self.stages: dict[int, int] = {}
        pipelines = list(self.pipelines(self.nodes, False))
        self.scenarios = list(_scenarios(pipelines, self.trips))

    def pipelines(self, nodes: tuple[_Node, ...], repeated: bool) -> Iterator[tuple[int, int, bool]]:
        """Place and last stage of each pipeline whose trip count is not known, and whether a loop repeats it."""
        for node in nodes:
            if isinstance(node.op, warp.Pipeline):
                yield node.place, node.op.stages, repeated
                for inner in node.bodies[0]:
                    self.stages[inner.place] = node.op.stages
            for body in node.bodies:
                yield from self.pipelines(body, repeated or isinstance(node.op, warp.Loop))

    def settle(self, node: _Node) -> None:
        """The assembler does not see that a skipped pipeline leaves no wgmma in flight: tell it once, after all."""
        if any(isinstance(op, warp.Wgmma) for op in warp.walk((node.op,))):
            self.complete("wgmma", self.issued["wgmma"])

    def place(self) -> dict[int, Needs]:
        while self.sweep():
            pass
        self.prune()
        return self.needs

    def sweep(self) -> bool:
        """Execute the role in every scenario, and say whether something was missing; the needs hold it now."""
        self.changed = False
        for scenario in self.scenarios:
            self.execute_role(scenario)
        return self.changed

    def execute_role(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.entered: dict[int, int] = {}
        self.trip_count = 0
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.issued: dict[Queue, int] = dict.fromkeys(QUEUES, 0)
        self.epoch = 0
        self.position: dict[str, int] = {}
        self.run(self.nodes)
        self.finish()

    def prune(self) -> None:
        """What was placed early may since be served by what was placed later: drop what nothing misses, the last in
        the text first."""
        parts: tuple[Part, ...] = ("all", "barrier", "fence", *QUEUES)
        for place, part in itertools.product(sorted(self.needs, reverse=True), parts):
            lighter = _without(self.needs[place], part)
            if lighter != self.needs[place]:
                before = {p: replace(n, waits=dict(n.waits)) for p, n in self.needs.items()}
                self.needs[place] = lighter
                if self.sweep():
                    self.needs = before

    # ---- abstract execution ----

    def run(self, nodes: tuple[_Node, ...]) -> None:
        for i, node in enumerate(nodes):
            if warp.scalar_reads(node.op) and isinstance(node.op, warp.Let | warp.Loop | warp.Branch):
                self.execute(node, ())
            match node.op:
                case warp.Loop():
                    self.loop(node, node.op)
                case warp.Pipeline():
                    entered = self.entered.get(node.place, 0)
                    self.entered[node.place] = entered + 1
                    self.trip_count = self.scenario[node.place][entered % 2]
                    self.run(node.bodies[0])
                    self.settle(node)
                case warp.Branch(part="guard", least=least):
                    if self.trip_count >= least:
                        self.run(node.bodies[0])
                case warp.Branch():
                    before = self.snapshot()
                    self.run(node.bodies[0])
                    after = self.snapshot()
                    self.restore(before)
                    self.run(node.bodies[1])
                    self.merge(after)
                case warp.Advance(cursor=cursor):
                    self.position[cursor.name] = self.position.get(cursor.name, 0) + 1
                case warp.RingRelease(cursor=cursor):
                    self.release(node, cursor)
                case warp.RingWait() | warp.RingAcquire() | warp.Let() | warp.CpAsyncCommit():
                    pass
                case _:
                    self.execute(node, nodes[i + 1 :])

    def loop(self, node: _Node, op: warp.Loop) -> None:
        """A steady state runs for as many trips as the scenario says; any other loop for two, or not at all."""
        if op.part == "steady":
            static = isinstance(op.start, Const) and isinstance(op.stop, Const)
            for _ in range(self.trips if static else self.trip_count - self.stages[node.place]):
                self.run(node.bodies[0])
            return
        before = self.snapshot()
        for _ in range(2):
            self.run(node.bodies[0])
        runs = isinstance(op.start, Const) and isinstance(op.stop, Const) and op.start.value < op.stop.value
        if not runs:
            self.merge(before)

    def snapshot(self) -> _State:
        records = {key: [replace(r) for r in kept] for key, kept in self.records.items()}
        return _State(records, dict(self.issued), self.epoch, dict(self.position))

    def restore(self, state: _State) -> None:
        self.records, self.issued, self.epoch, self.position = state.records, state.issued, state.epoch, state.position

    def merge(self, other: _State) -> None:
        """What may hold where two paths meet: the accesses of both, each as far from its path's end as it is."""
        for queue in QUEUES:
            # Counted on from the path that issued more, no group in flight gets a number that means it is done.
            self.shift(queue, max(0, other.issued[queue] - self.issued[queue]))
        for key, kept in other.records.items():
            mine = self.records.setdefault(key, [])
            for record in kept:
                group = record.group
                if group and record.queue:
                    group += self.issued[record.queue] - other.issued[record.queue]
                recent = record.epoch == other.epoch
                moved = replace(record, group=group, epoch=self.epoch if recent else min(record.epoch, self.epoch - 1))
                if moved not in mine:
                    mine.append(moved)

    def shift(self, queue: Queue, count: int) -> None:
        """Renumber the groups of this path as if `count` more had been issued before them."""
        self.issued[queue] += count
        for records in self.records.values():
            for record in records:
                if record.queue == queue and record.group:
                    record.group += count

    def execute(self, node: _Node, following: tuple[_Node, ...]) -> None:
        mine, queue = touches(node.op)
        self.apply(node.place)
        while True:
            conflicts = [(r, t) for t in mine for r in self.conflicting(node, t, queue)]
            if not conflicts:
                break
            self.demand(node, conflicts, following)
            self.apply(node.place)
        group = 0
        if queue is not None:
            self.issued[queue] += 1
            group = self.issued[queue]
        for touch in mine:
            key = self.key(node.op, touch)
            kept = self.records.setdefault(key, [])
            if touch.write and queue is None:
                kept.clear()  # whoever conflicts with what came before conflicts with this one first
            kept[:] = [r for r in kept if r.place != node.place or r.touch != touch]
            kept.append(Record(node.place, touch, queue, group, self.epoch, False))

    def key(self, op: warp.Operation, touch: Touch) -> tuple[str, int]:
        """The buffer and its version: which one, by counting how far the cursor has moved."""
        ring = self.rings.get(touch.buffer)
        if ring is None or ring.depth == 1:
            return (touch.buffer, 0)
        cursor = next(c for c in op.cursors if c.ring == ring.name)
        return (touch.buffer, self.position.get(cursor.name, 0) % ring.depth)

    def conflicting(self, node: _Node, touch: Touch, queue: Queue | None) -> Iterator[Record]:
        for record in self.records.get(self.key(node.op, touch), ()):
            if not (record.touch.write or touch.write) or (record.touch.atomic and touch.atomic):
                continue
            if touch.buffer in self.fragments:
                # Registers are a thread's own: only operations still in flight matter, and wgmma
                # groups keep their order.
                if record.group and (touch.proxy == "registers" or not (record.queue == queue == "wgmma")):
                    yield record
            elif self.owned(touch):
                if record.group:
                    yield record
            elif record.group or record.epoch == self.epoch or self.unfenced(record, touch):
                yield record

    def owned(self, touch: Touch) -> bool:
        """Rings with mbarriers order their roles; only the consumer's own completion is left to wait for."""
        ring = self.rings.get(touch.buffer)
        return ring is not None and ring.has_barriers

    def unfenced(self, record: Record, touch: Touch) -> bool:
        return touch.proxy == "async" and record.touch.proxy == "generic" and record.touch.write and not record.fenced

    def demand(self, node: _Node, conflicts: list[tuple[Record, Touch]], following: tuple[_Node, ...]) -> None:
        needs = self.needs.setdefault(node.place, Needs())
        before = (dict(needs.waits), needs.fence, needs.barrier)
        for record, touch in conflicts:
            self.add_wait(needs, record)
            if touch.buffer not in self.fragments and not self.owned(touch):
                needs.barrier = True
                needs.fence |= self.unfenced(record, touch)
        if needs.barrier:
            self.look_ahead(needs, following)
        assert before != (needs.waits, needs.fence, needs.barrier), f"{node.op} still conflicts after its waits"
        self.changed = True

    def add_wait(self, needs: Needs, record: Record) -> None:
        if record.group and record.queue:
            pending = self.issued[record.queue] - record.group
            needs.waits[record.queue] = min(needs.waits.get(record.queue, pending), pending)

    def look_ahead(self, needs: Needs, following: tuple[_Node, ...]) -> None:
        """Let this barrier also serve what the next operations of the run will read."""
        for node in following:
            if warp.nested(node.op) or isinstance(node.op, warp.Advance):
                return
            mine, _ = touches(node.op)
            for touch in mine:
                if touch.write or touch.buffer in self.fragments or self.owned(touch):
                    continue
                for record in self.records.get(self.key(node.op, touch), ()):
                    if record.touch.write:
                        self.add_wait(needs, record)
                        needs.fence |= self.unfenced(record, touch)

    def apply(self, place: int) -> None:
        needs = self.needs.get(place)
        if needs is None:
            return
        for queue, pending in needs.waits.items():
            self.complete(queue, self.issued[queue] - pending)
        for records in self.records.values():
            for record in records:
                if needs.fence and not record.group:
                    record.fenced = True
        if needs.barrier:
            self.epoch += 1

    def complete(self, queue: Queue, group: int) -> None:
        """All groups up to `group` are done."""
        for records in self.records.values():
            for record in records:
                if record.queue == queue and 0 < record.group <= group:
                    record.group = 0
                    record.epoch = self.epoch

    def release(self, node: _Node, cursor: warp.Cursor) -> None:
        """A version may be handed back when nothing of this role still reads it."""
        ring = next(r for r in self.rings.values() if r.name == cursor.ring)
        version = self.position.get(cursor.name, 0) % ring.depth
        self.apply(node.place)
        for buffer in ring.buffers:
            for record in self.records.get((buffer, version), ()):
                if record.group:
                    needs = self.needs.setdefault(node.place, Needs())
                    self.add_wait(needs, record)
                    self.changed = True
                    self.apply(node.place)

    def finish(self) -> None:
        """Before the role ends, shared memory must not be read by stores, nor accumulators be in flight."""
        self.apply(END)
        for records in self.records.values():
            for record in records:
                if record.group and record.queue in ("bulk", "wgmma"):
                    needs = self.needs.setdefault(END, Needs())
                    needs.waits[record.queue] = 0
                    self.changed = True


def _insert(
    body: tuple[warp.Operation, ...],
    placed: dict[int, Needs],
    barrier: warp.BarSync,
    counter: _Counter,
    outer: bool = True,
) -> tuple[warp.Operation, ...]:
    new: list[warp.Operation] = []
    for op in body:
        new += _before(placed.get(counter.next()), barrier, op)
        match op:
            case warp.Loop() | warp.Pipeline():
                op = replace(op, body=_insert(op.body, placed, barrier, counter, False))
            case warp.Branch():
                then = _insert(op.then, placed, barrier, counter, False)
                op = replace(op, then=then, orelse=_insert(op.orelse, placed, barrier, counter, False))
            case _:
                pass
        new.append(op)
        if isinstance(op, warp.Pipeline) and any(isinstance(inner, warp.Wgmma) for inner in warp.walk(op.body)):
            new.append(warp.WgmmaWait(0, span=op.span))  # see `_Role.settle`
    if outer:
        new += _before(placed.get(END), barrier, None)
    return tuple(new)


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
        yield replace(barrier, span=span)
