"""Roles of a block that take turns on the CPU: each runs until it must wait for a barrier, then another one goes on.

The order is always the same, so that a run can be repeated: the roles in the order of their warps. Barriers count
arrivals; bytes need no counting, for what a role copies is there before it goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilec.diag import Label, fail
from tilec.source import NOWHERE, Span


@dataclass(slots=True)
class _Phases:
    """A barrier: how many arrivals complete a phase, how many have come in this one, and the phases before it."""

    count: int
    arrived: int = 0
    completed: int = 0


@dataclass(slots=True)
class _Role:
    run: Callable[[], None]
    may_go_on: Callable[[], bool] = lambda: True
    waits_at: Span = NOWHERE
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    error: BaseException | None = None
    is_done: bool = False


class Roles:
    """`counts` are those of each kernel's barriers, by name."""

    def __init__(self, counts: Mapping[str, tuple[int, ...]]) -> None:
        self.barriers = {(name, i): _Phases(count) for name, all_ in counts.items() for i, count in enumerate(all_)}
        self.roles: list[_Role] = []
        self.back = threading.Semaphore(0)
        self.running: _Role | None = None

    # ---- what roles do -----------------------------------------------------------------------------------------------

    def arrive(self, name: str, index: int, threads: int) -> None:
        barrier = self.barriers[name, index]
        barrier.arrived += threads
        while barrier.arrived >= barrier.count:
            barrier.arrived -= barrier.count
            barrier.completed += 1

    def wait(self, name: str, index: int, parity: int, span: Span) -> None:
        """Until the phase of this parity has completed."""
        barrier = self.barriers[name, index]
        self.until(lambda: barrier.completed % 2 != parity, span)

    def meet(self, number: int, threads: int, mine: int, waits: bool, span: Span) -> None:
        """A named barrier of so many threads, to which `mine` come now."""
        barrier = self.barriers.setdefault((f"named barrier {number}", 0), _Phases(threads))
        phase = barrier.completed
        self.arrive(f"named barrier {number}", 0, mine)
        if waits:
            self.until(lambda: barrier.completed > phase, span)

    def until(self, may_go_on: Callable[[], bool], span: Span) -> None:
        role = self.running
        assert role is not None
        if may_go_on():
            return
        role.may_go_on, role.waits_at = may_go_on, span
        self.back.release()
        role.turn.acquire()
        if role.error is not None:
            raise role.error

    # ---- turns -------------------------------------------------------------------------------------------------------

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """All of it; fails where nobody can go on."""
        self.roles = [_Role(run) for run in work]
        threads = [threading.Thread(target=self._work, args=(role,), daemon=True) for role in self.roles]
        for thread in threads:
            thread.start()
        stuck: BaseException | None = None
        while any(not role.is_done for role in self.roles):
            ready = next((r for r in self.roles if not r.is_done and (stuck is not None or r.may_go_on())), None)
            if ready is None:
                waiting = [r for r in self.roles if not r.is_done]
                try:
                    fail(
                        "deadlock",
                        "nobody arrives at the barrier that is waited for here",
                        waiting[0].waits_at,
                        "waits for ever",
                        secondary=tuple(Label(r.waits_at, "so does this") for r in waiting[1:]),
                    )
                except BaseException as error:
                    stuck = error
                continue
            ready.error = stuck  # so that it ends
            self.running = ready
            ready.turn.release()
            self.back.acquire()
            if ready.is_done and ready.error is not None and stuck is None:
                stuck = ready.error
        for thread in threads:
            thread.join()
        if stuck is not None:
            raise stuck

    def _work(self, role: _Role) -> None:
        role.turn.acquire()
        try:
            if role.error is None:
                role.run()
        except BaseException as error:
            role.error = error
        role.is_done = True
        self.back.release()
