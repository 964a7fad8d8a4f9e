"""Barriers between the roles of a block that runs in Python; roles run in the order of their warps.

Barriers count arrivals but not bytes: a copy is complete before its role goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from tilec.interp.cooperative import Cooperative
from tilec.support.diagnostics import Label, fail
from tilec.support.records import dataclass
from tilec.support.source import Span

MOST_ASKED = 10_000
"""Queries of a phase after which a polling role counts as waiting for ever."""


@dataclass(slots=True)
class _Phases:
    """A barrier: the arrivals that complete a phase, those of the current phase, and the completed phases."""

    count: int
    arrived: int = 0
    completed: int = 0


class Roles:
    """Runs the roles of a block and the barriers between them. `counts` are the arrival counts of the kernel's
    barriers, by name. `blocks` runs the other blocks that may arrive at these barriers, if there are any."""

    def __init__(self, counts: Mapping[str, tuple[int, ...]], blocks: Cooperative | None = None) -> None:
        self.barriers = {(name, i): _Phases(count) for name, all_ in counts.items() for i, count in enumerate(all_)}
        self.blocks = blocks
        self.roles = Cooperative(stuck if blocks is None else self._let_others)
        self.asked = 0

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """Run all roles; fail if none can go on."""
        self.roles.run(work)

    def arrive(self, name: str, index: int, threads: int) -> None:
        barrier = self.barriers[name, index]
        barrier.arrived += threads
        while barrier.arrived >= barrier.count:
            barrier.arrived -= barrier.count
            barrier.completed += 1

    def wait(self, name: str, index: int, parity: int, span: Span) -> None:
        """Wait until the phase of this parity has completed."""
        barrier = self.barriers[name, index]
        self.roles.until(lambda: barrier.completed % 2 != parity, span)

    def is_complete(self, name: str, index: int, parity: int, span: Span) -> bool:
        """Return whether the phase of this parity has completed, after letting the other roles run as far as they
        can."""
        self.asked += 1
        if self.asked > MOST_ASKED:
            stuck([span])
        self.roles.give_way()
        if self.blocks is not None:
            self.blocks.give_way()
        return self.barriers[name, index].completed % 2 != parity

    def named_barrier(self, number: int, threads: int, arriving: int, waits: bool, span: Span) -> None:
        """Arrive with `arriving` threads at a named barrier of `threads`, and wait for it if `waits`."""
        barrier = self.barriers.setdefault((f"named barrier {number}", 0), _Phases(threads))
        phase = barrier.completed
        self.arrive(f"named barrier {number}", 0, arriving)
        if waits:
            self.roles.until(lambda: barrier.completed > phase, span)

    def _let_others(self, waiting: list[Span]) -> None:
        """Let the other blocks run until a role of this block can go on."""
        assert self.blocks is not None
        self.blocks.until(self.roles.may_go_on, waiting[0])


def stuck(waiting: list[Span]) -> NoReturn:
    """Report that no one can go on."""
    fail(
        "deadlock",
        "nobody arrives at the barrier that is waited for here",
        waiting[0],
        "waits for ever",
        secondary=tuple(Label(span, "so does this") for span in waiting[1:]),
    )
