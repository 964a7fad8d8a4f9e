"""The client of a `worker` process: asks one question at a time, and ends the process where it takes too long or the
answer is no longer wanted."""

from __future__ import annotations

import asyncio
import pickle
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import tilec
from tilec.lsp.worker import LENGTH, Answer, Question


class WorkerClient:
    """Starts its worker with the first question, and again after a question that ended it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._asked: Question | None = None

    async def ask(self, question: Question, is_wanted: Callable[[], bool]) -> Answer | None:
        """Ask the worker when its turn comes, and return the answer; None if unwanted by then, timed out or failed
        twice. A worker that has ended is started and asked once more, because an earlier question may have ended it.
        """
        async with self._lock:
            if not is_wanted():
                return None
            self._asked = question
            try:
                for _ in range(2):
                    try:
                        return await asyncio.wait_for(self._answer(question), self.seconds)
                    except TimeoutError:  # an OSError too
                        break
                    except (asyncio.IncompleteReadError, OSError):
                        self.stop()
                    if not is_wanted():
                        break
            finally:
                self._asked = None
            self.stop()
            return None

    async def _answer(self, question: Question) -> Answer:
        """Send a pickled question to the worker, starting it if none runs, and wait for its answer."""
        if self._process is None or self._process.returncode is not None:
            self._process = await _start_worker()
            self._watch = asyncio.create_task(_watch_process(self._process))
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        written = pickle.dumps(question)
        process.stdin.write(LENGTH.pack(len(written)) + written)
        await process.stdin.drain()
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        found = pickle.loads(await process.stdout.readexactly(length))
        assert isinstance(found, Answer)
        return found

    def abandon_file(self, path: str) -> None:
        """Kill the worker if it is answering a question about this file."""
        if self._asked is not None and self._asked.source.path == path:
            self.stop()

    def stop(self) -> None:
        """Kill the worker process if one runs; the next question starts a new one."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
        self._process = None


async def _start_worker() -> Process:
    """Start a worker process, with pipes for questions and answers, that cannot import from the current folder."""
    # Without the current folder (-P): it is the editor's, and may contain any Python.
    ours = str(Path(tilec.__file__).parents[1])
    program = f"import sys; sys.path.insert(0, {ours!r}); from tilec.lsp.worker import main; main()"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", program, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )


async def _watch_process(process: Process) -> None:
    """Wait until a process ends, and kill it if this task is cancelled before; then close its pipe."""
    try:
        await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        assert process.stdin is not None
        process.stdin.close()
        with suppress(OSError):
            await process.stdin.wait_closed()
