"""The cost of a statement with pipelined loops inside: for the loop around, one op that occupies its roles throughout.

Inner loops are scheduled first: the time goes there. n iterations of a pipelined loop take n − 1 initiation intervals
and the time of one iteration. Only the first iterations of long loops are priced, so that the interval of a loop around
them is a lower bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilec.analysis.rings import find_pipelined_loops
from tilec.analysis.trip_count import get_static_trip_count
from tilec.ir import tile
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule
from tilec.support.records import dataclass

PRICED_TRIP_COUNT = 8
"""Iterations priced, of longer loops and of those of unknown trip count. What overlaps a loop does not depend on its
length, while the solver's work grows with the cycles."""


def is_compound(stmt: tile.Stmt) -> bool:
    """Return True if the statement is a pipelined loop or contains one."""
    return bool(find_pipelined_loops((stmt,)))


@dataclass(frozen=True, slots=True)
class CompoundCost:
    """The `cycles` from the first issue to completion, and the cycles for which each slot, by number, is held."""

    cycles: int
    held: Mapping[int, int]

    def __mul__(self, trip_count: int) -> CompoundCost:
        return CompoundCost(self.cycles * trip_count, {slot: cycles * trip_count for slot, cycles in self.held.items()})

    def __add__(self, other: CompoundCost) -> CompoundCost:
        slots = dict.fromkeys((*self.held, *other.held))
        return CompoundCost(self.cycles + other.cycles, {s: self.held.get(s, 0) + other.held.get(s, 0) for s in slots})


def compute_compound_cost(
    stmt: tile.Stmt, decided: Mapping[tile.Var, tuple[Problem, Schedule]], flat: Callable[[tile.Stmt], CompoundCost]
) -> CompoundCost:
    """Return a statement's cycles and the cycles it holds each slot: inner loops by schedule, others by `flat`. Of
    two branches the longer one counts, of a loop at most 8 iterations. `decided` has the pipelined loops inside by
    variable, with their slots numbered alike; `flat` prices a statement without any."""
    if not is_compound(stmt):
        return flat(stmt)
    parts = [
        sum((compute_compound_cost(s, decided, flat) for s in body), CompoundCost(0, {}))
        for body in tile.nested_bodies(stmt)
    ]
    match stmt:
        case tile.For() if stmt.var in decided:
            return _compute_pipelined_cost(*decided[stmt.var], count_priced_iterations(stmt))
        case tile.For() | tile.While():
            return parts[0] * count_priced_iterations(stmt)
        case _:
            assert isinstance(stmt, tile.If)
            return max(parts, key=lambda part: part.cycles)


def count_priced_iterations(loop: tile.For | tile.While) -> int:
    """Return the iterations of a loop that are priced: its trip count, or 8 if that is larger or unknown."""
    known = get_static_trip_count(loop) if isinstance(loop, tile.For) else None
    return PRICED_TRIP_COUNT if known is None else min(known, PRICED_TRIP_COUNT)


def _compute_pipelined_cost(problem: Problem, schedule: Schedule, trip_count: int) -> CompoundCost:
    """Return the cost of `trip_count` iterations of a pipelined loop with this schedule."""
    if not trip_count:
        return CompoundCost(0, {})
    done = max((start + op.latency for op, start in zip(problem.ops, schedule.start, strict=True)), default=0)
    held: dict[int, int] = {}
    for op in problem.ops:
        for use in op.uses:
            held[use.slot] = held.get(use.slot, 0) + use.cycles * trip_count
    return CompoundCost(done + (trip_count - 1) * schedule.ii, held)
