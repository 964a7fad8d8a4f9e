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
        self.pieces: list[_Task] = []
        self.order: list[_Task] = []  # of preference
        self.back = threading.Semaphore(0)
        self.running_steps: _Task | None = None

    def until(self, may_go_on: Callable[[], bool], span: Span = NOWHERE) -> None:
        """Make the running task wait for a condition."""
        piece = self.running_steps
        assert piece is not None
        if may_go_on():
            return
        piece.may_go_on, piece.waits_at = may_go_on, span
        self._pause_task(piece)

    def yield_to_others(self) -> None:
        """Let all other tasks run first, as far as they can."""
        piece = self.running_steps
        assert piece is not None
        self.order.remove(piece)
        self.order.append(piece)
        piece.may_go_on = lambda: True
        self._pause_task(piece)

    def _pause_task(self, piece: _Task) -> None:
        self.back.release()
        piece.may_run.acquire()
        if piece.error is not None:
            raise piece.error

    def may_go_on(self) -> bool:
        return any(piece.may_go_on() for piece in self.order if not piece.is_done)

    def is_done(self, number: int) -> bool:
        return self.pieces[number].is_done

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """Run all tasks to their ends. An exception of one ends the others and is raised here."""
        self.pieces = [_Task(run) for run in work]
        self.order = list(self.pieces)
        threads = [threading.Thread(target=self._run, args=(piece,), daemon=True) for piece in self.pieces]
        for thread in threads:
            thread.start()
        failure: BaseException | None = None
        while waiting := [piece for piece in self.order if not piece.is_done]:
            ready = next((piece for piece in waiting if failure is not None or piece.may_go_on()), None)
            if ready is None:
                try:
                    self.stuck([piece.waits_at for piece in waiting])
                except BaseException as error:
                    failure = error
                continue
            ready.error = failure  # makes the task end
            self.running_steps = ready
            ready.may_run.release()
            self.back.acquire()
            if ready.is_done and failure is None:
                failure = ready.error
        for thread in threads:
            thread.join()
        if failure is not None:
            raise failure

    def _run(self, piece: _Task) -> None:
        piece.may_run.acquire()
        try:
            if piece.error is None:
                piece.run()
        except BaseException as error:
            piece.error = error
        piece.is_done = True
        self.back.release()
