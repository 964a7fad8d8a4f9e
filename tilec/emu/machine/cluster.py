"""The clusters of a grid: their blocks run side by side, and a deadlock is reported."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from tilec.emu.fault import Fault
from tilec.emu.machine import progress
from tilec.emu.machine.decode import Program
from tilec.emu.machine.machine import Cta, Group, NamedBarrier, describe_threads
from tilec.emu.memory.memory import Memory, make_cluster_tag
from tilec.emu.races.order import MOST_THREADS, HappensBeforeOrder
from tilec.emu.races.races import RaceDetector, StepAccesses
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.steps import Recorder
    from tilec.emu.machine.timeline import Timeline
    from tilec.emu.races.order import EventLog
    from tilec.emu.tma.asyncops import AsyncState, EffectScheduler


BlockPositions = list[tuple[int, int, int]]
"""The positions in the grid of a cluster's blocks."""


class Clusters(Sequence[BlockPositions]):
    """The block positions of each cluster of a grid, x fastest, computed on access."""

    def __init__(self, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> None:
        self.size = cluster
        self.counts = [extent // size for extent, size in zip(grid, cluster, strict=True)]
        z, y, x = (range(size) for size in reversed(cluster))
        self.inside = [(i, j, k) for k, j, i in itertools.product(z, y, x)]

    def __len__(self) -> int:
        return math.prod(self.counts)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        rest, x = divmod(number, self.counts[0])
        z, y = divmod(rest, self.counts[1])
        x, y, z = x * self.size[0], y * self.size[1], z * self.size[2]
        return [(x + i, y + j, z + k) for i, j, k in self.inside]


class ClusterQueue:
    """Clusters that have not begun, in order."""

    def __init__(self, clusters: Sequence[BlockPositions], numbers: range) -> None:
        self.clusters, self.numbers = clusters, numbers

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def take(self) -> tuple[int, BlockPositions]:
        """Remove the next cluster from the queue and return its number and block positions."""
        number, self.numbers = self.numbers[0], self.numbers[1:]
        return number, self.clusters[number]


_MAX_POLLS = 1000
"""A group whose poll fails this often while nothing else can run is in a deadlock."""


@dataclass(slots=True)
class LaunchState:
    """The state that all blocks of a launch share."""

    program: Program
    accesses: StepAccesses
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int
    memory: Memory
    params: Memory
    seed: int | None
    random: random.Random | None
    make_async_state: Callable[[Cta], AsyncState]
    counts: list[int]
    events: EventLog
    effect_scheduler: EffectScheduler
    step_limit: int
    watches_races: bool = True
    begins_early: bool = False
    all_begin: bool = False
    """Every cluster begins by itself: no try_cancel takes one over."""
    timeline: Timeline | None = None
    recorder: Recorder | None = None
    cluster_number: int = 0
    blocks_done: int = 0
    clock: int = 0
    waiting: ClusterQueue | None = None
    """The clusters that have not started."""
    late_stores: list[Callable[[], None]] = field(default_factory=list)
    printed: list[tuple[int, str]] = field(default_factory=list)
    """Printed texts, with the number of their cluster."""
    allow: frozenset[str] = frozenset()
    """Kinds of faults that are counted instead of raised."""
    allowed: dict[str, int] = field(default_factory=dict)
    """The number of allowed faults, by kind."""

    def report_fault(self, fault: Fault) -> None:
        """Raise a fault, or count it if its kind is allowed. The running step can go on after it."""
        if fault.kind not in self.allow:
            raise fault
        self.allowed[fault.kind] = self.allowed.get(fault.kind, 0) + 1

    @property
    def thread_count(self) -> int:
        """Return the number of threads of a block."""
        x, y, z = self.block
        return x * y * z


class Cluster:
    """Blocks that run at the same time and may access each other's shared memory."""

    def __init__(self, launch: LaunchState, number: int, positions: BlockPositions) -> None:
        self.launch = launch
        self.number = number
        self.barrier = NamedBarrier()
        self.order = self._make_order(len(positions))
        self.ctas: list[Cta] = []
        # The size must be known before the first block fills in its special registers.
        self.ctas = [Cta(self, rank, position) for rank, position in enumerate(positions)]

    def run(self) -> bool:
        """Run all blocks to their ends and return True, or False if threads only poll global memory; a deadlock is a
        fault. Nothing here changes the memory that is polled, so another cluster must run. Too many steps are a fault
        too."""
        launch = self.launch
        launch.memory.tag = make_cluster_tag(self.number)
        launch.cluster_number = self.number
        if self.order is not None and launch.memory.race_detector is not None:
            launch.memory.race_detector.order = self.order
        while alive := [cta for cta in self.ctas if not cta.is_done]:
            ran = False
            for cta in alive:
                ran |= cta.run()
                if cta.steps_run > launch.step_limit:
                    raise self._build_step_limit_fault(cta)
            if not ran:
                if not self._fail_one_poll(alive):
                    raise self.build_deadlock_fault()
            elif progress.is_cluster_stuck(self) and not self._fail_one_poll(alive):
                return False
        for cta in self.ctas:
            cta.asynchronous.check_at_end()
        launch.effect_scheduler.drop_effects()
        return True

    def resume(self) -> bool:
        """Run on after other clusters have run, having acquired all that they wrote; return whether every block
        ended."""
        if self.order is not None:
            self.order.acquire_everything()
        return self.run()

    def _make_order(self, blocks: int) -> HappensBeforeOrder | None:
        """Return the happens-before clocks of this cluster; None if races are not watched or it has too many threads.
        The race detector of global memory is made with the first."""
        launch = self.launch
        if not launch.watches_races or launch.thread_count * blocks > MOST_THREADS:
            return None
        order = HappensBeforeOrder(launch.events, blocks, launch.thread_count, self.number, launch.begins_early)
        if launch.memory.race_detector is None:
            launch.memory.race_detector = RaceDetector(launch.memory, order, launch.accesses, keeps_readers=False)
        return order

    def _fail_one_poll(self, alive: list[Cta]) -> bool:
        """Let the first group parked in a `test_wait` fail it, unless it has failed too often; return whether there was
        one."""
        for cta in alive:
            for group in cta.groups:
                if 0 < group.poll_count < _MAX_POLLS and group.ready is not None:
                    group.ready = None
                    group.must_fail_wait = True
                    return True
        return False

    # -- what went wrong -----------------------------------------------------------------------------------------------

    def build_deadlock_fault(self) -> Fault:
        """Return a deadlock fault that lists each group's wait, or the address that it polls."""
        alive = [cta for cta in self.ctas if not cta.is_done]
        at: list[tuple[Cta, Group]] = [(cta, group) for cta in alive for group in cta.groups]
        lines = [f"block {cta.position}: {line}" for cta in alive for line in cta.describe_waiting()]
        for cta, group in at:
            if group.ready is None:
                lines.append(f"block {cta.position}: {_describe_polling(cta, group)}")
        step = at[0][0].program.steps[at[0][1].pc]
        fault = Fault("deadlock", "no thread can go on\n    " + "\n    ".join(lines))
        return fault.locate(step.instruction.line, step.text, step.location)

    def _build_step_limit_fault(self, cta: Cta) -> Fault:
        """Return a fault for a block that exceeds the step limit, located at the launch's most frequent step."""
        busiest = max(range(len(self.launch.counts)), key=self.launch.counts.__getitem__)
        step = cta.program.steps[busiest]
        limit = f"more than {self.launch.step_limit:,} steps (step_limit)"
        fault = Fault("step-limit", f"the block runs {limit}, most often this one: an endless loop?")
        return fault.locate(step.instruction.line, step.text, step.location, f"block {cta.position}")


def _describe_polling(cta: Cta, group: Group) -> str:
    """Return the lines of a polling group's loop and the address it polls in words, found by running one more
    iteration."""
    launch = cta.launch
    before = list(launch.counts)
    threads, indices = describe_threads(group.indices), group.indices
    generator, launch.random = launch.random, None
    # Before all other groups, so that it does not stop at their steps.
    group.time_slice = -1
    cta.run_group(group)
    launch.random = generator
    steps = [step for step, old, new in zip(cta.program.steps, before, launch.counts, strict=True) if new > old]
    lines = sorted(step.instruction.line for step in steps)
    text = f"{threads} loop over PTX lines {lines[0]} to {lines[-1]}"
    for step in steps:
        if step.polled_address is not None:
            address = int(step.polled_address(cta, indices)[0])
            return f"{text} and poll address {address:#x} at {step.description}, which no thread changes"
    return f"{text} for ever"
