"""The cost model: cycles of a kernel from the schedules of its loops, or, before anything is solved, from the loads and
uses of each memory level.

A CTA takes the fill of each pipeline and one interval per further iteration. CTAs run in waves over the SMs. Those that
share an SM share its slots: they hide each other's latencies but not each other's work. Bytes to and from L2 and DRAM
put a roof over the whole kernel.

The clock that turns cycles into time depends on how busy the tensor cores are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Literal

from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class LoopCost:
    """A scheduled loop: its II, the cycles from its first issue to its last result, its iterations per CTA, and the
    cycles of an interval for which its busiest slot is held."""

    ii: int
    length: int
    trip_count: int
    busy: int = 0


PING_PONG_CYCLES = 400
"""Cycles that an iteration of warpgroups which alternate takes beyond its schedule. Fitted to four attention kernels on
an H200 with heads of 64 and 128 (causal.tl, flash_attention.tl; of benchmarks/results/h200-2026-11-26-c30a4ca2): 250
to 700. Warpgroups that stay together take no more than scheduled there."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Limits of a target. A rate of 0 is unknown and never binds. `launch_cycles` pass between the end of what was
    before in the stream and the first block, and between the last block and the end."""

    sms: int
    l2_bytes_per_cycle: int = 0
    dram_bytes_per_cycle: int = 0
    launch_cycles: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's grid, the number of its CTAs that fit on an SM, and the bytes that the whole grid moves. Each wave of
    CTAs reads distinct bytes from DRAM, `missed_bytes` in all, if CTAs read what others have read before; else 0."""

    ctas: int
    ctas_per_sm: int = 1
    l2_bytes: int = 0
    dram_bytes: int = 0
    missed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """`cycles` is the time of `compute` (waves of CTAs), `memory` (bytes over bandwidth) and `misses` (bytes that waves
    of CTAs read from DRAM anew) side by side."""

    compute: int
    memory: int
    waves: int
    misses: int = 0

    @property
    def cycles(self) -> int:
        return round(overlap_times(self.compute, self.memory, self.misses))


OVERLAP_EXPONENT = 6
"""How well computing and memory overlap (`overlap_times`). Kernels that DRAM binds take up to 12 % longer with a form
that computes for longer, though not as long as memory takes (benchmarks/results/h200-2026-11-27: rmsnorm, argmax,
gemv, decode_split with other roles)."""
MISS_EXPONENT = 2.5
"""The same of misses beside both. Fitted to products on an H200 with panels and without (there): 1.7 to 3.3."""


def overlap_times(compute: float, memory: float, misses: float = 0) -> float:
    """Return the time of work that goes on at the same time: at least the longest part, and the more, the more alike
    the parts are, since then one waits for the other now and then."""
    work = _add_overlapping(compute, memory, OVERLAP_EXPONENT)
    return _add_overlapping(work, misses, MISS_EXPONENT)


def _add_overlapping(one: float, other: float, exponent: float) -> float:
    longer, shorter = max(one, other), min(one, other)
    return longer * (1 + (shorter / longer) ** exponent) ** (1 / exponent) if shorter else longer


def count_cta_cycles(loops: Sequence[LoopCost], neighbours: int = 1) -> int:
    """Return the cycles of one CTA, with `neighbours` CTAs on its SM, itself included."""
    return sum(_count_loop_cycles(loop, neighbours) for loop in loops)


def _count_loop_cycles(loop: LoopCost, neighbours: int) -> int:
    """Return the cycles of all iterations of a loop in one CTA; 0 without iterations."""
    if loop.trip_count == 0:
        return 0
    interval = max(loop.ii, loop.busy * neighbours)
    return loop.length + interval * (loop.trip_count - 1)


def predict_uniform(loops: Sequence[LoopCost], launch: Launch, machine: Machine) -> Prediction:
    """Predict the time of a launch whose CTAs are all alike."""
    return predict_blocks([lambda neighbours: count_cta_cycles(loops, neighbours)], launch, machine)


