"""Roles of a block that wait for each other at barriers where they run in Python, in the order of their warps.

Barriers count arrivals; bytes need no counting, for what a role copies is there before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from tilec.interp.cooperative import Cooperative
from tilec.support.diagnostics import Label, fail
from tilec.support.records import dataclass
from tilec.support.source import Span

MOST_ASKED = 10_000
"""A role that asks so often whether a phase is complete waits for it for ever."""


@dataclass(slots=True)
class _Phases:
    """A barrier: how many arrivals complete a phase, how many have come in this one, and the phases before it."""

    count: int
    arrived: int = 0
    completed: int = 0


class Roles:
    """`counts` are those of each kernel's barriers, by name. Where other blocks arrive at these too, `blocks` run
    meanwhile, of which this is one."""

    def __init__(self, counts: Mapping[str, tuple[int, ...]], blocks: Cooperative | None = None) -> None:
        self.barriers = {(name, i): _Phases(count) for name, all_ in counts.items() for i, count in enumerate(all_)}
        self.blocks = blocks
        self.roles = Cooperative(stuck if blocks is None else self._let_others)
        self.asked = 0

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """All of it; fails where nobody can go on."""
        self.roles.run(work)

    def arrive(self, name: str, index: int, threads: int) -> None:
        barrier = self.barriers[name, index]
        barrier.arrived += threads
        while barrier.arrived >= barrier.count:
            barrier.arrived -= barrier.count
            barrier.completed += 1

    def wait(self, name: str, index: int, parity: int, span: Span) -> None:
        """Until the phase of this parity has completed."""
        barrier = self.barriers[name, index]
        self.roles.until(lambda: barrier.completed % 2 != parity, span)

    def is_complete(self, name: str, index: int, parity: int, span: Span) -> bool:
        """Whether the phase of this parity has completed, once the other roles have gone as far as they can."""
        self.asked += 1
        if self.asked > MOST_ASKED:
            stuck([span])
        self.roles.give_way()
        if self.blocks is not None:
            self.blocks.give_way()
        return self.barriers[name, index].completed % 2 != parity

    def named_barrier(self, number: int, threads: int, mine: int, waits: bool, span: Span) -> None:
        """A named barrier of so many threads, to which `mine` come now."""
        barrier = self.barriers.setdefault((f"named barrier {number}", 0), _Phases(threads))
        phase = barrier.completed
        self.arrive(f"named barrier {number}", 0, mine)
        if waits:
            self.roles.until(lambda: barrier.completed > phase, span)

    def _let_others(self, waiting: list[Span]) -> None:
        """The other blocks go on until one of them has arrived at what is waited for."""
        assert self.blocks is not None
        self.blocks.until(self.roles.may_go_on, waiting[0])


def stuck(waiting: list[Span]) -> NoReturn:
    """Nobody can go on."""
    fail(
        "deadlock",
        "nobody arrives at the barrier that is waited for here",
        waiting[0],
        "waits for ever",
        secondary=tuple(Label(span, "so does this") for span in waiting[1:]),
    )
