"""Rules 11 and 12 of `ir.warp_verify.verify`: the order between accesses of different roles and asynchronous units to a
shared tile, by the barriers that roles signal and wait for; and its agreement with the order of the text.

Every role counts its steps from one signal to the next, every asynchronous unit its operations. A signal carries how
far all of them are known to have come, and a role that waits for it knows that too (vector clocks). An access comes
after another one if its role knows that the other's role has come so far. An access in flight comes before nothing.

Nothing here depends on the ring of a tile, nor on the pass that placed a wait or a fence: any path of signals from one
access to the other will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tilec.ir import warp
from tilec.ir.warp import Operation, Program
from tilec.ir.warp_verify.barrier_machine import PhaseClocks
from tilec.ir.warp_verify.effects import op_name
from tilec.support.records import dataclass

Signal = tuple[str, int, Literal["full", "empty"]]
"""A ring, one of its versions, and which of that version's two barriers."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A unit that touches memory: a role's threads; TMA for the role in one version of a ring, which completes
    separately; or the tensor cores, which signal when they have completed everything that the role has issued."""

    role: int
    unit: Literal["threads", "tma", "tensor cores"] = "threads"
    place: tuple[str, int] = ("", 0)


@dataclass(slots=True)
class PastAccess:
    """An access, kept as the last of its kind. `time` is the actor's count when it had completed, `fenced` the count
    when a proxy fence had followed. `iteration` is the version's number, not modulo the ring's depth, and `at` the
    index of its statement in the text."""

    op: Operation
    write: bool
    by_async: bool
    iteration: int | None
    atomic: bool = False
    queue: str | None = None
    group: int = 0
    time: int | None = None
    fenced: int | None = None
    at: int | None = None


class AccessOrder:
    """The accesses of one run of a program. `names` are the roles' names, by number; two of one name are parts of one
    role, whose order is checked by other rules."""

    def __init__(self, program: Program, names: Sequence[str]) -> None:
        self.names = names
        self.tiles = {tile.buffer.name for tile in program.shared}
        self.copied = {tile.buffer.name for tile in program.shared if tile.layout.copies > 1}
        """The tiles of which each part of a role, a warpgroup, has a copy of its own."""
        self.in_tensor = {tile.buffer.name for tile in program.tensor}
        self.levels = _pipeline_depths(program)
        self.known: list[dict[Actor, int]] = [{Actor(role): 1} for role in range(len(names))]
        self.asked: dict[Actor, int] = {}
        self.handed_on: PhaseClocks[Signal, Actor] = PhaseClocks()
        self.past: dict[tuple[str, int], dict[tuple[Actor, bool, str | None], PastAccess]] = {}
        self.unfenced: list[list[PastAccess]] = [[] for _ in names]
        self.under_way: list[list[PastAccess]] = [[] for _ in names]

    # ---- signals -----------------------------------------------------------------------------------------------------

    def signal(self, role: int, signal: Signal, phase: int, by_tensor_cores: bool = False) -> None:
        """Record that a role arrives at a barrier and passes on what it knows; by the tensor cores, also their products
        so far."""
        cores = Actor(role, "tensor cores")
        asked = {cores: self.asked.get(cores, 0)} if by_tensor_cores else {}
        self.handed_on.arrive(signal, phase, self.known[role], asked)
        self.known[role][Actor(role)] += 1

    def wait(self, role: int, signal: Signal, phases: int) -> None:
        """Record that a role has waited for the first `phases` phases of a barrier, and so knows what they pass on."""
        self.handed_on.wait(signal, phases, self.known[role])

    def fence(self, role: int) -> None:
        """Record that a role executes a proxy fence: its threads' unfenced writes are fenced from now on."""
        for access in self.unfenced[role]:
            access.fenced = self.known[role][Actor(role)]
        self.unfenced[role].clear()

    def complete(self, role: int, queue: str, done: int) -> None:
        """Record that a role's accesses in the groups of a queue up to number `done` are complete."""
        left = []
        for access in self.under_way[role]:
            if access.queue == queue and access.group <= done:
                access.time = self.known[role][Actor(role)]
            else:
                left.append(access)
        self.under_way[role] = left

    # ---- accesses ----------------------------------------------------------------------------------------------------

    def load(self, role: int, op: Operation, tile: str, place: tuple[str, int], iteration: int, phase: int) -> str:
        """Record that TMA writes a ring version's tile and signals its full barrier; return the violation of order, or
        ""."""
        actor = Actor(role, "tma", place)
        self.asked[actor] = self.asked.get(actor, 0) + 1
        message = self._record(actor, tile, place[1], PastAccess(op, True, True, iteration, time=self.asked[actor]))
        self.handed_on.arrive((*place, "full"), phase, self.known[role], {actor: self.asked[actor]})
        return message

    def multiply(self, role: int, op: warp.TensorMma, slots: Mapping[str, tuple[int, int]]) -> str:
        """Record that the tensor cores read operands and add to an accumulator; return the first violation of order, or
        "". `slots` has the version of each, and its number. Products are executed in the order of issue."""
        actor = Actor(role, "tensor cores")
        time = self.asked[actor] = self.asked.get(actor, 0) + 1
        for tile, (slot, iteration) in slots.items():
            access = PastAccess(op, tile == op.c.name, True, iteration, time=time)
            if message := self._record(actor, tile, slot, access):
                return message
        return ""

    def touch(self, role: int, tile: str, slot: int, access: PastAccess) -> str:
        """Record a role's access to a tile in shared or tensor memory, other buffers ignored; return the violation, or
        "". The access is by threads or by a queue; its `time` is set, to None in a queue.
        """
        if tile not in self.tiles and tile not in self.in_tensor:
            return ""  # private to the role, or in global memory
        access.time = None if access.queue is not None else self.known[role][Actor(role)]
        return self._record(Actor(role), tile, slot, access)

    def _record(self, actor: Actor, tile: str, slot: int, access: PastAccess) -> str:
        """Record an access, or return a message if it is not ordered after every earlier access that conflicts with it.
        The order is that of signals, of proxy fences, and of the text."""
        past = self.past.setdefault((tile, slot), {})
        op, at = access.op, self.place(access.op, tile)
        known, where = self.known[actor.role], f"line {op.span.line}: {op_name(op)} on {tile}"
        for (other, _, _), earlier in past.items():
            if not (access.write or earlier.write):
                continue
            if access.atomic and earlier.atomic and access.queue == earlier.queue:
                continue
            if tile in self.copied and other.role != actor.role:
                continue
            before = f"{op_name(earlier.op)}, line {earlier.op.span.line}"
            is_same_version = access.iteration is not None and earlier.iteration == access.iteration
            if is_same_version and at is not None and earlier.at is not None and earlier.at > at:
                return f"{where} comes after {before}, which is after it in the text"
            if self._is_ordered_elsewhere(actor, other):
                continue
            whose = f"of role {self.names[other.role]}" if other.role != actor.role else f"by {other.unit}"
            if earlier.time is None or known.get(other, 0) < earlier.time:
                return f"{where} does not wait for {before}, {whose}"
            is_for_other_proxy = access.by_async and earlier.write and not earlier.by_async and tile in self.tiles
            if is_for_other_proxy and (earlier.fenced is None or known.get(other, 0) < earlier.fenced):
                return f"{where} has no proxy fence after {before}, {whose}"
        access.at = at
        past[(actor, access.write, access.queue)] = access
        if actor.unit == "threads":
            if access.time is None:
                self.under_way[actor.role].append(access)
            if access.write and not access.by_async:
                self.unfenced[actor.role].append(access)
        return ""

    def _is_ordered_elsewhere(self, actor: Actor, other: Actor) -> bool:
        """Return whether both actors are the same unit, not TMA, of roles of one name, which other rules order."""
        return actor.unit == other.unit != "tma" and self.names[actor.role] == self.names[other.role]

    def place(self, op: Operation, tile: str) -> int | None:
        """Return the index of the operation's statement in the pipelined loop that versions the tile; None if
        unknown."""
        moments = _outermost_first(op.moment)
        level = self.levels.get(tile)
        return moments[level - 1].place if level and len(moments) >= level else None


def _outermost_first(moment: warp.PipelinePosition | None) -> list[warp.PipelinePosition]:
    """Return the positions in all pipelines around an operation, the outermost first; empty outside of pipelines."""
    found: list[warp.PipelinePosition] = []
    while moment is not None:
        found.insert(0, moment)
        moment = moment.around
    return found


def _pipeline_depths(program: Program) -> dict[str, int]:
    """Return, by tile of a ring, how many pipelines are around the ring's `Advance` (the least); tiles with 0 are left
    out.
    """
    depths: dict[str, int] = {}
    for op in program.operations():
        if isinstance(op, warp.Advance):
            depth = len(_outermost_first(op.moment))
            depths[op.cursor.ring] = min(depths.get(op.cursor.ring, depth), depth)
    return {tile: depths[ring.name] for ring in program.rings for tile in ring.buffers if depths.get(ring.name)}
