"""Runs trials on the nodes of a Ray cluster, on this machine or on others (`pip install '.[ray]'`).

If a node disappears, Ray gives its trials to others. A trial whose worker has died in every try is lost.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilec.support.diagnostics import CompileError, raise_error
from tilec.tune.engines import LostTask, Result, Task, check_tilec_version

PATIENCE_SECONDS = 10
"""Time limit for the head node to answer."""

MAX_TRIES = 4
"""Tries of one trial, if its workers die."""


class RayEngine:
    """The nodes of the cluster whose head is at `address`, as in host:6379; `auto` is this machine's cluster. Fails
    with `no-scheduler` if it cannot be reached or has no processors, and with `wrong-worker` if a node has another
    version of tilec, Ray or Python."""

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            advice = "pip install '.[ray]', here and on every node"
            raise_error("no-scheduler", "Ray is not installed here", help=advice)
        self._ray: Any = ray
        _check_reachable(address)
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
        except (ConnectionError, OSError, ValueError) as error:
            _fail_without_head(address, error)
        except RuntimeError as error:
            title, notes = f"the cluster at {address} runs another version of Ray or Python", (_get_first_line(error),)
            raise_error(
                "wrong-worker", title, notes=notes, help="install the same Python and Ray here and on every node"
            )
        if not self._nodes:
            self.close()
            raise_error("no-scheduler", f"no node of {address} has processors", help=f"ray start --address={address}")
        # Ray hides the GPUs from a trial that does not request one.
        self._gpus = int(all(node["Resources"].get("GPU", 0) >= 1 for node in self._nodes))
        self._check_nodes()

    @property
    def _nodes(self) -> list[dict[str, Any]]:
        """Return the live nodes with processors, which run trials, sorted by address."""
        found = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        return sorted(found, key=lambda node: (node["NodeManagerAddress"], node["NodeManagerPort"]))

    def _check_nodes(self) -> None:
        """Raise `wrong-worker` unless every node has this version of tilec, and close the engine then."""

        def get_version() -> str | None:  # must not refer to tilec, which a node may lack
            """Return the version of tilec on the node that runs this; None if it has none."""
            try:
                import tilec
            except ImportError:
                return None
            return tilec.__version__

        try:
            for node, found in zip(self._nodes, self.everywhere(get_version), strict=True):
                check_tilec_version(f"node at {node['NodeManagerAddress']}", found)
        except CompileError:
            self.close()
            raise

    @property
    def processes(self) -> int:
        """Return the number of GPUs, or of processors, in the cluster: how many tasks run at a time; at least 1."""
        resources: dict[str, float] = self._ray.cluster_resources()
        return max(int(resources.get("GPU" if self._gpus else "CPU", 1)), 1)

    def _make_remote(self, function: Callable[..., Result], **options: Any) -> Any:
        """Return the function as a Ray task for one processor, and one GPU if every node has one."""

        def run_task(*arguments: Any) -> Result:
            return function(*arguments)

        return self._ray.remote(num_cpus=1, num_gpus=self._gpus, max_retries=MAX_TRIES - 1, **options)(run_task)

    def everywhere(self, function: Callable[[], Result]) -> list[Result]:
        """Return the function's result on each node, in the order of their addresses."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in self._nodes]
        answers: list[Result] = self._ray.get(
            [self._make_remote(function, scheduling_strategy=place).remote() for place in places]
        )
        return answers

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result | LostTask]]:
        """Yield the number of each task as it completes, with its result or `LostTask`; cancel the rest if the caller
        stops. A task whose workers die is lost.
        """
        from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

        task = self._make_remote(function)
        numbers = {task.remote(argument): number for number, argument in enumerate(tasks)}
        try:
            while numbers:
                (done,), _ = self._ray.wait(list(numbers), num_returns=1)
                number = numbers.pop(done)
                try:
                    yield number, self._ray.get(done)
                except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as lost:
                    yield number, LostTask(f"its workers ended: {_get_first_line(lost)}")
        finally:
            for left in numbers:
                self._ray.cancel(left, force=True)

    def close(self) -> None:
        self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise `no-scheduler` if nothing answers at the address; `auto` is not tried.

    Ray itself would try for a minute.
    """
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    try:
        socket.create_connection((host, int(port)), PATIENCE_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        _fail_without_head(address, error)


def _fail_without_head(address: str, error: Exception) -> None:
    """Raise `no-scheduler`: no Ray cluster answers at the address, with the error's first line."""
    title, notes = f"no Ray cluster answers at {address}", (_get_first_line(error),)
    advice = "start one with `ray start --head` and give --scheduler the address that it prints"
    raise_error("no-scheduler", title, notes=notes, help=advice)


def _get_first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
