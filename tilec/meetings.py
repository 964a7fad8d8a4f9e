"""Lets blocks wait for each other where they run in Python: each on a thread of its own, one at a time, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Semaphore, Thread

from tilec.diag import fail


class Meetings:
    """Runs the blocks of a group. A block that comes to a meeting lets the others go on until they have come there, or
    have ended."""

    def __init__(self, clusters: Sequence[object]) -> None:
        """Which cluster each block belongs to."""
        self.clusters = clusters
        self.arrived: list[dict[str, int]] = [{} for _ in clusters]
        self.done = [False for _ in clusters]
        self.turns = [Semaphore(0) for _ in clusters]
        self.finished = Semaphore(0)
        self.idle = 0  # how many turns have passed in which nobody got on
        self.error: BaseException | None = None

    def run(self, blocks: Sequence[Callable[[], None]]) -> None:
        """Each of them to its end; what one of them raises is raised here."""
        threads = [Thread(target=self._block, args=(n, block), daemon=True) for n, block in enumerate(blocks)]
        for thread in threads:
            thread.start()
        self.turns[0].release()
        self.finished.acquire()
        if self.error is not None:
            raise self.error

    def arrive(self, block: int, where: str) -> None:
        self.arrived[block][where] = self.arrived[block].get(where, 0) + 1
        self.idle = 0

    def wait(self, block: int, where: str) -> None:
        """Until all of the block's cluster, or of the grid, have arrived as often."""
        wanted = self.arrived[block].get(where, 0)
        while not self._have_come(block, where, wanted):
            self.idle += 1
            if self.idle > 2 * len(self.clusters):
                fail("wrong-input", "blocks wait for each other for ever: not all of them come to a meeting")
            self._next(block)
            self.turns[block].acquire()

    def _have_come(self, block: int, where: str, wanted: int) -> bool:
        return all(
            self.done[other] or self.arrived[other].get(where, 0) >= wanted
            for other, cluster in enumerate(self.clusters)
            if where == "grid" or cluster == self.clusters[block]
        )

    def _block(self, number: int, run: Callable[[], None]) -> None:
        self.turns[number].acquire()
        try:
            run()
        except BaseException as error:
            self.error = error
            self.finished.release()
            return
        self.done[number] = True
        self.idle = 0
        if all(self.done):
            self.finished.release()
        else:
            self._next(number)

    def _next(self, block: int) -> None:
        count = len(self.done)
        following = next(n % count for n in range(block + 1, block + 1 + count) if not self.done[n % count])
        self.turns[following].release()
