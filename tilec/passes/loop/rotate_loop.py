"""Where an iteration of an expanded loop begins. The steps of an interval go round: any of them may stand first in the
loop's text, as long as those before it then belong to the next iteration.

A product of wgmma that is in flight where the text of an iteration ends is dear if other statements touch its
registers: the assembler cannot follow it over the back edge, and makes all products of the kernel wait for one another
(its C7514). Where the schedule has it completed by then, it is waited for there, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.ir.tile import Buffer, Stmt, TileOp
from tilec.passes.analysis.fragment_prefetch import find_prefetched_fragments
from tilec.passes.analysis.rings import find_accesses
from tilec.passes.analysis.usage import find_reads, find_writes
from tilec.support.records import dataclass

RunPlace = tuple[int, int]
"""Which of a role's turns at the tensor cores, and which place in it."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The step that issues a product, and the first step after it, round the interval, that waits for it. At the first
    `running` places behind the issue the product has not completed."""

    issued: int
    waited: int
    running: int

    def goes_on(self, at: int, steps: int) -> bool:
        """Whether the product is in flight where an iteration ends that begins with step `at` of so many."""
        return (at - self.issued - 1) % steps <= (self.waited - self.issued - 1) % steps

    def runs_on(self, at: int, steps: int) -> bool:
        """Whether it would have to be waited for there."""
        return self.goes_on(at, steps) and (at - self.issued - 1) % steps < self.running


def first_step(stages: Sequence[int], runs: Sequence[RunPlace | None], flights: Sequence[Flight]) -> int:
    """Which step to begin an iteration of the loop with: no turn goes on from one iteration into the next; as few
    products as can be run between two iterations, or else are in flight there; as few iterations as can be overlap.
    `stages` and `runs` are those of an interval's steps as they issue."""
    steps = len(stages)
    if all(run is None for run in runs) and not any(flight.goes_on(0, steps) for flight in flights):
        return 0
    found = []
    for at in range(steps):
        shifted = [stage - (place < at) for place, stage in enumerate(stages)]
        if keeps_ping_pong(runs, at):
            running = sum(flight.runs_on(at, steps) for flight in flights)
            in_flight = sum(flight.goes_on(at, steps) for flight in flights)
            found.append((running, in_flight, max(shifted) - min(shifted), at))
    return min(found)[-1]


def keeps_ping_pong(runs: Sequence[RunPlace | None], at: int) -> bool:
    """Whether no turn goes on from one iteration into the next, where iterations begin with step `at`."""
    places: dict[int, int] = {}
    for number, place in (run for run in (*runs[at:], *runs[:at]) if run is not None):
        if place < places.get(number, 0):
            return False
        places[number] = place
    return True


def flights(
    steps: Sequence[Stmt | None],
    versioned: frozenset[str],
    phases: Sequence[int],
    cycles: Sequence[int],
    interval: int,
) -> Iterator[Flight]:
    """The products whose registers other steps of the interval touch, each with the step that waits for it. `versioned`
    tiles are read and filled at the same time; steps begin in `phases` of the interval and take so many `cycles`."""
    for issued, step in enumerate(steps):
        if step is None or accumulator(step) is None:
            continue
        if not others_registers(step, [s for s in steps if s is not None]):
            continue
        behind = ((issued + distance) % len(steps) for distance in range(1, len(steps)))
        waited = _first_to_wait(step, ((at, s) for at in behind if (s := steps[at]) is not None), versioned)
        if waited is not None:
            passed = [(phase - phases[issued]) % interval for phase in (*phases[issued + 1 :], *phases[:issued])]
            yield Flight(issued, waited, sum(cycles_passed < cycles[issued] for cycles_passed in passed))


def others_registers(product: Stmt, steps: Sequence[Stmt]) -> frozenset[str]:
    """The product's registers that steps touch that add to something else; but for those that are prefetched, which
    the assembler follows where an iteration begins with a product."""
    registers = {b.name for b in (*find_reads(product), *find_writes(product)) if b.scope in ("fragment", "reducer")}
    others = [find_accesses(s).all_names for s in steps if accumulator(s) != accumulator(product)]
    return frozenset(registers).intersection(frozenset().union(*others)) - find_prefetched_fragments(steps)


def _first_to_wait(product: Stmt, behind: Iterator[tuple[int, Stmt]], versioned: frozenset[str]) -> int | None:
    """Products complete in the order of issue: who waits for a later one waits for this one too."""
    issued = find_accesses(product)
    read, written = issued.reads - versioned, issued.writes
    for at, stmt in behind:
        mine, added = find_accesses(stmt), accumulator(stmt)
        if added is not None and added == accumulator(product):
            continue  # added up in their order, without a wait
        if written & mine.all_names or read & mine.writes:
            return at
        if added is not None:
            read, written = read | (mine.reads - versioned), written | mine.writes
    return None


def accumulator(stmt: Stmt | None) -> Buffer | None:
    """What a product of wgmma adds to; None for anything else."""
    is_wgmma = isinstance(stmt, TileOp) and stmt.via == "wgmma"
    return stmt.regions[2].buffer if is_wgmma and isinstance(stmt, TileOp) else None
