"""Barriers between blocks that run in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from tilec.interp.cooperative import Cooperative
from tilec.interp.roles import stuck
from tilec.support.diagnostics import fail
from tilec.support.source import NOWHERE, Span


class GridBarriers:
    """Runs the blocks of a group. A block at a barrier lets the others run until they have arrived there or ended."""

    def __init__(self, clusters: Sequence[object]) -> None:
        """Take the cluster of each block."""
        self.clusters = clusters
        self.arrived: list[dict[str, int]] = [{} for _ in clusters]
        self.blocks = Cooperative(_stuck)

    def run(self, blocks: Sequence[Callable[[], None]]) -> None:
        """Run all blocks to their ends; an exception of one is raised here."""
        self.blocks.run(blocks)

    def arrive(self, block: int, barrier: str) -> None:
        self.arrived[block][barrier] = self.arrived[block].get(barrier, 0) + 1

    def wait(self, block: int, barrier: str) -> None:
        """Wait until all blocks of the block's cluster, or of the grid, have arrived as often at `barrier`: "grid" or
        "cluster"."""
        wanted = self.arrived[block].get(barrier, 0)
        self.blocks.until(lambda: self._have_come(block, barrier, wanted))

    def _have_come(self, block: int, barrier: str, wanted: int) -> bool:
        return all(
            self.blocks.is_done(other) or self.arrived[other].get(barrier, 0) >= wanted
            for other, cluster in enumerate(self.clusters)
            if barrier == "grid" or cluster == self.clusters[block]
        )


def _stuck(waiting: list[Span]) -> NoReturn:
    if at_barriers := [span for span in waiting if span != NOWHERE]:
        stuck(at_barriers)
    fail("wrong-input", "blocks wait for each other for ever: not all of them come to a barrier")
