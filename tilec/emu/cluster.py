"""Runs the blocks of one cluster side by side, and says who waits for whom where they cannot go on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

from tilec.emu import progress
from tilec.emu.decode import Program
from tilec.emu.fault import Fault
from tilec.emu.grid import Positions, Queue
from tilec.emu.machine import Cta, Group, NamedBarrier, describe_threads
from tilec.emu.memory import Memory, tag_of
from tilec.emu.order import MOST_THREADS, Order
from tilec.emu.races import Accesses, Watch
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.asyncops import AsyncState
    from tilec.emu.moments import Moments
    from tilec.emu.order import EventLog
    from tilec.emu.recorder import Recorder
    from tilec.emu.timeline import Timeline

_MOST_POLLS = 1000
"""A group that hears "not yet" so often while nothing else can run is waiting for ever."""


@dataclass(slots=True)
class LaunchState:
    """What all blocks of a launch share."""

    program: Program
    accesses: Accesses
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int
    memory: Memory
    params: Memory
    random: random.Random | None
    make_async_state: Callable[[Cta], AsyncState]
    counts: list[int]
    events: EventLog
    moments: Moments
    step_limit: int
    watches_races: bool = True
    begins_early: bool = False
    all_begin: bool = False
    """No cluster waits for a place, so none is taken over by another one."""
    timeline: Timeline | None = None
    recorder: Recorder | None = None
    cluster_number: int = 0
    blocks_done: int = 0
    clock: int = 0
    waiting: Queue | None = None
    """The clusters that have not started."""
    late_stores: list[Callable[[], None]] = field(default_factory=list)
    printed: list[tuple[int, str]] = field(default_factory=list)
    """What threads print, and the number of their cluster."""
    allow: frozenset[str] = frozenset()
    """Kinds of faults that are counted instead of raised."""
    allowed: dict[str, int] = field(default_factory=dict)
    """How often each of them was found."""

    def found(self, fault: Fault) -> None:
        """Something is wrong about the running step, which can go on all the same."""
        if fault.kind not in self.allow:
            raise fault
        self.allowed[fault.kind] = self.allowed.get(fault.kind, 0) + 1

    @property
    def thread_count(self) -> int:
        x, y, z = self.block
        return x * y * z


class Cluster:
    """Blocks that run at the same time and may reach each other's shared memory."""

    def __init__(self, launch: LaunchState, number: int, positions: Positions) -> None:
        self.launch = launch
        self.number = number
        self.barrier = NamedBarrier()
        self.order = self._make_order(len(positions))
        self.ctas: list[Cta] = []
        # The size must be known before the first block fills in its special registers.
        self.ctas = [Cta(self, rank, position) for rank, position in enumerate(positions)]

    def run(self) -> bool:
        """Run every block to its end. False where that takes something that another cluster must do: the threads that
        are not waiting poll memory, and nothing here changes it."""
        launch = self.launch
        launch.memory.tag = tag_of(self.number)
        launch.cluster_number = self.number
        if self.order is not None and launch.memory.watch is not None:
            launch.memory.watch.order = self.order
        while alive := [cta for cta in self.ctas if not cta.is_done]:
            ran = [self._run(cta) for cta in alive]
            if not any(ran):
                if not self._let_a_poll_fail(alive):
                    raise self.deadlock()
            elif progress.is_stuck(self) and not self._let_a_poll_fail(alive):
                return False
        for cta in self.ctas:
            cta.asynchronous.finish()
        launch.moments.forget()
        return True

    def resume(self) -> bool:
        """As `run`, after other clusters have run for a while."""
        if self.order is not None:
            self.order.know_all()
        return self.run()

    def _run(self, cta: Cta) -> bool:
        ran = cta.run()
        if cta.steps_run > self.launch.step_limit:
            raise self._too_long(cta)
        return ran

    def _make_order(self, blocks: int) -> Order | None:
        """The clocks of this cluster, which also watch over global memory while it runs."""
        launch = self.launch
        if not launch.watches_races or launch.thread_count * blocks > MOST_THREADS:
            return None
        order = Order(launch.events, blocks, launch.thread_count, self.number, launch.begins_early)
        if launch.memory.watch is None:
            launch.memory.watch = Watch(launch.memory, order, launch.accesses, keeps_readers=False)
        return order

    def _let_a_poll_fail(self, alive: list[Cta]) -> bool:
        """`test_wait` may say no: when nothing else can run, let one group hear it and try something else."""
        for cta in alive:
            for group in cta.groups:
                if 0 < group.polls < _MOST_POLLS and group.ready is not None:
                    group.ready = None
                    group.is_told_no = True
                    return True
        return False

    # -- what went wrong -----------------------------------------------------------------------------------------------

    def deadlock(self) -> Fault:
        """Who waits for what, and who polls which address."""
        alive = [cta for cta in self.ctas if not cta.is_done]
        at: list[tuple[Cta, Group]] = [(cta, group) for cta in alive for group in cta.groups]
        lines = [f"block {cta.position}: {line}" for cta in alive for line in cta.waiting()]
        for cta, group in at:
            if group.ready is None:
                lines.append(f"block {cta.position}: {_round(cta, group)}")
        step = at[0][0].program.steps[at[0][1].pc]
        fault = Fault("deadlock", "no thread can go on\n    " + "\n    ".join(lines))
        return fault.locate(step.instruction.line, step.text, step.location)

    def _too_long(self, cta: Cta) -> Fault:
        """A block that runs without an end in sight, and where."""
        busiest = max(range(len(self.launch.counts)), key=self.launch.counts.__getitem__)
        step = cta.program.steps[busiest]
        limit = f"more than {self.launch.step_limit:,} steps (step_limit)"
        fault = Fault("step-limit", f"the block runs {limit}, most of them round here: a loop that does not end?")
        return fault.locate(step.instruction.line, step.text, step.location, f"block {cta.position}")


def _round(cta: Cta, group: Group) -> str:
    """Where a group goes round, and what it looks at: found by letting it go round once more."""
    launch = cta.launch
    before = list(launch.counts)
    threads, indices = describe_threads(group.indices), group.indices
    generator, launch.random = launch.random, None
    # Ahead of all others, so that it does not stop where they stand.
    group.time_slice = -1
    cta.run_group(group)
    launch.random = generator
    steps = [step for step, old, new in zip(cta.program.steps, before, launch.counts, strict=True) if new > old]
    lines = sorted(step.instruction.line for step in steps)
    text = f"{threads} go round PTX lines {lines[0]} to {lines[-1]}"
    for step in steps:
        if step.polled is not None:
            address = int(step.polled(cta, indices)[0])
            return f"{text} and poll address {address:#x} at {step.place}, which nobody changes"
    return f"{text} without an end"
