"""Bank collisions: two accesses, of different ops, that reach the banks of one memory in the same cycle.

An access is a use of a slot that names its `banks`. A tile covers all banks of its memory, so that any two accesses to
one memory collide where they overlap. Overlaps within an iteration and across iterations are counted separately. How
often an access is slowed by its own layout is the layout's cost, and not counted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilec.sched.problem import Problem
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class AccessPair:
    """Two accesses to the same banks by different ops. The second one begins start[second] − start[first] + `shift`
    after the first."""

    banks: str
    first: int
    second: int
    first_cycles: int
    second_cycles: int
    shift: int

    def count_certain(self, ii: int) -> int:
        """Return how many second accesses, of any iterations, overlap a first access at every distance."""
        return (self.first_cycles + self.second_cycles - 1) // ii

    def count_colliding_distances(self, ii: int) -> int:
        """Return at how many distances, modulo II, one more second access overlaps; at most II − 1."""
        return (self.first_cycles + self.second_cycles - 1) % ii


@dataclass(frozen=True, slots=True)
class Collisions:
    """The pairs of accesses to some banks that overlap: in the same iteration, and in different iterations."""

    banks: str
    in_iteration: int
    across_iterations: int


def list_access_pairs(problem: Problem) -> tuple[AccessPair, ...]:
    """Return the pairs of accesses, by different ops, that reach the same banks and may overlap.

    Two uses of a slot of one unit never overlap.
    """
    accesses = [
        (slot.banks, at, op, use)
        for at, slot in enumerate(problem.slots)
        if slot.banks
        for op, use in problem.list_uses(at)
    ]
    return tuple(
        AccessPair(banks, op, other_op, use.cycles, other.cycles, other.offset - use.offset)
        for place, (other_banks, other_slot, other_op, other) in enumerate(accesses)
        for banks, slot, op, use in accesses[:place]
        if banks == other_banks and op != other_op and (slot != other_slot or problem.slots[slot].width > 1)
    )


def count_collisions(
    pairs: Sequence[AccessPair], ii: int, start: Sequence[int] | Mapping[int, int]
) -> tuple[Collisions, ...]:
    """Return, for each memory, the pairs that overlap in an iteration and those that do across iterations."""
    found: dict[str, list[int]] = {}
    for pair in pairs:
        counts = found.setdefault(pair.banks, [0, 0])
        behind = start[pair.second] - start[pair.first] + pair.shift
        # The second access of k iterations later overlaps if −second_cycles < behind + k·II < first_cycles.
        overlaps = (pair.first_cycles - 1 - behind) // ii - (-pair.second_cycles - behind) // ii
        is_same = -pair.second_cycles < behind < pair.first_cycles
        counts[0] += is_same
        counts[1] += overlaps - is_same
    return tuple(Collisions(banks, *counts) for banks, counts in found.items())


def sum_collisions(pairs: Sequence[AccessPair], ii: int, start: Sequence[int] | Mapping[int, int]) -> int:
    """Return how many pairs overlap, of all memories, in an iteration and across iterations together."""
    return sum(one.in_iteration + one.across_iterations for one in count_collisions(pairs, ii, start))


def count_certain_collisions(pairs: Sequence[AccessPair], ii: int) -> int:
    """Return the number of collisions that every schedule at this II has."""
    return sum(pair.count_certain(ii) for pair in pairs)
