"""A modulo-scheduling problem as integers: what `solve` is given, and all that it knows.

Ids are dense: an op, slot or ring is named by its place in its tuple. All times are cycles.
"""

from __future__ import annotations

from typing import Annotated

from tilec.support.records import dataclass
from tilec.support.schema import Range

UNLIMITED = (1 << 31) - 1
"""The capacity of a pool that has no limit."""

MOST_CYCLES = 1 << 20
"""Of an op or an edge: a millisecond on a GPU. The verifier looks at each of them."""

# What the solver can add up in 64 bits, whatever a problem is made of.
Count = Annotated[int, Range(1, UNLIMITED)]
Amount = Annotated[int, Range(0, UNLIMITED)]
Cycles = Annotated[int, Range(0, MOST_CYCLES)]
Latency = Annotated[int, Range(-MOST_CYCLES, MOST_CYCLES)]
Distance = Annotated[int, Range(-1, MOST_CYCLES)]


@dataclass(frozen=True, slots=True)
class Slot:
    """A column of the reservation table; at most `width` uses may overlap in any cycle modulo II."""

    name: str
    width: Count = 1


@dataclass(frozen=True, slots=True)
class Use:
    """The op holds one unit of `slot` during [start + offset, start + offset + cycles)."""

    slot: int
    cycles: Cycles
    offset: Cycles = 0


@dataclass(frozen=True, slots=True)
class Op:
    """One scheduled statement. `issue` cycles its warp is busy; `latency` cycles until its result may be used and its
    sources overwritten. `role` groups ops that one warp role runs. `line` is its line in the kernel, for messages, or
    in the `file` that this imports.

    `roles` are the roles of the problem that may run it; where there are any, the solver says which one does, `role` is
    not looked at, and the role is held for the `issue` cycles and for `wait` cycles before them: a warp that is blocked
    on what the op waits for runs nothing else.
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
        return f"line {self.line} of {self.file}" if self.file else f"line {self.line}"


@dataclass(frozen=True, slots=True)
class Edge:
    """start[dst] + distance·II ≥ start[src] + latency. `why` says what forces it: "data A_s", "anti C_l" … A distance
    of −1 says that src comes before what dst does in the iteration before.

    `hand_over` cycles are added where different roles run the two ops: a value in registers goes through shared memory.
    """

    src: int
    dst: int
    latency: Latency
    distance: Distance = 0
    why: str = ""
    hand_over: Cycles = 0


@dataclass(frozen=True, slots=True)
class Ring:
    """A buffer (or several that live together) with one version per iteration in flight.

    The version written by the earliest of `producers` lives until the last of `consumers` is done with it, so its
    lifetime is max(start[c] + latency[c]) − min(start[p]), and its depth ⌈lifetime / II⌉, at least 1 and at most
    `max_depth` (None: no limit but the pool's). Depth versions of `bytes` bytes each are taken from `pool`.
    """

    name: str
    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    bytes: Amount
    pool: int
    max_depth: Count | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """What is held while it lives, without versions that a schedule decides on: registers of a fragment, banks of
    tensor memory, a named barrier. From the earliest of `producers` until the last of `consumers` is done with it,
    `amount` of `pool`."""

    name: str
    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    amount: Amount
    pool: int


@dataclass(frozen=True, slots=True)
class Pool:
    """A capacity held over lifetimes by the versions of rings and by values; `reserved` is taken by what lives outside
    the loop. `carried` limits what values hold across the end of an interval (None: no limit but the capacity).
    `spare`: less of it is better, so that it counts as pressure; of other pools enough is enough."""

    name: str
    capacity: Amount
    reserved: Amount = 0
    carried: Amount | None = None
    spare: bool = True


@dataclass(frozen=True, slots=True)
class Role:
    """Warps that run their ops one after the other, `warps` of them. An op holds `slot` while it issues. `registers`
    are what a thread needs besides the values."""

    name: str
    slot: int
    warps: Count = 4
    registers: Amount = 24


@dataclass(frozen=True, slots=True)
class Problem:
    """One loop to be scheduled: what its statements use and need of each other, and what there is of everything.

    Looked for are an interval II and a start of each op such that every edge holds, start[dst] + distance·II ≥
    start[src] + latency; that in no cycle modulo II a slot is used more often than it is wide; and that no pool holds
    more than its capacity (Rau, "Iterative Modulo Scheduling", MICRO-27, 1994; pools are this compiler's). Ids are
    places in `ops`, `slots`, `rings`, `pools`, `values` and `roles`. Times are cycles, `bytes` and `amount` in the unit
    of their pool.

    `max_stages` bounds the number of stages of the schedule (None: no bound). `force_serial`: one op after the other,
    one iteration after the other, whatever could overlap.

    With `roles`, the ops that name candidates are to be divided among them. `tied` ops go to one role together, because
    a value stays in its registers from one iteration to the next. `register_file` is the number of registers that the
    roles share (None: no limit), of which each takes, per thread, its own and those of all `values` that it writes or
    reads, in steps of 8 and at most 255 (PTX ISA, setmaxnreg). Only values of pool `registers` count.

    The ops of each group of `same_stage` issue in one stage: they share a value that has no versions, a scalar in
    registers. A stage is one interval: start // II.

    Each of `copies` is one statement that several groups of warps run, in the same code: its op in the first group, in
    the second and so on. So each group is behind the first by some cycles, less than II, that are the same for all of
    its ops; once they are decided they are `lags`, one a group and the first of them 0.
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
