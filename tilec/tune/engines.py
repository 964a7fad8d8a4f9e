"""Where trials run. An engine is given a function and what to call it with, and tells what came of each as it comes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from tilec import __version__
from tilec.support.diagnostics import fail
from tilec.support.processes import deaf_processes, end_with_parent

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Lost(Exception):
    """What carried out a task is gone, and the task may be why: it was tried alone."""


class Engine(Protocol):
    @property
    def processes(self) -> int:
        """How many tasks it carries out at a time."""

    def run(self, function: Callable[[Asked], Answer], tasks: Sequence[Asked]) -> Iterator[tuple[int, Answer | Lost]]:
        """The number of each task with its answer, in the order in which they come."""

    def close(self) -> None: ...


def check_version(what: str, found: str | None) -> None:
    """Fails with `wrong-worker` where `what`, as in "node at 10.0.0.2", has another tilec than here (None: none)."""
    if found == __version__:
        return
    kind = what.partition(" ")[0]
    fail(
        "wrong-worker",
        f"the {what} has {'no tilec' if found is None else f'tilec {found}'}, here it is {__version__}",
        help=f"install the same version on every {kind}",
    )


class Local:
    """Processes of this machine."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._pool = self._made()

    def _made(self) -> ProcessPoolExecutor:
        # Not forked: the process that searches may have threads, which a progress bar has.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.processes, context, _begin, (os.getpid(),))

    def run(self, function: Callable[[Asked], Answer], tasks: Sequence[Asked]) -> Iterator[tuple[int, Answer | Lost]]:
        """A process that ends takes the pool with it, and all that it was at: each of those is tried once more, alone,
        so that only the one at fault is lost."""
        left = dict(enumerate(tasks))
        try:
            with deaf_processes():
                futures: dict[Future[Answer], int] = {self._pool.submit(function, task): n for n, task in left.items()}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
                    del left[futures[future]]
            except BrokenProcessPool:
                pass
            for number, task in left.items():
                yield number, self._alone(function, task)
        except (GeneratorExit, KeyboardInterrupt):
            self._abandon()
            raise

    def _alone(self, function: Callable[[Asked], Answer], task: Asked) -> Answer | Lost:
        for _ in range(2):  # the pool may be the one that has just broken
            try:
                with deaf_processes():
                    submitted = self._pool.submit(function, task)
                return submitted.result()
            except BrokenProcessPool:
                self._pool = self._made()
        return Lost("its process ended")

    def _abandon(self) -> None:
        """What is under way is of no interest any more."""
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)  # its thread may not meet the end of this process
        self._pool = self._made()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int) -> None:
    """Ctrl-C reaches every process of a terminal: the first one ends the others. One that was killed cannot."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
