"""Runs trials on the workers of a dask scheduler, on this machine or on others (`pip install '.[dask]'`).

If a worker disappears, the scheduler gives its trials to others. A trial that several workers have died on is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilec.support.diagnostics import CompileError, raise_error
from tilec.tune.engines import LostTask, Result, Task, check_tilec_version

PATIENCE_SECONDS = 10
"""Time limit for the scheduler to answer, and for its first worker."""


class DaskEngine:
    """The workers of the scheduler at `address`, as in tcp://host:8786. Fails with `no-scheduler` if it cannot be
    reached or has no workers, and with `wrong-worker` if a worker has another version of tilec."""

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            advice = "pip install '.[dask]', here and on every worker"
            raise_error("no-scheduler", "dask is not installed here", help=advice)
        try:
            self._client: Any = distributed.Client(address, timeout=PATIENCE_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            notes = (str(error).splitlines()[0] if str(error) else type(error).__name__,)
            advice = "start one with `dask scheduler` and give --scheduler the address that it prints"
            raise_error("no-scheduler", f"no dask scheduler answers at {address}", notes=notes, help=advice)
        try:
            self._client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
        except TimeoutError:
            self.close()
            advice = f"start `dask worker {address}`"
            raise_error("no-scheduler", f"the scheduler at {address} has no workers", help=advice)
        found: dict[str, Any] = self._client.run(_get_tilec_version, on_error="return")
        try:
            for worker, version in sorted(found.items()):
                check_tilec_version(f"worker at {worker}", None if isinstance(version, Exception) else version)
        except CompileError:
            self.close()
            raise

    @property
    def processes(self) -> int:
        """Return the number of the workers' threads, which is how many tasks run at a time; at least 1."""
        threads: dict[str, int] = self._client.nthreads()
        return max(sum(threads.values()), 1)

    def everywhere(self, function: Callable[[], Result]) -> list[Result]:
        """Return the function's result on each worker, in the order of their addresses."""
        answers: dict[str, Result] = self._client.run(function)
        return [answers[worker] for worker in sorted(answers)]

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result | LostTask]]:
        """Yield the number of each task as it completes, with its result or `LostTask`; cancel the rest if the caller
        stops. A task whose workers die is lost.
        """
        from distributed import as_completed
        from distributed.scheduler import KilledWorker

        # Not pure: an equal task of an earlier search may have been cancelled.
        numbers = {self._client.submit(function, task, pure=False): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(list(numbers), loop=self._client.loop):
                try:
                    yield numbers[future], future.result()
                except KilledWorker as lost:
                    yield numbers[future], LostTask(f"its workers ended: {str(lost).splitlines()[0]}")
        finally:
            self._client.cancel(list(numbers))

    def close(self) -> None:
        self._client.close()


def _get_tilec_version() -> str:
    """Return the version of tilec in the process that runs this function."""
    import tilec

    return tilec.__version__
