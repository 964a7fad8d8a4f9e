"""What a replay keeps of multiprocessors, blocks, barriers and warps, and what it finds."""

from __future__ import annotations

from dataclasses import field

from tilec.simulate.record import Block, Entry
from tilec.support.records import dataclass

SCHEDULERS = 4
"""Of a multiprocessor, each with a quarter of its pipes."""
Cause = str
"""What a warp waits for, in words."""


@dataclass(slots=True)
class Shares:
    """What one multiprocessor gets of what all share: bytes a cycle of L2 and of DRAM, and which part of the bytes that
    it loads and stores DRAM moves."""

    l2: float
    dram: float
    missing: float = 1.0
    written: float = 1.0


@dataclass(slots=True, eq=False)
class Sm:
    """One multiprocessor: when each scheduler, pipe and port is free again, and for how long they were held; cycles for
    which warps have read shared memory under products, which the next product takes longer."""

    issue: list[float] = field(default_factory=lambda: [0.0] * SCHEDULERS)
    pipes: dict[str, list[float]] = field(default_factory=dict)
    ports: dict[str, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    read_under_products: float = 0.0
    warps: int = 0


@dataclass(slots=True, eq=False)
class Mbarrier:
    """An mbarrier as the replay sees it."""

    expected: int
    pending: int
    tx: int = 0
    phase: int = 0
    waiters: list[tuple[Warp, int, bool, float]] = field(default_factory=list)
    by: Cause = "mbarrier"
    """What completed its phase, in words."""


@dataclass(slots=True, eq=False)
class Gathering:
    """Warps that come together: at a named barrier, or those of a warpgroup for a product."""

    arrived: int = 0
    waiting: list[tuple[Warp, float]] = field(default_factory=list)
    is_of_all: bool = False


@dataclass(slots=True, eq=False)
class Running:
    """A block on its multiprocessor."""

    sm: Sm
    block: Block
    cluster: ClusterRun
    rank: int
    alive: int
    start: float
    last: float = 0.0
    """When the last of its transfers ends."""
    mbarriers: dict[int, Mbarrier] = field(default_factory=dict)
    barriers: dict[int, Gathering] = field(default_factory=dict)
    warpgroups: dict[int, Gathering] = field(default_factory=dict)
    products: float = 0.0
    """When the last product of tcgen05 is done."""


@dataclass(slots=True, eq=False)
class ClusterRun:
    """The blocks of a cluster."""

    blocks: list[Running] = field(default_factory=list)
    barrier: Gathering = field(default_factory=Gathering)
    generation: int = 0
    warps: int = 0
    number: int = 0
    left: int = 0


@dataclass(slots=True, eq=False)
class Warp:
    """One warp, where it stands in its trace, and what it has in flight."""

    home: Running
    number: int
    age: int
    quarter: int
    trace: list[Entry]
    registers: list[float]
    causes: list[Cause]
    at: int = 0
    want: float = 0.0
    """When it could issue if nothing but its own order held it."""
    held_by: Cause = ""
    copies: float = 0.0
    copy_groups: list[float] = field(default_factory=list)
    bulk: tuple[float, float] = (0.0, 0.0)
    bulk_groups: list[tuple[float, float]] = field(default_factory=list)
    products: float = 0.0
    product_groups: list[float] = field(default_factory=list)
    moved: float = 0.0
    """When its last access to tensor memory is done."""
    arrived_at: int = -1


@dataclass(slots=True, eq=False)
class Slice:
    """What a warp or a unit did from one cycle to another: a line of the timeline."""

    sm: int
    track: str
    name: str
    start: float
    end: float
    line: int


@dataclass(slots=True, eq=False)
class Result:
    """What a replay found, in cycles. `stalls` are those that each warp (by its number in the block) lost at each step
    to each cause, `issued` those in which it issued, `lifetime` all that it had, each over all blocks; `held` those of
    each unit of a multiprocessor; `ends` when each cluster ended; `marks` when a warp of the first block came by each
    branch back."""

    cycles: float = 0.0
    stalls: dict[tuple[int, int, Cause], float] = field(default_factory=dict)
    issued: dict[int, float] = field(default_factory=dict)
    lifetime: dict[int, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)
    marks: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    instructions: int = 0

    def stretch(self, cycles: float) -> None:
        """What was seen went on in the same way until then."""
        by = cycles / self.cycles
        self.stalls = {key: lost * by for key, lost in self.stalls.items()}
        self.issued = {warp: issued * by for warp, issued in self.issued.items()}
        self.lifetime = {warp: lived * by for warp, lived in self.lifetime.items()}
        self.held = {unit: held * by for unit, held in self.held.items()}
        self.cycles = cycles
