"""Runs tasks that wait for each other on the CPU, one at a time, each on a thread: when one must wait, the first that
can goes on. The order is deterministic, so that a run can be repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import field

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
