"""Engines that run trials: an engine calls a function on many tasks and yields each result as it arrives."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from tilec import __version__
from tilec.support.diagnostics import raise_error
from tilec.support.processes import block_terminal_signals, end_with_parent

Task = TypeVar("Task")
Result = TypeVar("Result")


class LostTask(Exception):
    """The process or worker of a task has died, possibly because of the task: it was retried alone."""


class Engine(Protocol):
    """Runs a function on tasks, several at a time."""

    @property
    def processes(self) -> int:
        """Return how many tasks run at a time."""

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result | LostTask]]:
        """Yield (task number, result or `LostTask`) in the order of completion."""

    def close(self) -> None: ...


def check_tilec_version(machine: str, found: str | None) -> None:
    """Raise `wrong-worker` if another machine's version of tilec, `found` (None: none), is not this one.

    `machine` is, for example, "node at 10.0.0.2".
    """
    if found == __version__:
        return
    title = f"the {machine} has {'no tilec' if found is None else f'tilec {found}'}, here it is {__version__}"
    raise_error("wrong-worker", title, help=f"install the same version on every {machine.partition(' ')[0]}")


class LocalEngine:
    """Runs tasks in processes of this machine."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._pool = self._make_pool()

    def _make_pool(self) -> ProcessPoolExecutor:
        """Return a new pool of worker processes, started afresh rather than forked."""
        # Not forked: the searching process may have threads, for example that of a progress bar.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.processes, context, _start_worker, (os.getpid(),))

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result | LostTask]]:
        """Yield the number and result of each task; after a crash retry each unfinished task alone. A dying process
        breaks the pool and all running tasks; so only the task at fault is lost. Running tasks are terminated if the
        caller stops.
        """
        unfinished = dict(enumerate(tasks))
        try:
            with block_terminal_signals():
                futures: dict[Future[Result], int] = {self._pool.submit(function, t): n for n, t in unfinished.items()}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
                    del unfinished[futures[future]]
            except BrokenProcessPool:
                pass
            for number, task in unfinished.items():
                yield number, self._retry_alone(function, task)
        except (GeneratorExit, KeyboardInterrupt):
            self._abandon_tasks()
            raise

    def _retry_alone(self, function: Callable[[Task], Result], task: Task) -> Result | LostTask:
        """Run a task by itself in the pool, and return its result, or `LostTask` if its process dies again."""
        for _ in range(2):  # the pool may be the one that has just broken
            try:
                with block_terminal_signals():
                    submitted = self._pool.submit(function, task)
                return submitted.result()
            except BrokenProcessPool:
                self._pool = self._make_pool()
        return LostTask("its process ended")

    def _abandon_tasks(self) -> None:
        """Terminate the running tasks, whose results nobody needs, and start a new pool."""
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)  # its thread may not meet the end of this process
        self._pool = self._make_pool()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(parent: int) -> None:
    """Set up a worker process: ignore Ctrl-C, which its parent handles, and end when the parent ends."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
