"""A modulo-scheduling problem as integers: what `solve` is given, and all that it knows.

Ids are dense: an op, slot or ring is named by its place in its tuple. All times are cycles.
"""

from __future__ import annotations

from tilec.records import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """A column of the reservation table; at most `width` uses may overlap in any cycle modulo II."""

    name: str
    width: int = 1


@dataclass(frozen=True, slots=True)
class Use:
    """The op holds one unit of `slot` during [start + offset, start + offset + cycles)."""

    slot: int
    cycles: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Op:
    """One scheduled statement. `issue` cycles its warp is busy; `latency` cycles until its result may be used and its
    sources overwritten. `role` groups ops that one warp role runs. `line` is its line in the kernel, for messages."""

    name: str
    uses: tuple[Use, ...]
    issue: int
    latency: int
    role: str = "all"
    line: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """start[dst] + distance·II ≥ start[src] + latency. `why` says what forces it: "data A_s", "anti C_l" …"""

    src: int
    dst: int
    latency: int
    distance: int = 0
    why: str = ""


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
    bytes: int
    pool: int
    max_depth: int | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """A capacity held over lifetimes; `reserved` is taken by what lives outside the loop."""

    name: str
    capacity: int
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """`max_stages` bounds the number of stages of the schedule (None: no bound)."""

    name: str
    ops: tuple[Op, ...]
    edges: tuple[Edge, ...]
    slots: tuple[Slot, ...]
    pools: tuple[Pool, ...] = ()
    rings: tuple[Ring, ...] = ()
    max_stages: int | None = None
