"""The scoreboard of a role: its accesses to tiles that a later access may still conflict with.

A `RoleState` is a state of the abstract execution. Its future depends on relative facts: how many groups a queue has
begun since an access, whether a barrier has passed, how far the versions of a ring are from the cursors.
`RoleState.shape` is just these, so states of equal shape have the same future, and a loop is run only until its state's
shape recurs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from tilec.passes.lower.waits.tensor_areas import (
    MAX_AGE,
    UNKNOWN_AGE,
    LoopFrame,
    Owner,
    TensorArea,
    are_disjoint,
    find_area_after_loop,
)
from tilec.support.records import dataclass

BarrierScope = Literal["", "warpgroup", "role"]
"""The threads that had a barrier: none, those of each warpgroup, or all of the role."""

Queue = Literal["cp_async", "wgmma", "bulk"]
QUEUES: tuple[Queue, ...] = ("cp_async", "wgmma", "bulk")

VersionKey = tuple[str, int]
"""A tile and the number of its version."""

TMA_ORDER = "tma"
"""Combination of copies that signal a barrier: the kernel orders them."""
THREAD_COPY_ORDER = "thread copies"
"""Combination of copies by single threads, T.ptx_cp_async: the kernel orders them."""
TENSOR_CORE_ORDER = "tensor cores"
"""Combination of products into tensor memory: they complete in order of issue."""

COMPLETE, UNCOMMITTED = -1, -2  # instead of the number of newer groups

MAX_PENDING = 32  # groups: more are waited for as if they were as many


@dataclass(frozen=True, slots=True)
class Touch:
    """An access to a shared tile, a fragment or a tensor, by name. Accesses with the same `atomic` combination need no
    order among themselves. No proxy fence orders tensor memory ("tensor"). `per_warpgroup`: each warpgroup reaches its
    own part, and needs barriers only of its own. `owner` gives the thread of each element: accesses of equal owners are
    each thread's own. `area` is the part of a tensor, where that matters."""

    buffer: str
    write: bool
    proxy: Literal["generic", "async", "registers", "tensor"] = "generic"
    atomic: str = ""
    per_warpgroup: bool = False
    owner: Owner | None = None
    area: TensorArea | None = None


@dataclass(slots=True)
class AccessRecord:
    """An access that a later operation may conflict with. `group` is its number in its queue until it has completed,
    then 0. `met` is the barrier since it began, or since it completed if that was later. `age` counts the iterations
    since, where its touch has an area."""

    place: int
    touch: Touch
    queue: Queue | None
    group: int
    met: BarrierScope
    fenced: bool
    age: int = UNKNOWN_AGE

    def copy(self) -> AccessRecord:
        return AccessRecord(self.place, self.touch, self.queue, self.group, self.met, self.fenced, self.age)

    @property
    def is_settled(self) -> bool:
        """Return True if the access is complete, and all threads of the role have met at a barrier since."""
        return not self.group and self.met == "role"

    def is_same(self, touch: Touch) -> bool:
        """Return True if the recorded access has this touch and, with an area, was made in the current iteration."""
        return self.touch == touch and (touch.area is None or self.age == 0)

    def is_elsewhere(self, touch: Touch, frame: LoopFrame | None) -> bool:
        """Return True if the access certainly reached another area of the tensor than the touch does now."""
        if self.age == UNKNOWN_AGE or self.touch.area is None or touch.area is None:
            return False
        return are_disjoint(self.touch.area, self.age, touch.area, frame)


@dataclass(frozen=True, slots=True)
class RingUse:
    """A ring as one role uses it: the number of versions, their tiles, and the role's cursors."""

    depth: int
    buffers: tuple[str, ...]
    cursors: tuple[str, ...]


def _drop_duplicates(kept: Iterable[AccessRecord]) -> list[AccessRecord]:
    """Return the records with only one of those that are equal."""
    return list({(r.place, r.touch, r.queue, r.group, r.met, r.fenced, r.age): r for r in kept}.values())


