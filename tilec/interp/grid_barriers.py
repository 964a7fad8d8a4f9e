"""Barriers between blocks that run in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from tilec.interp.cooperative import CooperativeScheduler
from tilec.interp.roles import report_deadlock
from tilec.support.diagnostics import raise_error
from tilec.support.source import NOWHERE, Span


class GridBarriers:
    """Runs the blocks of a group. A block at a barrier lets the others run until they have arrived there or ended."""

    def __init__(self, clusters: Sequence[object]) -> None:
        """Take the cluster of each block."""
        self.clusters = clusters
        self.arrived: list[dict[str, int]] = [{} for _ in clusters]
        self.blocks = CooperativeScheduler(_report_stuck_blocks)

    def run(self, blocks: Sequence[Callable[[], None]]) -> None:
        """Run all blocks to their ends; an exception of one is raised here."""
        self.blocks.run(blocks)

    def arrive(self, block: int, barrier: str) -> None:
        self.arrived[block][barrier] = self.arrived[block].get(barrier, 0) + 1

    def wait(self, block: int, barrier: str) -> None:
        """Wait until all blocks of the block's cluster, or of the grid, have arrived as often at `barrier`: "grid" or
        "cluster"."""
        wanted = self.arrived[block].get(barrier, 0)
        self.blocks.until(lambda: self._have_arrived(block, barrier, wanted))

    def _have_arrived(self, block: int, barrier: str, wanted: int) -> bool:
        return all(
            self.blocks.is_done(other) or self.arrived[other].get(barrier, 0) >= wanted
            for other, cluster in enumerate(self.clusters)
            if barrier == "grid" or cluster == self.clusters[block]
        )


def _report_stuck_blocks(waiting: list[Span]) -> NoReturn:
    if at_barriers := [span for span in waiting if span != NOWHERE]:
        report_deadlock(at_barriers)
    raise_error("wrong-input", "deadlock: some blocks of the group never arrive at the barrier")
