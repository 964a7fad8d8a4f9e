"""What a role has under way at one place of its program: which accesses to its tiles may still meet a later one.

A `State` is where an abstract execution stands. What matters of it is relative: how many groups a queue has begun since
an access, whether a barrier has passed, how far the versions of a ring lie from the cursors. `State.shape` is just
that, so that two states of the same shape have the same future, and a loop need not be run longer than until its
state's shape returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from tilec.passes.lower.areas import ANYWHERE, LONG_AGO, Area, Frame, are_disjoint, behind
from tilec.passes.lower.owners import Owner
from tilec.support import records
from tilec.support.records import dataclass

BarrierScope = Literal["", "warpgroup", "role"]
"""Who has met at a barrier: nobody, the threads of each warpgroup, or all threads of the role."""

Queue = Literal["cp_async", "wgmma", "bulk"]
QUEUES: tuple[Queue, ...] = ("cp_async", "wgmma", "bulk")

Key = tuple[str, int]
"""A tile and which version of it."""

BY_TMA = "tma"
"""How copies that signal a barrier combine: their order among themselves is for the kernel to say."""
BY_TENSOR_CORES = "tensor cores"
"""How products into tensor memory combine: one after the other, as they were asked for."""

COMPLETE, UNCOMMITTED = -1, -2  # in place of how many groups are newer

MOST_PENDING = 32  # groups: more are not counted apart, and waited for as if they were as many


@records.dataclass(frozen=True, slots=True)
class Touch:
    """One access: a shared tile, a fragment or a tensor, by name. `atomic` is the combination that it makes, whose
    accesses need no order among themselves. What lies in tensor memory ("tensor") no proxy fence orders.
    `per_warpgroup`: each warpgroup reaches a part of its own, so that it need only meet itself. `owner` says which
    thread reaches each element: accesses of one owner are each thread's own. `area` is the part of a tensor, where that
    matters."""

    buffer: str
    write: bool
    proxy: Literal["generic", "async", "registers", "tensor"] = "generic"
    atomic: str = ""
    per_warpgroup: bool = False
    owner: Owner | None = None
    area: Area | None = None


@dataclass(slots=True)
class Record:
    """An access that a later operation may conflict with. `group` is its place in its queue until it has completed,
    then 0; `met` says who has met since it began, or since it completed if that was later. `age` counts the iterations
    since, where its touch has an area and it may matter."""

    place: int
    touch: Touch
    queue: Queue | None
    group: int
    met: BarrierScope
    fenced: bool
    age: int = ANYWHERE

    def copy(self) -> Record:
        return Record(self.place, self.touch, self.queue, self.group, self.met, self.fenced, self.age)

    @property
    def is_settled(self) -> bool:
        """Whether it is complete, and all threads have met since."""
        return not self.group and self.met == "role"

    def is_same(self, touch: Touch) -> bool:
        """Whether it reached just what the touch does now."""
        return self.touch == touch and (touch.area is None or self.age == 0)

    def is_elsewhere(self, touch: Touch, frame: Frame | None) -> bool:
        """Whether it reached another part of the tensor than the touch does now."""
        if self.age == ANYWHERE or self.touch.area is None or touch.area is None:
            return False
        return are_disjoint(self.touch.area, self.age, touch.area, frame)


@records.dataclass(frozen=True, slots=True)
class RingUse:
    """A ring as one role sees it: how many versions there are, of which tiles, and the role's cursors in it."""

    depth: int
    buffers: tuple[str, ...]
    cursors: tuple[str, ...]


def _unlike(kept: Iterable[Record]) -> list[Record]:
    """Without those that have become like another one since they were told apart."""
    return list({(r.place, r.touch, r.queue, r.group, r.met, r.fenced, r.age): r for r in kept}.values())


