"""Roles and blocks that wait for each other at barriers, run in Python, one at a time, each on a thread.

When one must wait, the first that can goes on. The order is deterministic, so that a run can be repeated. Barriers
count arrivals but not bytes: a copy is complete before its role goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import NoReturn

from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span

StuckHandler = Callable[[list[Span]], None]
"""Called with the positions of all waiting tasks when none can go on; reports that, or returns once one can."""


@dataclass(slots=True)
class _Task:
    run: Callable[[], None]
    may_go_on: Callable[[], bool] = lambda: True
    waits_at: Span = NOWHERE
    may_run: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    error: BaseException | None = None
    is_done: bool = False


class CooperativeScheduler:
    """Runs tasks one at a time, in a fixed order of preference."""

    def __init__(self, stuck: StuckHandler) -> None:
        self.stuck = stuck
        self.tasks: list[_Task] = []
        self.order: list[_Task] = []  # of preference
        self.back = threading.Semaphore(0)
        self.running: _Task | None = None

    def until(self, may_go_on: Callable[[], bool], span: Span = NOWHERE) -> None:
        """Pause the running task until a condition holds; return at once if it does."""
        if not may_go_on():
            self._pause_task(may_go_on, span)

    def yield_to_others(self) -> None:
        """Pause the running task, and put it last, so that all other tasks run first as far as they can."""
        assert self.running is not None
        self.order.remove(self.running)
        self.order.append(self.running)
        self._pause_task(lambda: True, self.running.waits_at)

    def _pause_task(self, may_go_on: Callable[[], bool], span: Span) -> None:
        """Let other tasks run until the running one is chosen and may go on; raise the error of a task that failed."""
        task = self.running
        assert task is not None
        task.may_go_on, task.waits_at = may_go_on, span
        self.back.release()
        task.may_run.acquire()
        if task.error is not None:
            raise task.error

    def may_go_on(self) -> bool:
        """Return whether some unfinished task's condition holds."""
        return any(task.may_go_on() for task in self.order if not task.is_done)

    def is_done(self, number: int) -> bool:
        """Return whether the task with this number has ended."""
        return self.tasks[number].is_done

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """Run all tasks to their ends, one at a time; call `stuck` if none can go on; an exception ends all and is
        raised here."""
        self.tasks = [_Task(run) for run in work]
        self.order = list(self.tasks)
        threads = [threading.Thread(target=self._run, args=(task,), daemon=True) for task in self.tasks]
        for thread in threads:
            thread.start()
        failure: BaseException | None = None
        while waiting := [task for task in self.order if not task.is_done]:
            ready = next((task for task in waiting if failure is not None or task.may_go_on()), None)
            if ready is None:
                try:
                    self.stuck([task.waits_at for task in waiting])
                except BaseException as error:
                    failure = error
                continue
            ready.error = failure  # makes the task end
            self.running = ready
            ready.may_run.release()
            self.back.acquire()
            if ready.is_done and failure is None:
                failure = ready.error
        for thread in threads:
            thread.join()
        if failure is not None:
            raise failure

    def _run(self, task: _Task) -> None:
        """Run a task on its own thread once it is chosen; keep its exception, and hand back control."""
        task.may_run.acquire()
        try:
            if task.error is None:
                task.run()
        except BaseException as error:
            task.error = error
        task.is_done = True
        self.back.release()


# ---- barriers --------------------------------------------------------------------------------------------------------


MAX_PHASE_QUERIES = 10_000
"""Queries of a phase after which a polling role counts as waiting for ever."""


@dataclass(slots=True)
class _BarrierPhases:
    """A barrier: the arrivals that complete a phase, those of the current phase, and the completed phases."""

    count: int
    arrived: int = 0
    completed: int = 0


