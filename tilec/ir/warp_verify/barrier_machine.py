"""An abstract machine of barriers: roles that run until they have to wait, barriers that count arrivals, and vector
clocks of what a role knows to have happened after it has waited for a phase.

Two checks run it. `explicit_roles.protocol`, with `explicit_roles.check_role_races`, feeds it the statements by which a
kernel orders its roles itself; `ir.warp_verify`, with `ir.warp_order`, feeds it the rings of a warp program. The
machine is one, the drivers are two, because they know different things:

* A kernel names a phase by its parity, and computes barrier and parity from variables: tile IR has their values, and
  each statement has a line to blame. In a warp program these are registers like any others, and to know them is to run
  the program, as the emulator does.
* A warp program names a version by a cursor, and the number of times that it has wrapped around is the phase: no parity
  is needed, and one arrival too many is seen at once, whereas at a barrier of the kernel's own it may belong to the
  next phase.

The emulator has barriers of its own: it shares no code with the passes whose mistakes it has to find. Nor do the passes
that place waits (`passes.lower`) use this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from tilec.support.records import dataclass

Actor = TypeVar("Actor", bound=Hashable)
Signal = TypeVar("Signal", bound=Hashable)
State = TypeVar("State")

KEPT_PHASES = 3
"""The newest phases of a barrier whose knowledge is kept: nobody waits for an older one."""


@dataclass(slots=True)
class Barrier:
    """An mbarrier: completes a phase when `count` arrivals, and all bytes announced to it, have come. `arrived` and
    `bytes` belong to the current phase, `phase` counts completed ones. Surplus arrivals count for the next phase."""

    count: int
    arrived: int = 0
    bytes: int = 0
    phase: int = 0

    def arrive(self, arrivals: int, announced: int = 0) -> bool:
        """Count arrivals, and bytes announced (positive) or received (negative); return whether a phase completes."""
        self.arrived += arrivals
        self.bytes += announced
        before = self.phase
        while self.arrived >= self.count and not self.bytes:
            self.arrived -= self.count
            self.phase += 1
        return self.phase > before

    def fill(self) -> None:
        """Complete the current phase at once, with no arrivals and bytes left over."""
        self.arrived = self.bytes = 0
        self.phase += 1

    def has_completed(self, parity: int) -> bool:
        """Return whether the phase of this parity has completed, taken as the one just before the current phase."""
        return self.phase % 2 != parity

    @property
    def misses_only_bytes(self) -> bool:
        """Return whether all arrivals have come, so that the current phase waits for bytes only."""
        return bool(self.bytes) and self.arrived >= self.count


def run_together(
    states: Sequence[State],
    advance: Callable[[State], bool],
    is_done: Callable[[State], bool],
    is_cut: Callable[[State], bool],
) -> Literal["done", "cut", "stuck"]:
    """Advance all roles in turn until all are done or none moves; return `cut` if one was cut short, else `done` or
    `stuck`. `advance` returns whether a role made progress. Where a role is cut short (`is_cut`), roles that wait for
    it are not stuck.
    """
    while not all(map(is_done, states)):
        has_moved = [advance(state) for state in states]
        if not any(has_moved):
            break
    if any(map(is_cut, states)):
        return "cut"
    return "done" if all(map(is_done, states)) else "stuck"


# ---- what is known to have happened ----------------------------------------------------------------------------------


def join_clocks(known: dict[Actor, int], more: Mapping[Actor, int]) -> None:
    """Raise each actor's time in `known` to the one in `more`, if that is later: what both together know (vector
    clocks)."""
    for actor, time in more.items():
        if known.get(actor, 0) < time:
            known[actor] = time


class PhaseClocks(Generic[Signal, Actor]):
    """The knowledge that the phases of barriers pass on: everything known to those who arrived in it or in an earlier
    one."""

    def __init__(self) -> None:
        self.made: dict[Signal, dict[int, dict[Actor, int]]] = {}

    def arrive(self, signal: Signal, phase: int, *known: Mapping[Actor, int]) -> None:
        """Add an arriving actor's knowledge to that of a phase, which begins with the previous phase's; drop old
        phases."""
        made = self.made.setdefault(signal, {})
        if phase not in made:
            last = max((earlier for earlier in made if earlier < phase), default=None)
            made[phase] = {} if last is None else dict(made[last])
            made.pop(phase - KEPT_PHASES, None)
        for each in known:
            join_clocks(made[phase], each)

    def wait(self, signal: Signal, phases: int, known: dict[Actor, int]) -> None:
        """Add to `known` the knowledge that the last of the first `phases` phases passes on, with that of all before
        it."""
        made = self.made.get(signal, {})
        last = max((phase for phase in made if phase < phases), default=None)
        if last is not None:
            join_clocks(known, made[last])