class State:
    """See the module. `uses` are the rings of more than one version, `positions` how far each cursor has moved.
    `fenced` are the tiles for which proxy fences matter: of all others, and of these once they are fenced, accesses
    that are settled are forgotten; None where everything is kept."""

    def __init__(self, uses: tuple[RingUse, ...], fenced: frozenset[str] | None = None) -> None:
        self.uses, self.fenced = uses, fenced
        self.use_of = {b: use for use in uses for b in use.buffers}
        self.records: dict[Key, list[Record]] = {}
        self.issued: dict[Queue, int] = dict.fromkeys(QUEUES, 0)
        self.positions = {c: 0 for use in uses for c in use.cursors}
        self.frame: Frame | None = None  # the loop that the role is in

    def copy(self) -> State:
        new = State.__new__(State)
        new.uses, new.use_of, new.fenced = self.uses, self.use_of, self.fenced
        new.records = {key: [r.copy() for r in kept] for key, kept in self.records.items()}
        new.issued, new.positions, new.frame = dict(self.issued), dict(self.positions), self.frame
        return new

    # ---- what happens ------------------------------------------------------------------------------------------------

    def begin(self, queue: Queue | None) -> int:
        """The group that an operation of this queue belongs to; 0 for one that completes at once. Copies by cp.async
        gather in a group until it is committed; others are each a group of their own."""
        if queue is None:
            return 0
        if queue == "cp_async":
            return self.issued[queue] + 1
        self.issued[queue] += 1
        return self.issued[queue]

    def commit(self) -> None:
        self.issued["cp_async"] += 1

    def pending(self, record: Record) -> int:
        """How many groups of the record's queue may be left in flight by a wait that covers it."""
        assert record.queue is not None
        assert record.group <= self.issued[record.queue], "what is waited for is in a group that is still open"
        return min(self.issued[record.queue] - record.group, MOST_PENDING)

    def is_open(self, record: Record) -> bool:
        """Whether its group is not committed yet."""
        return record.queue is not None and record.group > self.issued[record.queue]

    def wait(self, queue: Queue, pending: int) -> None:
        last = self.issued[queue] - pending
        for kept in self.records.values():
            for record in kept:
                if 0 < record.group <= last and record.queue == queue:
                    record.group, record.met = 0, ""

    def fence(self) -> None:
        for record in self.all():
            if not record.group:
                record.fenced = True
        self.forget()

    def after_barrier(self, who: BarrierScope) -> None:
        for record in self.all():
            if record.met != "role":
                record.met = who
        self.forget()

    def forget(self) -> None:
        """The accesses that no later one can conflict with."""
        if self.fenced is None:
            return
        for key, kept in self.records.items():
            if any(r.is_settled for r in kept):
                never = key[0] not in self.fenced
                self.records[key] = [r for r in kept if not (r.is_settled and (never or r.fenced))]

    def enter(self, frame: Frame) -> None:
        self.frame = frame
        for record in self.all():
            record.age = min(record.age, 0)

    def next_iteration(self) -> None:
        for key, kept in self.records.items():
            if all(record.age == ANYWHERE for record in kept):
                continue
            for record in kept:
                if record.age != ANYWHERE:
                    record.age = ANYWHERE if record.is_settled else min(record.age + 1, LONG_AGO)
            self.records[key] = _unlike(kept)

    def leave(self) -> None:
        """Where what the loop has reached is from now on does not depend on it."""
        assert self.frame is not None, "a loop is left that was not entered"
        for record in self.all():
            if record.age != ANYWHERE and record.touch.area is not None:
                found = behind(record.touch.area, record.age, self.frame)
                record.touch, record.age = replace(record.touch, area=found), ANYWHERE if found is None else 0
        self.frame = None

    def all(self) -> Iterator[Record]:
        for kept in self.records.values():
            yield from kept

    # ---- comparing and joining ---------------------------------------------------------------------------------------

    def shape(self) -> object:
        """What decides the future: equal for two states that will demand the same."""
        moved = {use: self.positions[use.cursors[0]] for use in self.uses}
        found = set()
        for (buffer, version), kept in self.records.items():
            use = self.use_of.get(buffer)
            away = version if use is None else (version - moved[use]) % use.depth
            for r in kept:
                distance = COMPLETE if not r.group else UNCOMMITTED if self.is_open(r) else self.pending(r)
                found.add((buffer, away, r.place, r.touch, distance, "" if r.group else r.met, r.fenced, r.age))
        distances = tuple((self.positions[c] - moved[use]) % use.depth for use in self.uses for c in use.cursors)
        return frozenset(found), distances

    def standing(self) -> object:
        """Equal for two states of which one may take the other's place, as none of their versions has another name."""
        positions = tuple(self.positions[c] % use.depth for use in self.uses for c in use.cursors)
        return self.shape(), positions

    def settle_cursors(self) -> None:
        """Count versions from the cursors, wherever those of a ring stand together: as at the ends of its pipeline."""
        for use in self.uses:
            moved = self.positions[use.cursors[0]] % use.depth
            if not moved or any(self.positions[c] % use.depth != moved for c in use.cursors):
                continue
            for buffer in use.buffers:
                kept = [self.records.pop((buffer, (v + moved) % use.depth), []) for v in range(use.depth)]
                self.records |= {(buffer, v): found for v, found in enumerate(kept) if found}
            self.positions |= dict.fromkeys(use.cursors, 0)

    def join(self, other: State) -> None:
        """What may hold where two paths meet: the accesses of both, each as far from its path's end as it is."""
        self.settle_cursors()
        other.settle_cursors()
        for queue in QUEUES:
            # Counted on from the path that began more, no group in flight gets a number that means it is done.
            self._renumber(queue, max(0, other.issued[queue] - self.issued[queue]))
        for key, kept in other.records.items():
            mine = self.records[key] = _unlike(self.records.get(key, ()))
            of_place: dict[int, list[Record]] = {}
            for record in mine:
                of_place.setdefault(record.place, []).append(record)
            for record in kept:
                moved = record.copy()
                if record.group and record.queue:
                    moved.group += self.issued[record.queue] - other.issued[record.queue]
                same = of_place.setdefault(record.place, [])
                if not self._covers(same, moved):
                    same.append(moved)
                    mine.append(moved)

    def _covers(self, kept: list[Record], new: Record) -> bool:
        """Whether one of these records of the same place stands for the new one: of two records of one access, the one
        later in its queue asks for more."""
        for old in kept:
            if old.fenced != new.fenced or old.age != new.age or old.touch != new.touch:
                continue
            if old.group and new.group:
                old.group = max(old.group, new.group)
                return True
            if not old.group and not new.group and old.met == new.met:
                return True
        return False

    def _renumber(self, queue: Queue, count: int) -> None:
        """Number the groups of this path as if `count` more had been begun before them."""
        if count:
            self.issued[queue] += count
            for record in self.all():
                if record.queue == queue and record.group:
                    record.group += count
