"""The time of one block of a kernel among those that share its multiprocessor, put together from its parts: its start,
the statements around its pipelined loops, the loops, and what a producer warp hides.

Built kernels are reported by it, and decisions about launches are priced by it, so that both say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

from tilec.ir.tile import For
from tilec.passes.cost.kernel import (
    PIPES,
    SHARED_SLOTS,
    BlockCost,
    BlockWalk,
    LoopNest,
    build_loop_nest,
    count_nest_cycles,
)
from tilec.passes.cost.model import SCHEDULERS, Machine
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass

BLOCK_START = 800
"""Cycles from the launch of a block to its first load: its barriers and addresses. A guess, between what an empty block
and one with tensor maps take."""
CLUSTER_START = 500
"""Cycles that the blocks of a cluster wait for each other before they load and before they end. A guess: kernels whose
clusters share nothing are 4 to 14 % slower by them where a block takes some thousand cycles, else as fast."""

PAIR_WAIT = Fraction(1, 16)
"""The part of its loops' time that a block waits for the others that load tiles with it. On an H200 pairs that load
together take 1.03 times as long as blocks alone in the mean of 44 variants of 21 kernels, 0.92 at best, 1.16 at worst
(benchmarks/results/h200-2026-11-28, rows that are not held out), though they ask for a quarter of the bytes less."""


@dataclass(frozen=True, slots=True)
class MachineInterval:
    """An iteration of a loop in machine code: the `cycles` of a warp of its slowest role by the assembler's schedule,
    `stalls` of them by the instructions' stall counts alone, and the cycles for which it keeps the busiest pipe of its
    scheduler (`held`)."""

    cycles: int
    stalls: int
    held: int


@dataclass(frozen=True, slots=True)
class BlockCode:
    """The machine code of a warp outside of scheduled loops: the `cycles` outside of all loops, those for which it
    keeps the busiest pipe of its scheduler (`held`), and both for an iteration of each other loop. Where it
    `is_straight`, it has no loops and is all of the kernel."""

    cycles: float
    held: float
    loops: tuple[tuple[For, float, float], ...]
    is_straight: bool


def add_machine_code(
    block: BlockCost, code: BlockCode, intervals: Mapping[int, MachineInterval], warps: int
) -> BlockCost:
    """Return a block of so many warps that takes at least the cycles of its machine code, of which `intervals` are the
    scheduled loops by their lines: exactly these where the code is straight."""
    cycles, held = code.cycles, code.held
    for loop, of_loop, held_by_loop in code.loops:
        iterations = block.iterations.get(IdentityKey(loop), 0)
        cycles += iterations * of_loop
        held += iterations * held_by_loop
    for loop, trip_count, times in block.loops:
        if (interval := intervals.get(loop.span.line)) is not None:
            held += trip_count * times * interval.held
    around = round(cycles) if code.is_straight else max(block.around, round(cycles))
    return replace(block, around=around, held={**block.held, PIPES: round(held) * warps // SCHEDULERS})


LoopCycles = Callable[[For, int, int], int]
"""Returns the cycles of a loop with so many iterations, in a block with so many neighbours, itself included."""


class BlockTimer:
    """Computes the time of blocks of one kernel; the levels of each loop are built once."""

    def __init__(self, walk: BlockWalk, stages: Callable[[For], int], loading: int, machine: Machine) -> None:
        """`stages` gives the number of versions of a loop's tiles; `loading` multiprocessors load at the same time."""
        self.walk, self.stages, self.loading, self.machine = walk, stages, loading, machine
        self.nests: dict[tuple[IdentityKey[For], int], LoopNest] = {}

    @property
    def start_cycles(self) -> int:
        """The cycles from the launch of a block to its first load."""
        return BLOCK_START + (CLUSTER_START if self.walk.assignment.kernel.cluster.blocks > 1 else 0)

    def get_nest(self, loop: For, trip_count: int) -> LoopNest:
        """Return the levels of a loop with this many iterations."""
        key = IdentityKey(loop), trip_count
        if key not in self.nests:
            self.nests[key] = build_loop_nest(
                self.walk, loop, trip_count, self.stages(loop), self.loading, self.machine
            )
        return self.nests[key]

    def count_level_cycles(self, loop: For, trip_count: int, neighbours: int) -> int:
        """Return the cycles of a loop by its levels."""
        return count_nest_cycles(self.get_nest(loop, trip_count), neighbours)

    def count_block_cycles(self, count_loop: LoopCycles, block: BlockCost, neighbours: int) -> int:
        """Return the cycles of a block whose loops take as long as `count_loop` says, with so many `neighbours`.

        It takes at least those for which the blocks of the multiprocessor keep the busiest shared slot: the statements
        around a block's loops hide behind other blocks' waits, but not behind their computing.
        """
        loops = sum(times * count_loop(loop, trip_count, neighbours) for loop, trip_count, times in block.loops)
        if self.walk.loads_together:
            loops += int(loops * PAIR_WAIT)
        computing = self.count_computing_cycles(block, neighbours)
        return self.start_cycles + max(block.around + loops - self._count_hidden_cycles(block), computing)

    def count_computing_cycles(self, block: BlockCost, neighbours: int) -> int:
        """Return the cycles for which so many blocks like this one keep the busiest shared slot."""
        return neighbours * max(block.held.get(slot, 0) for slot in SHARED_SLOTS)

    def _count_hidden_cycles(self, block: BlockCost) -> int:
        """Return the cycles of first loads that a producer warp hides: while the other warps are at the statements
        around the loops, it loads the next loop's first tiles, for every run of a loop but the first."""
        runs = sum(times for _, _, times in block.loops)
        if self.walk.assignment.form != "warp_specialised" or runs < 2:
            return 0
        firsts = ((self.get_nest(loop, trip_count).levels[0], times) for loop, trip_count, times in block.loops)
        waits = sum(min(level.latency + level.transfer, block.around // runs) * times for level, times in firsts)
        return waits * (runs - 1) // runs