class RoleBarriers:
    """Runs the roles of a block and the barriers between them. `counts` are the arrival counts of the kernel's
    barriers, by name. `blocks` runs the other blocks that may arrive at these barriers, if there are any."""

    def __init__(self, counts: Mapping[str, tuple[int, ...]], blocks: CooperativeScheduler | None = None) -> None:
        numbered = ((name, i, count) for name, all_ in counts.items() for i, count in enumerate(all_))
        self.barriers = {(name, i): _BarrierPhases(count) for name, i, count in numbered}
        self.blocks = blocks
        self.roles = CooperativeScheduler(report_deadlock if blocks is None else self._run_other_blocks)
        self.asked = 0

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """Run all roles to their ends, one at a time; if none can go on, let other blocks run, or without any report a
        deadlock."""
        self.roles.run(work)

    def arrive(self, name: str, index: int, threads: int) -> None:
        """Count `threads` arrivals at a barrier, and complete each phase whose count is reached."""
        barrier = self.barriers[name, index]
        barrier.arrived += threads
        while barrier.arrived >= barrier.count:
            barrier.arrived -= barrier.count
            barrier.completed += 1

    def wait(self, name: str, index: int, parity: int, span: Span) -> None:
        """Let other roles run until the barrier's phase of this parity has completed."""
        barrier = self.barriers[name, index]
        self.roles.until(lambda: barrier.completed % 2 != parity, span)

    def is_complete(self, name: str, index: int, parity: int, span: Span) -> bool:
        """Return whether a barrier's phase of this parity is complete, after others ran; too many queries are a
        deadlock error. Other roles and blocks run first, as far as they can."""
        self.asked += 1
        if self.asked > MAX_PHASE_QUERIES:
            report_deadlock([span])
        self.roles.yield_to_others()
        if self.blocks is not None:
            self.blocks.yield_to_others()
        return self.barriers[name, index].completed % 2 != parity

    def named_barrier(self, number: int, threads: int, arriving: int, waits: bool, span: Span) -> None:
        """Count `arriving` arrivals at a named barrier of `threads`, and if `waits` let other roles run until its phase
        completes."""
        barrier = self.barriers.setdefault((f"named barrier {number}", 0), _BarrierPhases(threads))
        phase = barrier.completed
        self.arrive(f"named barrier {number}", 0, arriving)
        if waits:
            self.roles.until(lambda: barrier.completed > phase, span)

    def _run_other_blocks(self, waiting: list[Span]) -> None:
        """Let other blocks run until a role of this block can go on; called when none can."""
        assert self.blocks is not None
        self.blocks.until(self.roles.may_go_on, waiting[0])


def report_deadlock(waiting: list[Span]) -> NoReturn:
    """Raise the error that no role can go on, at the positions where they wait."""
    message = "deadlock: no role arrives at this barrier"
    others = tuple(Label(span, "so does this") for span in waiting[1:])
    raise_error("deadlock", message, waiting[0], "waits for ever", secondary=others)


class GridBarriers:
    """Runs the blocks of a group. A block at a barrier lets the others run until they have arrived there or ended."""

    def __init__(self, clusters: Sequence[object]) -> None:
        """Take the cluster of each block."""
        self.clusters = clusters
        self.arrived: list[dict[str, int]] = [{} for _ in clusters]
        self.blocks = CooperativeScheduler(_report_stuck_blocks)

    def run(self, blocks: Sequence[Callable[[], None]]) -> None:
        """Run all blocks of the group to their ends; raise the exception of one that fails."""
        self.blocks.run(blocks)

    def arrive(self, block: int, barrier: str) -> None:
        """Count one arrival of a block at the barrier "grid" or "cluster"."""
        self.arrived[block][barrier] = self.arrived[block].get(barrier, 0) + 1

    def wait(self, block: int, barrier: str) -> None:
        """Let other blocks run until all of the cluster, or grid, arrived at `barrier` as often as this one, or ended.
        `barrier` is "grid" or "cluster"."""
        wanted = self.arrived[block].get(barrier, 0)
        self.blocks.until(lambda: self._have_arrived(block, barrier, wanted))

    def _have_arrived(self, block: int, barrier: str, wanted: int) -> bool:
        """Return whether all blocks of the cluster, or of the grid, have arrived at a barrier `wanted` times, or
        ended."""
        return all(
            self.blocks.is_done(other) or self.arrived[other].get(barrier, 0) >= wanted
            for other, cluster in enumerate(self.clusters)
            if barrier == "grid" or cluster == self.clusters[block]
        )


def _report_stuck_blocks(waiting: list[Span]) -> NoReturn:
    """Raise a deadlock error: at the barriers where blocks wait, or without a position."""
    if at_barriers := [span for span in waiting if span != NOWHERE]:
        report_deadlock(at_barriers)
    raise_error("wrong-input", "deadlock: some blocks of the group never arrive at the barrier")
