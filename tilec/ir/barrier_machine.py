"""An abstract machine of barriers: roles that run until they have to wait, barriers that count what arrives, and what
who waits for a phase then knows to have happened.

Two checks run it. `explicit_roles.protocol`, and `explicit_roles.role_races` with it, have as its events the statements
by which a kernel orders its roles itself; `ir.warp_verify`, and `ir.warp_order` with it, the rings of a warp program.
The machine is one, what drives it are two, for the two know different things:

* A kernel names a phase by its parity, and computes barrier and parity from variables: tile IR has their values, and
  each statement a place in the text at which to blame it. In a warp program these are registers like any others, and
  to know them is to run the program, as the emulator does.
* A warp program names a version by a cursor, and how often that has come round is the number of the phase: no parity is
  needed, and an arrival too many is seen at once, whereas at a barrier of the kernel's own it may be meant for the next
  phase.

The emulator has barriers of its own: it shares no code with what it is to find mistakes of. Nor does what places waits
(`passes.lower`) know of this.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from tilec.support.records import dataclass

Actor = TypeVar("Actor", bound=Hashable)
Signal = TypeVar("Signal", bound=Hashable)
State = TypeVar("State")

KEPT_PHASES = 3
"""Of a barrier, of which it is kept what they hand on: nobody waits for one that lies further back."""


@dataclass(slots=True)
class Barrier:
    """Completes a phase when `count` arrivals, and all bytes announced to it, have come: `arrived` and `bytes` are
    those of the phase under way, `phase` counts those completed. What arrives beyond the count is for the next one."""

    count: int
    arrived: int = 0
    bytes: int = 0
    phase: int = 0

    def arrive(self, arrivals: int, announced: int = 0) -> bool:
        """So many arrivals, and bytes that are announced or (below 0) have come. Whether a phase completes by it."""
        self.arrived += arrivals
        self.bytes += announced
        before = self.phase
        while self.arrived >= self.count and not self.bytes:
            self.arrived -= self.count
            self.phase += 1
        return self.phase > before

    def fill(self) -> None:
        """All that the phase under way waits for has come."""
        self.arrived = self.bytes = 0
        self.phase += 1

    def lets_pass(self, parity: int) -> bool:
        """Return whether the phase of this parity has completed: not the one under way, then, but the one before it."""
        return self.phase % 2 != parity

    @property
    def lacks_bytes(self) -> bool:
        """Return whether nothing but bytes is missing."""
        return bool(self.bytes) and self.arrived >= self.count


def run_together(
    states: Sequence[State],
    advance: Callable[[State], bool],
    is_done: Callable[[State], bool],
    is_cut: Callable[[State], bool],
) -> Literal["done", "cut", "stuck"]:
    """All roles, each in its turn until it has to wait, as long as one can go on: `advance` says whether it got
    anywhere. Where one is cut, that is done because it is followed no further, who waits for it is not stuck."""
    while not all(map(is_done, states)):
        has_moved = [advance(state) for state in states]
        if not any(has_moved):
            break
    if any(map(is_cut, states)):
        return "cut"
    return "done" if all(map(is_done, states)) else "stuck"


# ---- what is known to have happened ----------------------------------------------------------------------------------


def join(known: dict[Actor, int], more: Mapping[Actor, int]) -> None:
    """How far each actor is known to have come, by one's own knowledge and by another's (vector clocks)."""
    for actor, time in more.items():
        if known.get(actor, 0) < time:
            known[actor] = time


class HandedOn(Generic[Signal, Actor]):
    """What the phases of barriers hand on: all that those knew who arrived, in this phase or before."""

    def __init__(self) -> None:
        self.made: dict[Signal, dict[int, dict[Actor, int]]] = {}

    def arrive(self, signal: Signal, phase: int, *known: Mapping[Actor, int]) -> None:
        """Somebody who knows this arrives in a phase."""
        made = self.made.setdefault(signal, {})
        if phase not in made:
            last = max((earlier for earlier in made if earlier < phase), default=None)
            made[phase] = {} if last is None else dict(made[last])
            made.pop(phase - KEPT_PHASES, None)
        for each in known:
            join(made[phase], each)

    def wait(self, signal: Signal, phases: int, known: dict[Actor, int]) -> None:
        """Somebody has waited for so many phases, and knows what they hand on."""
        made = self.made.get(signal, {})
        last = max((phase for phase in made if phase < phases), default=None)
        if last is not None:
            join(known, made[last])
