"""Predicts the cycles of a kernel from the schedules of its loops.

A CTA takes the fill of each pipeline and one interval per further trip. CTAs run in waves over the SMs; those that
share an SM share its slots, so they hide each other's latencies but not each other's work. Bytes to and from L2 and
DRAM put a roof over the whole kernel.

What it leaves out: code outside the loops, clocks that drop under load, and L2 hits. It ranks variants; it does not
time them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.records import dataclass


@dataclass(frozen=True, slots=True)
class LoopCost:
    """A scheduled loop: its II, the cycles from its first issue to its last result, its trips per CTA, and for how many
    cycles of an interval the busiest slot is held."""

    ii: int
    length: int
    trips: int
    busy: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model needs to know of a target. A rate of 0 means that it is not known and never binds."""

    sms: int
    l2_bytes_per_cycle: int = 0
    dram_bytes_per_cycle: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's grid, how many of its CTAs fit on an SM, and the bytes that the whole grid moves."""

    ctas: int
    ctas_per_sm: int = 1
    l2_bytes: int = 0
    dram_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """`cycles` is the larger of `compute` (waves of CTAs) and `memory` (bytes over bandwidth)."""

    compute: int
    memory: int
    waves: int

    @property
    def cycles(self) -> int:
        return max(self.compute, self.memory)


def cta_cycles(loops: Sequence[LoopCost], neighbours: int = 1) -> int:
    """The cycles of one CTA, with `neighbours` CTAs on its SM, itself among them."""
    return sum(_loop_cycles(loop, neighbours) for loop in loops)


def _loop_cycles(loop: LoopCost, neighbours: int) -> int:
    if loop.trips == 0:
        return 0
    interval = max(loop.ii, loop.busy * neighbours)
    return loop.length + interval * (loop.trips - 1)


def predict(loops: Sequence[LoopCost], launch: Launch, machine: Machine) -> Prediction:
    """The time of a launch. A last wave that does not fill every SM shares each of them among fewer CTAs."""
    if launch.ctas == 0:
        return Prediction(0, 0, 0)
    slots = machine.sms * launch.ctas_per_sm
    full, rest = divmod(launch.ctas, slots)
    compute = full * cta_cycles(loops, launch.ctas_per_sm)
    if rest:
        compute += cta_cycles(loops, -(-rest // machine.sms))
    memory = max(
        _over(launch.l2_bytes, machine.l2_bytes_per_cycle),
        _over(launch.dram_bytes, machine.dram_bytes_per_cycle),
    )
    return Prediction(compute, memory, full + (1 if rest else 0))


def _over(amount: int, rate: int) -> int:
    return -(-amount // rate) if rate else 0


@dataclass(frozen=True, slots=True)
class Residence:
    """What an SM has for its CTAs, and in which steps it is handed out."""

    smem_bytes: int
    smem_reserved_bytes_per_cta: int
    smem_allocation_bytes: int
    registers: int
    registers_allocation_per_warp: int
    threads: int
    ctas: int


def ctas_per_sm(smem_bytes: int, registers_per_thread: int, threads: int, residence: Residence) -> int:
    """How many CTAs fit on an SM at once; 0 if not even one does."""
    smem = _step(smem_bytes + residence.smem_reserved_bytes_per_cta, residence.smem_allocation_bytes)
    warps = -(-threads // 32)
    # Registers go to warps in steps, and warps to the four schedulers evenly.
    registers = _step(registers_per_thread * 32, residence.registers_allocation_per_warp) * _step(warps, 4)
    return min(
        residence.ctas,
        residence.smem_bytes // smem if smem else residence.ctas,
        residence.registers // registers if registers else residence.ctas,
        residence.threads // (warps * 32) if warps else residence.ctas,
    )


def _step(amount: int, step: int) -> int:
    return -(-amount // step) * step
