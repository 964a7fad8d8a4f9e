"""The reservation table of heuristics against a count of every unit in every cycle."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tilec.sched.heuristics.table import ReservationTable
from tilec.sched.problem import Op, Problem, Slot, Use


def _units(op: Op, start: int, ii: int) -> Counter[tuple[int, int]]:
    return Counter((use.slot, (start + use.offset + at) % ii) for use in op.uses for at in range(use.cycles))


def _drawn(random_: random.Random, ii: int) -> Problem:
    """Ops that hold a unit of each of some slots for a part of the interval."""
    slots = tuple(Slot(f"slot {at}", random_.randrange(1, 4)) for at in range(random_.randrange(1, 4)))
    ops = []
    for at in range(12):
        held = random_.sample(range(len(slots)), random_.randrange(len(slots) + 1))
        uses = (Use(slot, random_.randrange(max(1, ii * 2 // 3)), random_.randrange(2 * ii)) for slot in held)
        ops.append(Op(f"op {at}", tuple(uses), 1, 1))
    return Problem("drawn", tuple(ops), (), slots)


@pytest.mark.parametrize("seed", range(200))
def test_the_first_start_that_is_free(seed: int) -> None:
    random_ = random.Random(seed)
    ii = random_.randrange(1, 40)
    problem = _drawn(random_, ii)
    table, held, placed = ReservationTable(problem, ii), Counter[tuple[int, int]](), dict[int, int]()

    def fits(op: Op, start: int) -> bool:
        return all(held[at] + count <= problem.slots[at[0]].width for at, count in _units(op, start, ii).items())

    for index, op in enumerate(problem.ops):
        low = random_.randrange(60)
        high = low + random_.choice([ii - 1, random_.randrange(ii)])
        expected = next((at for at in range(low, high + 1) if fits(op, at)), None)
        assert table.find_first_free(index, low, high) == expected
        assert table.is_free(index, low) == fits(op, low)
        # Now and then also where there is no room, as a heuristic does before it takes out who is in the way.
        placed[index] = random_.randrange(60) if expected is None or random_.random() < 0.1 else expected
        table.place(index, placed[index])
        held.update(_units(op, placed[index], ii))
        if random_.random() < 0.3:
            gone = random_.choice(sorted(placed))
            table.remove(gone)
            held.subtract(_units(problem.ops[gone], placed.pop(gone), ii))
