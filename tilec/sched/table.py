"""A reservation table that is filled op by op, for schedulers that place one op after the other.

It keeps intervals and not rows: a product holds the tensor cores for hundreds of cycles.
"""

from __future__ import annotations

from typing import NamedTuple

from tilec.sched.problem import Problem, Use


class Held(NamedTuple):
    """`op` holds a unit from `phase` on for `cycles`, less than an interval."""

    op: int
    phase: int
    cycles: int


class Table:
    """The table of one interval. Ops are placed at starts; the table knows who is in the way."""

    def __init__(self, problem: Problem, ii: int) -> None:
        self.problem, self.ii = problem, ii
        self._held: list[list[Held]] = [[] for _ in problem.slots]
        # Of each op, and of all ops: how many units it holds the whole interval.
        self._turns = [[0] * len(problem.ops) for _ in problem.slots]
        self._full = [0] * len(problem.slots)

    def is_free(self, op: int, start: int) -> bool:
        """Whether the op can be placed there beside all others."""
        uses = self.problem.ops[op].uses
        self.place(op, start)
        fits = all(self._fits(use, start) for use in uses if use.cycles)
        for use in uses:
            turns, rest = divmod(use.cycles, self.ii)
            self._turns[use.slot][op] -= turns
            self._full[use.slot] -= turns
            if rest:
                self._held[use.slot].pop()  # it was placed last
        return fits

    def place(self, op: int, start: int) -> None:
        for use in self.problem.ops[op].uses:
            turns, rest = divmod(use.cycles, self.ii)
            self._turns[use.slot][op] += turns
            self._full[use.slot] += turns
            if rest:
                self._held[use.slot].append(Held(op, (start + use.offset) % self.ii, rest))

    def remove(self, op: int) -> None:
        for slot in {use.slot for use in self.problem.ops[op].uses}:
            self._held[slot] = [held for held in self._held[slot] if held.op != op]
            self._full[slot] -= self._turns[slot][op]
            self._turns[slot][op] = 0

    def first_free(self, op: int, low: int, high: int) -> int | None:
        """The earliest start in [low, high] where the op fits. Only there, and where some other use ends, can one
        first fit."""
        candidates = sorted({low, *self._ends(op, low)})
        return next((at for at in candidates if at <= high and self.is_free(op, at)), None)

    def next_end(self, op: int, low: int) -> int:
        """The earliest start from `low` on at which some use ends that the op would have to wait for."""
        return min(self._ends(op, low), default=low)

    def _ends(self, op: int, low: int) -> list[int]:
        return [
            low + (held.phase + held.cycles - use.offset - low) % self.ii
            for use in self.problem.ops[op].uses
            for held in self._held[use.slot]
            if held.op != op
        ]

    def in_the_way(self, op: int, start: int) -> list[int]:
        """The ops that would have to leave for this one."""
        others: set[int] = set()
        for use in self.problem.ops[op].uses:
            phase = (start + use.offset) % self.ii
            width = self.problem.slots[use.slot].width - self._full[use.slot]
            cycles = use.cycles % self.ii
            for held in self._held[use.slot]:
                meets = (held.phase - phase) % self.ii < cycles or (phase - held.phase) % self.ii < held.cycles
                if held.op != op and (meets or width <= 0):
                    others.add(held.op)
        return sorted(others)

    def _fits(self, use: Use, start: int) -> bool:
        """No more units are held than there are, at any cycle of this use, which is already placed: the most are held
        where it or some other begins."""
        held = self._held[use.slot]
        width = self.problem.slots[use.slot].width - self._full[use.slot]
        if width < 0:
            return False
        if len(held) <= width:
            return True
        ii = self.ii
        phase, cycles = (start + use.offset) % ii, use.cycles % ii
        if width == 1 and cycles:
            # Of a unit that there is once nobody else may hold any of it: the use itself is the one.
            found = 0
            for _, begin, length in held:
                after = (begin - phase) % ii
                found += after < cycles or after + length > ii
                if found > 1:
                    return False
            return True
        others = [((begin - phase) % ii, length) for _, begin, length in held]
        # Who neither begins during this use nor still goes on when it begins holds nothing beside it.
        others = [(begin, length) for begin, length in others if begin < max(cycles, 1) or begin + length > ii]
        if len(others) <= width:
            return True
        begins = {0, *(begin for begin, _ in others if begin < cycles)}
        return all(sum([(at - begin) % ii < length for begin, length in others]) <= width for at in begins)
