"""A reservation table that is filled op by op, for schedulers that place one op after the other.

It keeps intervals and not rows: a product holds the tensor cores for hundreds of cycles. Where an op first fits is
looked up in a row of bits for each slot, a bit for each cycle in which no unit is free.
"""

from __future__ import annotations

from typing import NamedTuple

from tilec.sched.problem import Problem, Use

_MOST_BITS = 1 << 20
"""Of a row. Longer intervals are searched op by op."""


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
        self._wraps = [[0] * len(problem.ops) for _ in problem.slots]
        self._full = [0] * len(problem.slots)
        # Of each slot, the cycles in which every unit is held; None where that is to be looked at again.
        self._taken: list[int | None] = [0] * len(problem.slots)
        self._simple: list[bool | None] = [None] * len(problem.ops)

    def is_free(self, op: int, start: int) -> bool:
        """Whether the op can be placed there beside all others."""
        uses = self.problem.ops[op].uses
        if self._is_simple(op):
            return all(self._is_clear(use, start) for use in uses if use.cycles)
        self.place(op, start)
        fits = all(self._fits(use, start) for use in uses if use.cycles)
        for use in uses:
            wraps, rest = divmod(use.cycles, self.ii)
            self._wraps[use.slot][op] -= wraps
            self._full[use.slot] -= wraps
            if rest:
                self._held[use.slot].pop()  # it was placed last
            self._taken[use.slot] = None
        return fits

    def place(self, op: int, start: int) -> None:
        for use in self.problem.ops[op].uses:
            wraps, rest = divmod(use.cycles, self.ii)
            self._wraps[use.slot][op] += wraps
            self._full[use.slot] += wraps
            taken = self._taken[use.slot]
            if wraps or (rest and self._free_units(use.slot) != 1):
                taken = None
            if rest:
                held = Held(op, (start + use.offset) % self.ii, rest)
                self._held[use.slot].append(held)
                if taken is not None:
                    bits = self._bits(held)
                    taken = None if taken & bits else taken | bits
            self._taken[use.slot] = taken

    def remove(self, op: int) -> None:
        for slot in {use.slot for use in self.problem.ops[op].uses}:
            taken = self._taken[slot]
            if self._free_units(slot) != 1 or self._wraps[slot][op]:
                taken = None
            if taken is not None:
                for held in self._held[slot]:
                    if held.op == op:
                        taken ^= self._bits(held)  # nobody else holds any of them
            self._taken[slot] = taken
            self._held[slot] = [held for held in self._held[slot] if held.op != op]
            self._full[slot] -= self._wraps[slot][op]
            self._wraps[slot][op] = 0

    def first_free(self, op: int, low: int, high: int) -> int | None:
        """The earliest start in [low, high] where the op fits. Only there, and where some other use ends, can one
        first fit."""
        if self._is_simple(op):
            uses = [use for use in self.problem.ops[op].uses if use.cycles]
            # Mostly it fits at once, and that is seen without a look at the whole row.
            at = low if all(self._is_clear(use, low) for use in uses) else self._first_clear(uses, low)
            return None if at is None or at > high else at
        candidates = sorted({low, *self._ends(op, low)})
        return next((at for at in candidates if at <= high and self.is_free(op, at)), None)

    def _is_simple(self, op: int) -> bool:
        """Whether none of its uses is in another's way, and each is a piece of a row."""
        known = self._simple[op]
        if known is None:
            known = self._simple[op] = self.ii <= _MOST_BITS and self._is_disjoint(self.problem.ops[op].uses)
        return known

    def _is_disjoint(self, uses: tuple[Use, ...]) -> bool:
        rows = [0] * len(self.problem.slots)
        for use in uses:
            bits = self._bits(Held(0, use.offset % self.ii, use.cycles)) if use.cycles < self.ii else -1
            if rows[use.slot] & bits or bits < 0:
                return False
            rows[use.slot] |= bits
        return True

    def _is_clear(self, use: Use, start: int) -> bool:
        bits = self._bits(Held(0, (start + use.offset) % self.ii, use.cycles))
        return self._free_units(use.slot) > 0 and not self._row(use.slot) & bits

    def _first_clear(self, uses: list[Use], low: int) -> int | None:
        """The same for simple uses, wherever it is."""
        ii, every = self.ii, (1 << self.ii) - 1
        barred = 0
        for use in uses:
            if self._free_units(use.slot) <= 0:
                return None
            # A use meets a cycle if it begins there or up to its length before: the row, spread backwards.
            row = self._row(use.slot)
            reached = 1
            while row and reached < use.cycles:
                step = min(reached, use.cycles - reached)
                row |= row >> step | row << ii - step & every
                reached += step
            phase = (low + use.offset) % ii
            barred |= row >> phase | row << ii - phase & every
        behind = (~barred & barred + 1).bit_length() - 1
        return low + behind if behind < ii else None

    def _row(self, slot: int) -> int:
        """A bit for each cycle in which no unit of the slot is free."""
        row = self._taken[slot]
        if row is None:
            # Cycles in which at least so many more units are held.
            most, are_disjoint = [0] * self._free_units(slot), True
            for held in self._held[slot]:
                bits = self._bits(held)
                for at, more in enumerate(most):
                    most[at], bits = more | bits, more & bits
                are_disjoint = are_disjoint and not bits
            row = most[-1]
            # Of a unit that is held twice it cannot be told what is free once one of the two has gone.
            self._taken[slot] = row if are_disjoint else None
        return row

    def _bits(self, held: Held) -> int:
        bits = (1 << held.cycles) - 1 << held.phase
        return bits & (1 << self.ii) - 1 | bits >> self.ii

    def _free_units(self, slot: int) -> int:
        """Units of a slot that nobody holds the whole interval."""
        return self.problem.slots[slot].width - self._full[slot]

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
