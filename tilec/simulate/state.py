"""The state of a replay (multiprocessors, blocks, barriers, warps) and its result."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field

from tilec.simulate.record import BlockTrace, Entry
from tilec.support.records import dataclass

SCHEDULERS = 4
"""Schedulers of a multiprocessor, each with a quarter of its pipes."""
Cause = str
"""The reason for a warp's wait, in words."""


@dataclass(slots=True)
class MemoryShares:
    """One multiprocessor's share of common resources: bytes per cycle of L2 and of reads of DRAM, and the fractions of
    loaded (`missing`) and stored (`written`) bytes that DRAM moves. `missing_by_step` is that of the loads of one step,
    `write_price` the bytes that DRAM could read while it writes one, `l2_to_threads` the most that L2 delivers to
    copies of threads (cp.async)."""

    l2: float
    dram: float
    missing: float = 1.0
    written: float = 1.0
    missing_by_step: Mapping[int, float] = field(default_factory=dict)
    write_price: float = 1.0
    l2_to_threads: float = math.inf


@dataclass(slots=True, eq=False)
class Sm:
    """One multiprocessor: when each scheduler, pipe and port is free again, and how long they were held.
    `read_under_products` are cycles of shared-memory reads during products, which delay the next product;
    `waiting_writes` are those of writes."""

    issue: list[float] = field(default_factory=lambda: [0.0] * SCHEDULERS)
    pipes: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0] * SCHEDULERS))
    ports: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    held: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    read_under_products: float = 0.0
    waiting_writes: float = 0.0
    warps: int = 0


@dataclass(slots=True, eq=False)
class Mbarrier:
    """The state of an mbarrier."""

    expected: int
    pending: int
    tx: int = 0
    phase: int = 0
    waiters: list[tuple[Warp, int, bool, float]] = field(default_factory=list)
    by: Cause = "mbarrier"
    """The last arrival or copy, in words: the one that completes a phase."""


@dataclass(slots=True, eq=False)
class WarpGathering:
    """Warps that wait for each other: at a named barrier, or those of a warpgroup before a product."""

    arrived: int = 0
    waiting: list[tuple[Warp, float]] = field(default_factory=list)
    is_of_all: bool = False


@dataclass(slots=True, eq=False)
class ResidentBlock:
    """A resident block and its multiprocessor."""

    sm: Sm
    block: BlockTrace
    cluster: ClusterRun
    rank: int
    alive: int
    start: float
    last: float = 0.0
    """When its last transfer ends."""
    mbarriers: dict[int, Mbarrier] = field(default_factory=dict)
    barriers: dict[int, WarpGathering] = field(default_factory=dict)
    warpgroups: dict[int, WarpGathering] = field(default_factory=dict)
    products: float = 0.0
    """When its last tcgen05 product ends."""


@dataclass(slots=True, eq=False)
class ClusterRun:
    """The resident blocks of one cluster, and their common barrier."""

    blocks: list[ResidentBlock] = field(default_factory=list)
    barrier: WarpGathering = field(default_factory=WarpGathering)
    generation: int = 0
    warps: int = 0
    number: int = 0
    left: int = 0


@dataclass(slots=True, eq=False)
class Warp:
    """One warp: its position in its trace, and what it has in flight."""

    home: ResidentBlock
    number: int
    age: int
    quarter: int
    trace: list[Entry]
    registers: list[float]
    causes: list[Cause]
    at: int = 0
    want: float = 0.0
    """When it could issue if it only had to keep its own order."""
    held_by: Cause = ""
    copies: float = 0.0
    copy_groups: list[float] = field(default_factory=list)
    bulk: tuple[float, float] = (0.0, 0.0)
    bulk_groups: list[tuple[float, float]] = field(default_factory=list)
    products: float = 0.0
    product_groups: list[float] = field(default_factory=list)
    moved: float = 0.0
    """When its last access to tensor memory ends."""
    arrived_at: int = -1


@dataclass(slots=True, eq=False)
class TimelineSlice:
    """An activity of a warp or a unit between two cycles, for the timeline."""

    sm: int
    track: str
    name: str
    start: float
    end: float
    line: int


@dataclass(slots=True, eq=False)
class ReplayResult:
    """The result of a replay, in cycles. `stalls` are the cycles lost by (warp number in its block, step, cause),
    `issued` the cycles each warp issued, `lifetime` its whole life; all summed over the blocks. `held` is the busy time
    of each unit of a multiprocessor, `ends` the end of each cluster, `marks` the times at which a warp of the first
    block passed each back branch."""

    cycles: float = 0.0
    stalls: dict[tuple[int, int, Cause], float] = field(default_factory=lambda: defaultdict(float))
    issued: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    lifetime: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    held: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ends: list[float] = field(default_factory=list)
    marks: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    slices: list[TimelineSlice] = field(default_factory=list)
    instructions: int = 0

    def stretch_to(self, cycles: float) -> None:
        """Scale the replay's stalls, issues, lifetimes, busy times and cycles to `cycles`; ends, marks and slices
        stay."""
        factor = cycles / self.cycles
        self.stalls = {key: lost * factor for key, lost in self.stalls.items()}
        self.issued = {warp: issued * factor for warp, issued in self.issued.items()}
        self.lifetime = {warp: lived * factor for warp, lived in self.lifetime.items()}
        self.held = {unit: held * factor for unit, held in self.held.items()}
        self.cycles = cycles