class RoleState:
    """The state of an abstract execution. `uses` are the rings of more than one version, `positions` how far each
    cursor has moved. `fenced` are the tiles for which proxy fences matter: settled accesses to all others are
    forgotten, and to these once they are fenced. None: nothing is forgotten."""

    def __init__(self, uses: tuple[RingUse, ...], fenced: frozenset[str] | None = None) -> None:
        self.uses, self.fenced = uses, fenced
        self.use_of = {b: use for use in uses for b in use.buffers}
        self.records: dict[VersionKey, list[AccessRecord]] = {}
        self.issued: dict[Queue, int] = dict.fromkeys(QUEUES, 0)
        self.positions = {c: 0 for use in uses for c in use.cursors}
        self.frame: LoopFrame | None = None  # the current loop

    def copy(self) -> RoleState:
        """Return a copy of the state whose records change independently."""
        new = RoleState.__new__(RoleState)
        new.uses, new.use_of, new.fenced = self.uses, self.use_of, self.fenced
        new.records = {key: [r.copy() for r in kept] for key, kept in self.records.items()}
        new.issued, new.positions, new.frame = dict(self.issued), dict(self.positions), self.frame
        return new

    def begin(self, queue: Queue | None) -> int:
        """Begin an operation in this queue and return its group's number; 0 for one without a queue, which completes
        at once. Copies by cp.async share a group until it is committed; others are each a group of their own."""
        if queue is None:
            return 0
        if queue == "cp_async":
            return self.issued[queue] + 1
        self.issued[queue] += 1
        return self.issued[queue]

    def commit(self) -> None:
        """Close the current group of cp.async copies, so that later copies are in the next one."""
        self.issued["cp_async"] += 1

    def count_pending(self, record: AccessRecord) -> int:
        """Return how many newer groups a wait for this record may leave in flight, at most `MAX_PENDING`."""
        assert record.queue is not None
        assert record.group <= self.issued[record.queue], "what is waited for is in a group that is still open"
        return min(self.issued[record.queue] - record.group, MAX_PENDING)

    def is_open(self, record: AccessRecord) -> bool:
        """Return True if the record is a cp.async copy whose group is not committed yet."""
        return record.queue is not None and record.group > self.issued[record.queue]

    def record_wait(self, queue: Queue, pending: int) -> None:
        """Mark the records of a queue's groups as complete, except those of the last `pending` groups."""
        last = self.issued[queue] - pending
        for kept in self.records.values():
            for record in kept:
                if 0 < record.group <= last and record.queue == queue:
                    record.group, record.met = 0, ""

    def record_fence(self) -> None:
        """Mark all completed accesses as fenced, so that the asynchronous proxy sees them; forget settled ones."""
        for record in self.list_records():
            if not record.group:
                record.fenced = True
        self.forget_settled()

    def pass_barrier(self, who: BarrierScope) -> None:
        """Mark all records as having met a barrier of these threads, and forget settled ones."""
        for record in self.list_records():
            if record.met != "role":
                record.met = who
        self.forget_settled()

    def forget_settled(self) -> None:
        """Drop settled accesses that are fenced, or to tiles that need no fence; nothing if all are to be kept."""
        if self.fenced is None:
            return
        for key, kept in self.records.items():
            if any(r.is_settled for r in kept):
                never = key[0] not in self.fenced
                self.records[key] = [r for r in kept if not (r.is_settled and (never or r.fenced))]

    def enter_loop(self, frame: LoopFrame) -> None:
        """Set the loop in whose variable areas are given, and start counting the iterations since each access."""
        self.frame = frame
        for record in self.list_records():
            record.age = min(record.age, 0)

    def next_iteration(self) -> None:
        """Increase the age of each access by an iteration; settled ones get an unknown age."""
        for key, kept in self.records.items():
            if all(record.age == UNKNOWN_AGE for record in kept):
                continue
            for record in kept:
                if record.age != UNKNOWN_AGE:
                    record.age = UNKNOWN_AGE if record.is_settled else min(record.age + 1, MAX_AGE)
            self.records[key] = _drop_duplicates(kept)

    def leave_loop(self) -> None:
        """Replace the areas of recorded accesses by areas without the loop's variable, where these are known."""
        assert self.frame is not None, "a loop is left that was not entered"
        for record in self.list_records():
            if record.age != UNKNOWN_AGE and record.touch.area is not None:
                found = find_area_after_loop(record.touch.area, record.age, self.frame)
                record.touch, record.age = replace(record.touch, area=found), UNKNOWN_AGE if found is None else 0
        self.frame = None

    def list_records(self) -> Iterator[AccessRecord]:
        """Yield the records of all tile versions."""
        for kept in self.records.values():
            yield from kept

    def shape(self) -> object:
        """Return a key that is equal for states with the same future needs, wherever the ring cursors stand."""
        first_positions = {use: self.positions[use.cursors[0]] for use in self.uses}
        found = set()
        for (buffer, version), kept in self.records.items():
            use = self.use_of.get(buffer)
            away = version if use is None else (version - first_positions[use]) % use.depth
            for r in kept:
                distance = COMPLETE if not r.group else UNCOMMITTED if self.is_open(r) else self.count_pending(r)
                found.add((buffer, away, r.place, r.touch, distance, "" if r.group else r.met, r.fenced, r.age))
        distances = tuple(
            (self.positions[c] - first_positions[use]) % use.depth for use in self.uses for c in use.cursors
        )
        return frozenset(found), distances

    def exact_shape(self) -> object:
        """Return a key that is equal for states with equal shapes and equal version numbers."""
        positions = tuple(self.positions[c] % use.depth for use in self.uses for c in use.cursors)
        return self.shape(), positions

    def settle_cursors(self) -> None:
        """Renumber the versions of each ring so that its cursors stand at 0, if all its cursors agree."""
        for use in self.uses:
            shift = self.positions[use.cursors[0]] % use.depth
            if not shift or any(self.positions[c] % use.depth != shift for c in use.cursors):
                continue
            for buffer in use.buffers:
                kept = [self.records.pop((buffer, (v + shift) % use.depth), []) for v in range(use.depth)]
                self.records |= {(buffer, v): found for v, found in enumerate(kept) if found}
            self.positions |= dict.fromkeys(use.cursors, 0)

    def join(self, other: RoleState) -> None:
        """Add the records of another path that ends here, with its groups as far from the end as there. Both states
        renumber their versions (`settle_cursors`)."""
        self.settle_cursors()
        other.settle_cursors()
        for queue in QUEUES:
            # Renumbered from the larger count, no group in flight gets number 0, which means complete.
            self._renumber_groups(queue, max(0, other.issued[queue] - self.issued[queue]))
        for key, kept in other.records.items():
            own_records = self.records[key] = _drop_duplicates(self.records.get(key, ()))
            of_place: dict[int, list[AccessRecord]] = {}
            for record in own_records:
                of_place.setdefault(record.place, []).append(record)
            for record in kept:
                shifted = record.copy()
                if record.group and record.queue:
                    shifted.group += self.issued[record.queue] - other.issued[record.queue]
                same = of_place.setdefault(record.place, [])
                if not self._merge_into_same(same, shifted):
                    same.append(shifted)
                    own_records.append(shifted)

    def _merge_into_same(self, kept: list[AccessRecord], new: AccessRecord) -> bool:
        """Return True if a kept record covers the new one; of two groups in flight, keep the later one's number. Of two
        records of one access, the one later in its queue demands more, and is kept."""
        for old in kept:
            if old.fenced != new.fenced or old.age != new.age or old.touch != new.touch:
                continue
            if old.group and new.group:
                old.group = max(old.group, new.group)
                return True
            if not old.group and not new.group and old.met == new.met:
                return True
        return False

    def _renumber_groups(self, queue: Queue, count: int) -> None:
        """Raise the queue's count and the numbers of its groups in flight by `count`."""
        if count:
            self.issued[queue] += count
            for record in self.list_records():
                if record.queue == queue and record.group:
                    record.group += count
