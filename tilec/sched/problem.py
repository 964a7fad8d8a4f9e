"""A modulo-scheduling problem in integers: the solver's only input.

Ids are dense: an op, slot or ring is named by its index in its tuple. All times are cycles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from tilec.support.records import dataclass
from tilec.support.schema import Range

UNLIMITED = (1 << 31) - 1
"""The capacity of an unlimited pool."""
MAX_CYCLES = 1 << 20
"""Limit for an op or an edge: about a millisecond on a GPU. The verifier looks at each cycle."""

# Limits that keep every sum of the solver within 64 bits.
Count = Annotated[int, Range(1, UNLIMITED)]
Amount = Annotated[int, Range(0, UNLIMITED)]
Cycles = Annotated[int, Range(0, MAX_CYCLES)]
Latency = Annotated[int, Range(-MAX_CYCLES, MAX_CYCLES)]
Distance = Annotated[int, Range(-1, MAX_CYCLES)]


@dataclass(frozen=True, slots=True)
class Slot:
    """A column of the reservation table; at most `width` uses may overlap in any cycle modulo II. `banks` names the
    memory whose banks its uses reach, if they do."""

    name: str
    width: Count = 1
    banks: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """The op holds one unit of `slot` during [start + offset, start + offset + cycles)."""

    slot: int
    cycles: Cycles
    offset: Cycles = 0


@dataclass(frozen=True, slots=True)
class Op:
    """One scheduled statement.

    Its warp is busy for `issue` cycles; after `latency` cycles its result may be used and its sources overwritten.
    `role` groups the ops that one warp role runs. `line` is its line in the kernel, or in the imported `file`, for
    messages.

    `roles` are the candidate roles; if there are any, the solver chooses one and `role` is ignored. The chosen role is
    held for the `issue` cycles and the `wait` cycles before them, in which its warp is blocked.
    """

    name: str
    uses: tuple[Use, ...]
    issue: Cycles
    latency: Cycles
    role: str = "all"
    line: int = 0
    roles: tuple[int, ...] = ()
    wait: Cycles = 0
    file: str = ""

    @property
    def place(self) -> str:
        """Return the op's source line as text, with its file if that is imported."""
        return f"line {self.line} of {self.file}" if self.file else f"line {self.line}"


@dataclass(frozen=True, slots=True)
class Edge:
    """start[dst] + distance·II ≥ start[src] + latency, because of `why`: "data A_s", "anti C_l" … A distance of −1
    orders src before dst of the previous iteration. `hand_over` cycles are added if different roles run the two ops: a
    value in registers goes through shared memory."""

    src: int
    dst: int
    latency: Latency
    distance: Distance = 0
    why: str = ""
    hand_over: Cycles = 0


@dataclass(frozen=True, slots=True)
class Ring:
    """A buffer, or several with one lifetime, with one version per iteration in flight. A version lives from the
    earliest of `producers` until the last of `consumers` has finished: max(start[c] + latency[c]) − min(start[p])
    cycles. The depth is ⌈lifetime / II⌉, at least 1 and at most `max_depth` (None: limited by the pool only). Each
    version takes `bytes` of `pool`."""

    name: str
    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    bytes: Amount
    pool: int
    max_depth: Count | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A resource held over a lifetime, without versions that the schedule decides on: registers of a fragment, banks of
    tensor memory, a named barrier. It holds `amount` of `pool` from the earliest of `producers` until the last of
    `consumers` has finished."""

    name: str
    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    amount: Amount
    pool: int


@dataclass(frozen=True, slots=True)
class Pool:
    """A capacity that versions of rings and values share; `reserved` is taken by what lives outside the loop. `carried`
    limits what values hold across the end of an interval (None: no limit but the capacity). `spare`: use of the pool
    counts as pressure; of other pools only the limit matters."""

    name: str
    capacity: Amount
    reserved: Amount = 0
    carried: Amount | None = None
    spare: bool = True


@dataclass(frozen=True, slots=True)
class Role:
    """A warp role: `warps` warps that run their ops one after the other. An op holds `slot` while it issues. A thread
    needs `registers` besides its values."""

    name: str
    slot: int
    warps: Count = 4
    registers: Amount = 24


@dataclass(frozen=True, slots=True)
class Problem:
    """One loop to be scheduled: its statements, their dependences, and the resources of the target.

    A schedule is an interval II and a start of each op such that every edge holds, no slot is used more often than its
    width in any cycle modulo II, and no pool exceeds its capacity (Rau, "Iterative Modulo Scheduling", MICRO-27, 1994;
    pools are this compiler's addition). Times are cycles; `bytes` and `amount` are in the unit of their pool.

    `max_stages` limits the stages (None: no limit). `force_serial`: one op and one iteration after the other, whatever
    could overlap.

    With `roles`, the ops that name candidates are divided among them. `tied` ops go to one role, because a value stays
    in its registers from one iteration to the next. The roles share `register_file` registers (None: no limit): per
    thread each takes its own and those of all `values` that it writes or reads, in steps of 8 and at most 255 (PTX ISA,
    setmaxnreg). Only values of pool `registers` count.

    The ops of each group of `same_stage` issue in one stage, start // II: they share a scalar in registers, which has
    no versions.

    Each of `copies` lists the ops of one statement that several groups of warps run in the same code: the first group's
    op, the second's and so on. Each group is behind the first by a lag of less than II, the same for all its ops. Once
    decided, the lags are `lags`, one a group, the first of them 0.
    """

    name: str
    ops: tuple[Op, ...]
    edges: tuple[Edge, ...]
    slots: tuple[Slot, ...]
    pools: tuple[Pool, ...] = ()
    rings: tuple[Ring, ...] = ()
    max_stages: Count | None = None
    values: tuple[Value, ...] = ()
    roles: tuple[Role, ...] = ()
    tied: tuple[tuple[int, ...], ...] = ()
    registers: int | None = None
    register_file: Amount | None = None
    force_serial: bool = False
    same_stage: tuple[tuple[int, ...], ...] = ()
    copies: tuple[tuple[int, ...], ...] = ()
    lags: tuple[int, ...] = ()

    def list_uses(self, slot: int) -> list[tuple[int, Use]]:
        """Return each use of a slot that takes any cycles, with its op."""
        return [(op, use) for op, spec in enumerate(self.ops) for use in spec.uses if use.slot == slot and use.cycles]


def has_less_room(problem: Problem, roomier: Problem) -> bool:
    """Return whether a problem is another one with smaller pools and shallower rings: what has no schedule there has
    none here."""
    if replace(roomier, pools=problem.pools, rings=problem.rings) != problem:
        return False
    if (len(problem.pools), len(problem.rings)) != (len(roomier.pools), len(roomier.rings)):
        return False
    pools = zip(problem.pools, roomier.pools, strict=True)
    rings = zip(problem.rings, roomier.rings, strict=True)
    return all(
        pool.capacity - pool.reserved <= room.capacity - room.reserved
        and pool == replace(room, capacity=pool.capacity, reserved=pool.reserved)
        for pool, room in pools
    ) and all(
        ring == replace(deeper, max_depth=ring.max_depth)
        and (deeper.max_depth is None or (ring.max_depth or UNLIMITED) <= deeper.max_depth)
        for ring, deeper in rings
    )
