"""Rotation of an expanded loop: the step of an interval at which an iteration begins. Steps before it then belong to
the next iteration.

A wgmma product in flight at the end of an iteration is expensive if other statements touch its registers: the assembler
cannot follow it over the back edge, and makes all products of the kernel wait for one another (its C7514). Where the
schedule has it completed by then, a wait at the end of the iteration costs nothing.

Ping-pong: warpgroups run the same code at different times. In each interval a group has runs of products without a
product of another group in between. Where the groups' runs alternate in a fixed order, one named barrier a group keeps
that order: a group waits at its own barrier before the first product of a run, and arrives at the next group's barrier
once it has issued the last. No run crosses two iterations.

A scheduled bind has no storage: its value lasts until the end of the iteration. So its users are in the same one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.analysis.fragment_prefetch import find_prefetched_fragments
from tilec.analysis.rings import find_accesses
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir.tile import Buffer, Stmt, TileOp
from tilec.support.records import dataclass

RunPlace = tuple[int, int]
"""The number of a ping-pong run of the role, and the position within it."""


@dataclass(frozen=True, slots=True)
class InFlightProduct:
    """The step that issues a product, and the next step, cyclically, that waits for it. During the first
    `running_steps` steps behind the issue the product has not completed."""

    issued: int
    waited: int
    running_steps: int

    def is_in_flight(self, at: int, steps: int) -> bool:
        """Return whether the product is in flight at the end of an iteration that begins with step `at` of `steps`."""
        return (at - self.issued - 1) % steps <= (self.waited - self.issued - 1) % steps

    def is_running(self, at: int, steps: int) -> bool:
        """Return whether the product still runs at the end of an iteration that begins with step `at`: a wait would
        stall."""
        return self.is_in_flight(at, steps) and (at - self.issued - 1) % steps < self.running_steps


def choose_first_step(
    stages: Sequence[int],
    runs: Sequence[RunPlace | None],
    flights: Sequence[InFlightProduct],
    groups: Sequence[Sequence[int]] = (),
) -> int:
    """Return the step with which an iteration best begins, so that the fewest products run, or are in flight, at its
    end. No ping-pong run and no group of steps crosses two iterations. Of equal steps it is the one with the fewest
    overlapping iterations. `stages` and `runs` are those of an interval's steps in issue order."""
    steps = len(stages)
    if all(run is None for run in runs) and not any(flight.is_in_flight(0, steps) for flight in flights):
        return 0
    found = []
    for at in range(steps):
        shifted = [stage - (place < at) for place, stage in enumerate(stages)]
        if keeps_ping_pong(runs, at) and keeps_groups(groups, at):
            running = sum(flight.is_running(at, steps) for flight in flights)
            in_flight = sum(flight.is_in_flight(at, steps) for flight in flights)
            found.append((running, in_flight, max(shifted) - min(shifted), at))
    return min(found)[-1]


def keeps_ping_pong(runs: Sequence[RunPlace | None], at: int) -> bool:
    """Return whether no ping-pong run crosses two iterations if these begin with step `at`."""
    places: dict[int, int] = {}
    for number, place in (run for run in (*runs[at:], *runs[:at]) if run is not None):
        if place < places.get(number, 0):
            return False
        places[number] = place
    return True


def keeps_groups(groups: Sequence[Sequence[int]], at: int) -> bool:
    """Return whether the steps of each group stay in one iteration if iterations begin with step `at`."""
    return all(at <= min(group) or max(group) < at for group in groups)


def find_in_flight_products(
    steps: Sequence[Stmt | None], versioned: frozenset[str], phases: Sequence[int], cycles: Sequence[int], interval: int
) -> Iterator[InFlightProduct]:
    """Yield each wgmma product whose registers other steps access, with the step that waits for it. `versioned` tiles
    can be read and filled at the same time. Steps begin at `phases` of the interval and take `cycles`."""
    for issued, step in enumerate(steps):
        if step is None or find_wgmma_accumulator(step) is None:
            continue
        if not find_contended_registers(step, [s for s in steps if s is not None]):
            continue
        behind = ((issued + distance) % len(steps) for distance in range(1, len(steps)))
        waited = _find_waiting_step(step, ((at, s) for at in behind if (s := steps[at]) is not None), versioned)
        if waited is not None:
            passed = [(phase - phases[issued]) % interval for phase in (*phases[issued + 1 :], *phases[:issued])]
            yield InFlightProduct(issued, waited, sum(cycles_passed < cycles[issued] for cycles_passed in passed))


def find_contended_registers(product: Stmt, steps: Sequence[Stmt]) -> frozenset[str]:
    """Return the wgmma product's registers that steps with another accumulator access, without prefetched fragments.
    The assembler follows these where an iteration begins with a product."""
    registers = {b.name for b in (*find_reads(product), *find_writes(product)) if b.scope in ("fragment", "reducer")}
    others = [find_accesses(s).all_names for s in steps if find_wgmma_accumulator(s) != find_wgmma_accumulator(product)]
    return frozenset(registers).intersection(frozenset().union(*others)) - find_prefetched_fragments(steps)


def _find_waiting_step(product: Stmt, behind: Iterator[tuple[int, Stmt]], versioned: frozenset[str]) -> int | None:
    """Return the index of the first later step that waits for the wgmma product, or for one behind it; None if none."""
    issued = find_accesses(product)
    read, written = issued.reads - versioned, issued.writes
    for at, stmt in behind:
        touched, added = find_accesses(stmt), find_wgmma_accumulator(stmt)
        if added is not None and added == find_wgmma_accumulator(product):
            continue  # products into one accumulator need no wait
        if written & touched.all_names or read & touched.writes:
            return at
        if added is not None:
            read, written = read | (touched.reads - versioned), written | touched.writes
    return None


def find_wgmma_accumulator(stmt: Stmt | None) -> Buffer | None:
    """Return the buffer that a wgmma product adds to; None for other statements."""
    is_wgmma = isinstance(stmt, TileOp) and stmt.via == "wgmma"
    return stmt.regions[2].buffer if is_wgmma and isinstance(stmt, TileOp) else None