def predict_blocks(blocks: Sequence[Callable[[int], int]], launch: Launch, machine: Machine) -> Prediction:
    """Predict the time of a launch. `blocks` are CTAs at equal distances in the grid: each gives the cycles in which as
    many of it as share an SM are done."""
    slots = machine.sms * launch.ctas_per_sm
    compute = count_wave_cycles(blocks, launch.ctas, machine.sms, launch.ctas_per_sm) if launch.ctas else 0
    memory = max(
        _divide_by_rate(launch.l2_bytes, machine.l2_bytes_per_cycle),
        _divide_by_rate(launch.dram_bytes, machine.dram_bytes_per_cycle),
    )
    start, misses = machine.launch_cycles, _divide_by_rate(launch.missed_bytes, machine.dram_bytes_per_cycle)
    return Prediction(compute + start, memory + start, -(-launch.ctas // slots), misses)


def count_wave_cycles(blocks: Sequence[Callable[[int], int]], count: int, sms: int, together: int) -> int:
    """Return the cycles of `count` CTAs, `together` of them on an SM. Every wave is as long as its longest CTA; the
    last one shares each SM among as few CTAs as there are. Of a grid whose CTAs are all given, in order, each begins
    where another has ended."""
    full, rest = divmod(count, sms * together)
    if not full:
        return max(block(-(-rest // sms)) for block in blocks)
    cycles = [block(together) for block in blocks]
    if len(blocks) == count and min(cycles) < max(cycles):
        return simulate_dynamic(cycles, sms * together)
    # In a long grid unequal CTAs balance: each SM takes the next one as soon as it is free.
    mean = sum(cycles) / len(cycles)
    last = max(block(-(-rest // sms)) for block in blocks) if rest else 0
    return max(round(full * mean) + last, max(cycles))


def simulate_dynamic(durations: Sequence[int], at_once: int) -> int:
    """Return the time at which the last tile is done, if each begins in order where one has ended."""
    free = [0] * at_once
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def _divide_by_rate(amount: int, rate: int) -> int:
    return -(-amount // rate) if rate else 0


# ---- clocks ----------------------------------------------------------------------------------------------------------


NO_USE, LIGHT_USE = 0.02, 0.45
"""The fractions of the time for which tensor cores may be busy with the clock of a kernel without products, and with
that of a kernel with few. Kernels profiled on an H200 (benchmarks/results/h200-2026-11-26/profiles.json) run at 1.97
GHz with 0 % of it, at 1.79 to 1.83 with 3 to 50 %, at 1.68 with 65 %, at 1.60 with 98 %."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Clocks in MHz. Cycles of the target's file are of `nominal`; the others are what a board holds with tensor cores
    that are always busy (`tensor`), busy for up to half of the time (`light`), and idle (`free`); 0 where that is
    unknown."""

    nominal: int
    tensor: int
    light: int = 0
    free: int = 0

    def under_load(self, tensor_share: float) -> int:
        """Return the clock with tensor cores busy for this fraction of the time. The clock of a calibrated file is
        already the one under load."""
        if self.nominal <= self.tensor:
            return self.nominal
        if not (self.light and self.free):
            return round(self.nominal - (self.nominal - self.tensor) * tensor_share)
        if tensor_share < NO_USE:
            return self.free
        beyond = max(tensor_share - LIGHT_USE, 0) / (1 - LIGHT_USE)
        return round(self.light - (self.light - self.tensor) * beyond)


# ---- loops that load and use at several levels -----------------------------------------------------------------------

Bound = Literal["use", "bandwidth", "latency"]


@dataclass(frozen=True, slots=True)
class Level:
    """A loop that loads tiles and uses them, as one CTA runs it. `latency` and `transfer`: cycles until the first bytes
    of a tile arrive, and cycles for which a tile occupies the path. `stages`: the number of tiles that fit. `parts` of
    the CTA's warps load and use their share independently. `issue`: cycles of an iteration that issue loads. `carried`:
    the loads of the first iterations issue in the previous iteration of the loop around."""

    name: str
    latency: int
    transfer: int
    trip_count: int
    stages: int = 1
    parts: int = 1
    issue: int = 0
    carried: bool = False


@dataclass(frozen=True, slots=True)
class LevelTime:
    """The time of all iterations of a level, by all CTAs of an SM: cycles, what bounds them, and the cycles of one
    use."""

    level: Level
    cycles: int
    bound: Bound
    use: int


def predict_level_times(
    levels: Sequence[Level], use: int, neighbours: int = 1, own: int | None = None, is_inner: bool = False
) -> list[LevelTime]:
    """Return the time of each of these nested loops, the outermost first: the largest of its bounds by use, bandwidth
    and latency. `neighbours` CTAs share the SM. `use` is the cycles for which an iteration of the innermost loop holds
    the busiest slot, `own` its cycles in a CTA alone (None: the same).

    Each level is a load-use loop as in ALCOP (Huang et al., MLSys 2023, arXiv 2210.16691), with the transfer separate
    from the latency: bound by its use if load ≤ (stages · neighbours − 1) · use, else by its loads, of which as many
    are in flight as there are stages. The use of a level is the loop in it. That loop begins anew in every iteration
    (`is_inner`), while the other CTAs on the SM are elsewhere in theirs: the wait of one hides behind the uses of the
    others.
    """
    if not levels:
        return []
    level, *inner = levels
    own = use if own is None else own
    of_inner = predict_level_times(inner, use, neighbours, own, is_inner=True)
    if of_inner:
        use_all, use_own = of_inner[0].cycles, predict_level_times(inner, use, 1, own)[0].cycles
    else:
        use_all, use_own = max(use * neighbours, own), own
    use_own += level.issue
    return [_predict_level_time(level, max(use_all, use_own), use_own, neighbours, is_inner), *of_inner]


def _predict_level_time(level: Level, use_all: int, use_own: int, neighbours: int, is_inner: bool) -> LevelTime:
    """Return the time of a level from the cycles of one use, by all CTAs (`use_all`) and by one (`use_own`)."""
    if level.trip_count == 0:
        return LevelTime(level, 0, "use", use_all)
    transfer = level.transfer * neighbours
    load, part = level.latency + transfer, -(-use_own // level.parts)
    rounds, rest = divmod(level.trip_count - 1, level.stages)
    # Bound by a unit that is always busy, or by rounds of `stages` loads, each waiting for the last one.
    times: dict[Bound, int]
    if level.carried and level.stages > 1:
        times = {
            "use": level.trip_count * use_all,
            "bandwidth": level.trip_count * transfer,
            "latency": -(-level.trip_count * (load + part) // level.stages),
        }
    elif is_inner and neighbours > 1:
        alone = level.latency + level.transfer
        times = {
            "use": max(level.trip_count * use_all, alone + level.trip_count * use_own),
            "bandwidth": max(level.trip_count * transfer, alone + use_own),
            "latency": rounds * (load + part) + load + (rest + 1) * part,
        }
    else:
        times = {
            "use": load + level.trip_count * use_all,
            "bandwidth": level.latency + level.trip_count * transfer + use_own,
            "latency": rounds * (load + part) + load + (rest + 1) * part,
        }
    bound = max(times, key=lambda name: times[name])
    return LevelTime(level, times[bound], bound, use_all)


# ---- occupancy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OccupancyLimits:
    """Resources of an SM for its CTAs, and the steps of their allocation."""

    smem_bytes: int
    smem_reserved_bytes_per_cta: int
    smem_allocation_bytes: int
    registers: int
    registers_allocation_per_warp: int
    threads: int
    ctas: int


SCHEDULERS = 4
"""Warp schedulers of an SM."""


def count_ctas_per_sm(
    smem_bytes: int, registers_per_thread: int, threads: int, occupancy_limits: OccupancyLimits
) -> int:
    """Return how many CTAs fit on an SM at once; 0 if not even one does."""
    return min(count_ctas_by_resource(smem_bytes, registers_per_thread, threads, occupancy_limits).values())


def count_ctas_by_resource(
    smem_bytes: int, registers_per_thread: int, threads: int, occupancy_limits: OccupancyLimits
) -> dict[str, int]:
    """Return how many CTAs each resource of an SM has room for."""
    smem = _round_up(smem_bytes + occupancy_limits.smem_reserved_bytes_per_cta, occupancy_limits.smem_allocation_bytes)
    warps = -(-threads // 32)
    # Each scheduler has a quarter of the registers, and whole warps, whose registers are allocated in steps. A CTA's
    # warps need not be distributed evenly (as in NVIDIA's cuda_occupancy.h).
    registers = _round_up(registers_per_thread * 32, occupancy_limits.registers_allocation_per_warp)
    most_warps = occupancy_limits.registers // SCHEDULERS // registers * SCHEDULERS if registers else 0
    return {
        "blocks": occupancy_limits.ctas,
        "shared memory": occupancy_limits.smem_bytes // smem if smem else occupancy_limits.ctas,
        "registers": most_warps // warps if registers and warps else occupancy_limits.ctas,
        "threads": occupancy_limits.threads // (warps * 32) if warps else occupancy_limits.ctas,
    }


def _round_up(amount: int, step: int) -> int:
    return -(-amount // step) * step
