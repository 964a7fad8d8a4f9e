"""A reservation table for schedulers that place one op after the other.

It keeps intervals, not rows: a product holds the tensor cores for hundreds of cycles. The first free cycle is found in
a bit mask for each slot, with a bit for each cycle in which no unit is free.
"""

from __future__ import annotations

from typing import NamedTuple

from tilec.sched.problem import Problem, Use

_MAX_BITS = 1 << 20
"""Size limit of a bit mask. Longer intervals are searched op by op."""


class HeldUnit(NamedTuple):
    """A unit held by `op` from `phase` on for `cycles`, less than an interval."""

    op: int
    phase: int
    cycles: int


class ReservationTable:
    """The reservation table of one interval, with the ops placed so far."""

    def __init__(self, problem: Problem, ii: int) -> None:
        self.problem, self.ii = problem, ii
        self._held: list[list[HeldUnit]] = [[] for _ in problem.slots]
        # Units held for the whole interval: by each op, and by all.
        self._wraps = [[0] * len(problem.ops) for _ in problem.slots]
        self._full = [0] * len(problem.slots)
        # For each slot the mask of cycles in which every unit is held; None if it must be recomputed.
        self._taken: list[int | None] = [0] * len(problem.slots)
        self._simple: list[bool | None] = [None] * len(problem.ops)

    def is_free(self, op: int, start: int) -> bool:
        """Return whether the op can be placed at `start` beside all placed ops."""
        uses = self.problem.ops[op].uses
        if self._is_simple(op):
            return all(self._is_clear(use, start) for use in uses if use.cycles)
        self.place(op, start)
        fits = all(self._has_enough_units(use, start) for use in uses if use.cycles)
        for use in uses:
            wraps, rest = divmod(use.cycles, self.ii)
            self._wraps[use.slot][op] -= wraps
            self._full[use.slot] -= wraps
            if rest:
                self._held[use.slot].pop()  # it was placed last
            self._taken[use.slot] = None
        return fits

    def place(self, op: int, start: int) -> None:
        """Record that an op holds its slots from its start on, without a check."""
        for use in self.problem.ops[op].uses:
            wraps, rest = divmod(use.cycles, self.ii)
            self._wraps[use.slot][op] += wraps
            self._full[use.slot] += wraps
            taken = self._taken[use.slot]
            if wraps or (rest and self._count_free_units(use.slot) != 1):
                taken = None
            if rest:
                held = HeldUnit(op, (start + use.offset) % self.ii, rest)
                self._held[use.slot].append(held)
                if taken is not None:
                    bits = self._make_bits(held)
                    taken = None if taken & bits else taken | bits
            self._taken[use.slot] = taken

    def remove(self, op: int) -> None:
        """Free the slots that a placed op holds."""
        for slot in {use.slot for use in self.problem.ops[op].uses}:
            taken = self._taken[slot]
            if self._count_free_units(slot) != 1 or self._wraps[slot][op]:
                taken = None
            if taken is not None:
                for held in self._held[slot]:
                    if held.op == op:
                        taken ^= self._make_bits(held)  # nobody else holds any of them
            self._taken[slot] = taken
            self._held[slot] = [held for held in self._held[slot] if held.op != op]
            self._full[slot] -= self._wraps[slot][op]
            self._wraps[slot][op] = 0

    def find_first_free(self, op: int, low: int, high: int) -> int | None:
        """Return the earliest start in [low, high] where the op fits, or None."""
        if self._is_simple(op):
            uses = [use for use in self.problem.ops[op].uses if use.cycles]
            # Often it fits at once, which needs no mask of the whole row.
            at = low if all(self._is_clear(use, low) for use in uses) else self._find_first_clear(uses, low)
            return None if at is None or at > high else at
        candidates = sorted({low, *self._list_ends(op, low)})
        return next((at for at in candidates if at <= high and self.is_free(op, at)), None)

    def _is_simple(self, op: int) -> bool:
        """Return whether the op's own uses never overlap and the interval fits a bit mask, so that masks suffice."""
        known = self._simple[op]
        if known is None:
            known = self._simple[op] = self.ii <= _MAX_BITS and self._is_disjoint(self.problem.ops[op].uses)
        return known

    def _is_disjoint(self, uses: tuple[Use, ...]) -> bool:
        """Return whether no two of these uses hold one slot in the same cycle of the interval."""
        rows = [0] * len(self.problem.slots)
        for use in uses:
            bits = self._make_bits(HeldUnit(0, use.offset % self.ii, use.cycles)) if use.cycles < self.ii else -1
            if rows[use.slot] & bits or bits < 0:
                return False
            rows[use.slot] |= bits
        return True

    def _is_clear(self, use: Use, start: int) -> bool:
        """Return whether a unit of the use's slot is free in all its cycles, if the op starts at `start`."""
        bits = self._make_bits(HeldUnit(0, (start + use.offset) % self.ii, use.cycles))
        return self._count_free_units(use.slot) > 0 and not self._find_full_cycles(use.slot) & bits

    def _find_first_clear(self, uses: list[Use], low: int) -> int | None:
        """Return the earliest start from `low` on where uses that do not overlap fit; None if there is none."""
        ii, every = self.ii, (1 << self.ii) - 1
        barred = 0
        for use in uses:
            if self._count_free_units(use.slot) <= 0:
                return None
            # A use covers a cycle if it begins there or less than its length before: spread the mask backwards.
            row = self._find_full_cycles(use.slot)
            reached = 1
            while row and reached < use.cycles:
                step = min(reached, use.cycles - reached)
                row |= row >> step | row << ii - step & every
                reached += step
            phase = (low + use.offset) % ii
            barred |= row >> phase | row << ii - phase & every
        behind = (~barred & barred + 1).bit_length() - 1
        return low + behind if behind < ii else None

    def _find_full_cycles(self, slot: int) -> int:
        """Return the bit mask of the interval's cycles in which no unit of the slot is free."""
        row = self._taken[slot]
        if row is None:
            # most[n]: cycles in which more than n units are held.
            most, are_disjoint = [0] * self._count_free_units(slot), True
            for held in self._held[slot]:
                bits = self._make_bits(held)
                for at, more in enumerate(most):
                    most[at], bits = more | bits, more & bits
                are_disjoint = are_disjoint and not bits
            row = most[-1]
            # Where a unit is held twice, the mask cannot be updated when one holder leaves.
            self._taken[slot] = row if are_disjoint else None
        return row

    def _make_bits(self, held: HeldUnit) -> int:
        """Return the bit mask of the interval's cycles in which a unit is held."""
        bits = (1 << held.cycles) - 1 << held.phase
        return bits & (1 << self.ii) - 1 | bits >> self.ii

    def _count_free_units(self, slot: int) -> int:
        """Return the units of a slot that no op holds for the whole interval."""
        return self.problem.slots[slot].width - self._full[slot]

    def find_next_end(self, op: int, low: int) -> int:
        """Return the earliest start from `low` on at which a conflicting use ends; `low` if there is none."""
        return min(self._list_ends(op, low), default=low)

    def _list_ends(self, op: int, low: int) -> list[int]:
        """Return the starts of an op from `low` on at which a use of another op in its slots ends."""
        return [
            low + (held.phase + held.cycles - use.offset - low) % self.ii
            for use in self.problem.ops[op].uses
            for held in self._held[use.slot]
            if held.op != op
        ]

    def find_blocking_ops(self, op: int, start: int) -> list[int]:
        """Return the placed ops, sorted, that meet this one in a slot at `start`; without all of them it fits."""
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

    def _has_enough_units(self, use: Use, start: int) -> bool:
        """Return whether the slot has enough units at every cycle of this use, which is already placed.

        The most are held where this use or another begins.
        """
        held = self._held[use.slot]
        width = self.problem.slots[use.slot].width - self._full[use.slot]
        if width < 0:
            return False
        if len(held) <= width:
            return True
        ii = self.ii
        phase, cycles = (start + use.offset) % ii, use.cycles % ii
        if width == 1 and cycles:
            # With a single unit only this use may hold it, and it is counted itself.
            found = 0
            for _, begin, length in held:
                after = (begin - phase) % ii
                found += after < cycles or after + length > ii
                if found > 1:
                    return False
            return True
        others = [((begin - phase) % ii, length) for _, begin, length in held]
        # A use that neither begins during this one nor is still held when it begins does not overlap it.
        others = [(begin, length) for begin, length in others if begin < max(cycles, 1) or begin + length > ii]
        if len(others) <= width:
            return True
        begins = {0, *(begin for begin, _ in others if begin < cycles)}
        return all(sum([(at - begin) % ii < length for begin, length in others]) <= width for at in begins)
