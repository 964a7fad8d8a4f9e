"""A statement with pipelined loops in it, as the loop around it sees it: one op that holds its roles from beginning to
end.

Loops inside are scheduled first: the time goes there. What they take is then known: n iterations of a pipelined loop
take n − 1 initiation intervals and the time of one iteration. Of long loops only the first iterations are priced, so
that the interval of a loop around one is a lower bound of what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilec.ir import tile
from tilec.passes.analysis.rings import pipelined_loops
from tilec.passes.analysis.trip_count import static_trip_count
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule
from tilec.support.records import dataclass

PRICED_TRIP_COUNT = 8
"""Of loops that run longer, and of those whose iterations are known only at run time. What overlaps them is the same
however long they run, while the solver's work grows with the cycles."""


def is_compound(stmt: tile.Stmt) -> bool:
    return bool(pipelined_loops((stmt,)))


@dataclass(frozen=True, slots=True)
class Cost:
    """`cycles` from the first issue until all is through; for each slot, by number, how many of them it is held."""

    cycles: int
    held: Mapping[int, int]

    def __mul__(self, trip_count: int) -> Cost:
        return Cost(self.cycles * trip_count, {slot: cycles * trip_count for slot, cycles in self.held.items()})

    def __add__(self, other: Cost) -> Cost:
        slots = dict.fromkeys((*self.held, *other.held))
        return Cost(self.cycles + other.cycles, {s: self.held.get(s, 0) + other.held.get(s, 0) for s in slots})


def cost(
    stmt: tile.Stmt, decided: Mapping[tile.Var, tuple[Problem, Schedule]], flat: Callable[[tile.Stmt], Cost]
) -> Cost:
    """`decided` are the pipelined loops in the statement by their variables, with their slots numbered alike; `flat`
    says what a statement without any takes."""
    if not is_compound(stmt):
        return flat(stmt)
    parts = [sum((cost(s, decided, flat) for s in body), Cost(0, {})) for body in tile.bodies(stmt)]
    match stmt:
        case tile.For() if stmt.var in decided:
            return _pipelined(*decided[stmt.var], trip_count_of(stmt))
        case tile.For() | tile.While():
            return parts[0] * trip_count_of(stmt)
        case _:
            assert isinstance(stmt, tile.If)
            return max(parts, key=lambda part: part.cycles)


def trip_count_of(loop: tile.For | tile.While) -> int:
    known = static_trip_count(loop) if isinstance(loop, tile.For) else None
    return PRICED_TRIP_COUNT if known is None else min(known, PRICED_TRIP_COUNT)


def _pipelined(problem: Problem, schedule: Schedule, trip_count: int) -> Cost:
    if not trip_count:
        return Cost(0, {})
    done = max((start + op.latency for op, start in zip(problem.ops, schedule.start, strict=True)), default=0)
    held: dict[int, int] = {}
    for op in problem.ops:
        for use in op.uses:
            held[use.slot] = held.get(use.slot, 0) + use.cycles * trip_count
    return Cost(done + (trip_count - 1) * schedule.ii, held)
