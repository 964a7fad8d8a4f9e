"""Simulates a whole launch: samples its blocks, models how they share the machine, and extrapolates to the grid.

A few clusters of blocks are recorded and replayed. Blocks that run the same number of instructions count as equal.
Where they differ (a causal kernel, the rest of a persistent one), the others are interpolated: by the amount of work of
each cluster if that is known, else between the ends and the middle of each axis of the grid. All are dealt to the
multiprocessors in the order of the grid.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace

import numpy as np

from tilec.emu import launch
from tilec.emu.decode import Program
from tilec.emu.recorder import Recorder as Listener
from tilec.simulate.costs import Costs
from tilec.simulate.engine import Engine
from tilec.simulate.instructions import Instruction, loops_of
from tilec.simulate.record import MOST_ENTRIES, Block, Recorder
from tilec.simulate.state import Result, Shares
from tilec.support.records import dataclass
from tilec.target.table import Target

_WATCHED_BYTES = 1 << 17
"""Bytes of each block of the first wave whose loads are compared with the others'."""
_MOST_WATCHED = 160
"""Blocks of the first wave that are compared."""
_MOST_REPLAYED = 1_200_000
"""Warp instructions of a replay; beyond this, no further rounds are replayed."""
_ENOUGH = 5
"""Passes of a loop after which its interval is known."""
_ROUNDS = 3
"""Waves replayed one after the other: in the third, blocks start at different times, as earlier ones end."""
Position = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel and its launch parameters; `resident` clusters fit on one cluster's multiprocessors at a time."""

    ptx: str
    entry: str
    grid: Position
    block: Position
    cluster: Position
    dynamic_smem: int
    args: tuple[object, ...]
    resident: int
    work: tuple[float, ...] = ()
    """The work of each cluster, in any unit; empty if unknown."""


@dataclass(slots=True)
class Simulation:
    """The simulated launch. `first` is the replay of the first blocks; `cycles` are those of the whole grid."""

    launch: Launch
    costs: Costs
    instructions: Sequence[Instruction]
    first: Result
    shares: Shares
    cycles: float
    blocks: int
    """Number of blocks in the grid."""
    active: int
    """Multiprocessors that have a block."""
    together: int
    """Clusters that the replay runs on the same multiprocessors at a time."""
    waves: float
    tail: float
    """Cycles at the end in which some multiprocessors are idle, as an average."""
    loaded: float
    stored: float
    flops: float
    block: Block
    weight: float
    """Number of clusters like that of `block` that together have as many warp instructions as the grid."""
    lengths: tuple[int, int]
    """Warp instructions of the shortest and the longest recorded block."""
    follows_numbers: bool
    """True if computed numbers decide what runs, so that all were computed."""
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.cycles / (self.costs.clock_mhz * 1e6)


def simulate(config: Launch, target: Target, *, blocks: int = 0, draws: bool = False) -> Simulation:
    """Simulate a launch on the target; with `blocks`, only that many blocks of the grid."""
    costs = Costs(target)
    size = math.prod(config.cluster)
    total = math.prod(config.grid) // size
    if blocks:
        total = min(total, -(-blocks // size))
    sms = target.limit("sms_in_large_clusters") if size > 2 and _has(target, "sms_in_large_clusters") else costs.sms
    seats = max(1, sms // size)
    slots = seats * config.resident
    notes: list[str] = []
    is_dynamic = "clusterlaunchcontrol.try_cancel" in config.ptx
    chosen: Sequence[int] = _sampled(config, total) if total > slots or config.work else sorted({0, total - 1})
    if is_dynamic:
        # A cluster takes over tiles of clusters that have not started: an equal number in each place.
        chosen = range(-(-total // slots))
        notes.append(f"dynamic tile scheduler: {len(chosen)} tiles for each of {min(total, slots)} places")
    wave = range(min(total, slots, _MOST_WATCHED))
    seen = _recorded(config, costs, chosen, () if is_dynamic else wave)
    # With a dynamic tile scheduler, the first wave is watched as if all its clusters had begun.
    watched = _recorded(config, costs, (), wave, all_begin=True) if is_dynamic else seen
    recorded = {number: cluster for number, cluster in seen.clusters.items() if number in chosen}
    active = min(costs.sms, min(total, seats) * size)
    shares = Shares(costs.l2_bytes_per_cycle / active, costs.dram_bytes_per_cycle / active)
    first = seen.clusters[0]
    shares = replace(shares, missing=_missing([watched.clusters[number] for number in wave]))
    loops = loops_of(seen.program)

    def replayed(cluster: Sequence[Block], resident: int, count: int, *, draw: bool = False) -> Result:
        engine = Engine(seen.instructions, costs, shares, loops=loops, draws=draw)
        steady = _steady(cluster[0], loops) if cluster[0].length > MOST_ENTRIES else None
        if steady is None:
            return engine.run([cluster] * count, resident)
        warp, pc, passes, all_passes = steady
        result = engine.run([cluster] * resident, resident, (warp, pc, passes))
        marks = result.marks[warp, pc]
        half = len(marks) // 2
        interval = (marks[-1] - marks[half]) / (len(marks) - 1 - half)
        # What follows the last pass is estimated as half an interval.
        result.stretch(marks[-1] + interval * (all_passes - len(marks) + 0.5))
        result.ends = [result.cycles] * resident
        return result

    lengths = {number: sum(block.length for block in cluster) for number, cluster in recorded.items()}
    shortest, longest = min(lengths.values()), max(lengths.values())
    if is_dynamic or total <= 1 or longest == shortest:
        count = 1 if is_dynamic else total
        waves = max(1, -(-count // slots))
        together = max(1, min(config.resident, -(-count // seats)))
        rounds = max(1, min(waves, _ROUNDS, _MOST_REPLAYED // max(1, longest * together)))
        rounds = rounds if first[0].length <= MOST_ENTRIES else 1
        result = replayed(first, together, together * rounds, draw=draws)
        each = result.cycles / rounds if rounds < 2 else result.ends[-1] - result.ends[-1 - together]
        last = count - (waves - 1) * slots
        cycles, tail = result.cycles + (waves - rounds) * each, 0.0
        if waves > 1 and last < slots:
            # In the last wave fewer clusters share a multiprocessor, and some multiprocessors have none.
            together_at_end = max(1, -(-last // seats))
            ending = each if together_at_end == together else replayed(first, together_at_end, together_at_end).cycles
            cycles += ending - each
            tail = ending * (1 - last / (seats * together_at_end))
        weight = total / len(chosen) if is_dynamic else float(total)
    else:
        durations: dict[int, float] = {}
        results: dict[int, Result] = {}
        together = max(1, min(config.resident, -(-total // seats)))
        for number, cluster in recorded.items():
            known = next((n for n in results if lengths[n] == lengths[number]), None)
            if known is None:
                results[number] = replayed(cluster, together, together, draw=draws and not results)
                durations[number] = results[number].cycles
            else:
                durations[number] = durations[known]
        result = results[max(results, key=lambda number: lengths[number])]
        first = recorded[max(results, key=lambda number: lengths[number])]
        spread = _spread(config, total, slots, durations)
        cycles, busy = _dealt(spread, seats * together)
        tail = cycles - busy / min(slots, total)
        waves = -(-total // slots)
        made = _spread(config, total, slots, {n: float(lengths[n]) for n in durations})
        weight = sum(made.values()) / lengths[max(results, key=lambda number: lengths[number])]

    def of_all(amount: Callable[[Block], float]) -> float:
        """Return an amount of the whole grid, extrapolated from the recorded clusters."""
        if is_dynamic or longest == shortest:
            return sum(map(amount, first)) * weight
        each = {number: float(sum(map(amount, cluster))) for number, cluster in recorded.items()}
        return sum(_spread(config, total, slots, each).values())

    if not seen.skips_numbers:
        notes.append("what runs depends on the numbers: they are computed, for inputs of zeros")
    return Simulation(
        launch=config, costs=costs, instructions=seen.instructions, first=result, shares=shares, cycles=cycles,
        blocks=total * size, active=active, together=together, waves=total / slots, tail=tail,
        loaded=of_all(lambda block: block.loaded / block.part), stored=of_all(lambda block: block.stored),
        flops=of_all(lambda block: _flops(block, seen.instructions)),
        block=first[0], weight=weight, lengths=(shortest // size, longest // size),
        follows_numbers=not seen.skips_numbers, notes=notes,
    )  # fmt: skip


def _has(target: Target, limit: str) -> bool:
    return any(known.name == limit for known in target.limits)


def _recorded(
    config: Launch, costs: Costs, whole: Sequence[int], wave: Sequence[int], *, all_begin: bool = False
) -> Recorder:
    made: list[Recorder] = []
    numbers = sorted({*whole, *wave})

    def observe(program: Program) -> Listener:
        made.append(Recorder(program, costs, whole, numbers, _WATCHED_BYTES))
        return made[0]

    launch(
        config.ptx, config.entry, config.grid, config.block, config.args, cluster=config.cluster,
        dynamic_smem=config.dynamic_smem, races=False, observe=observe, only=numbers, step_limit=1 << 40,
        all_begin=all_begin,
    )  # fmt: skip
    return made[0]


def _missing(clusters: Sequence[Sequence[Block]]) -> float:
    """Return the fraction of the watched loads of a wave that miss L2: the first load of each piece. Later loads find
    it there."""
    blocks = [block for cluster in clusters for block in cluster]
    pieces: dict[tuple[int, ...], int] = {}
    watched = 0
    for block in blocks:
        pieces |= block.pieces
        watched += block.watched
    return min(1.0, sum(pieces.values()) / watched) if watched else 1.0


def _flops(block: Block, instructions: Sequence[Instruction]) -> int:
    total = 0
    for pc, count in block.counts.items():
        flops = instructions[pc].flops
        if flops and instructions[pc].deed == "tcgen05.mma":
            flops *= block.details[pc][0] * block.details[pc][1]
        total += flops * count
    return total


def _steady(block: Block, loops: frozenset[int]) -> tuple[int, int, int, float] | None:
    """Return the loop by which a partly recorded block is extrapolated: (warp, back branch, passes to replay, all
    passes). It is the outermost loop with enough recorded passes; None if there is none."""
    written: dict[tuple[int, int], int] = {}
    for number, entries in enumerate(block.warps):
        for step, _ in entries:
            if step in loops:
                written[number, step] = written.get((number, step), 0) + 1
    enough = [key for key, passes in written.items() if passes >= _ENOUGH]
    if not enough:
        return None
    busiest = max(sum(n for (w, _), n in block.passes.items() if w == warp) for warp, _ in enough)
    busiest_warp_loops = [
        key for key in enough if sum(n for (w, _), n in block.passes.items() if w == key[0]) == busiest
    ]
    warp, pc = min(busiest_warp_loops, key=lambda key: (block.passes[key], key))
    return warp, pc, written[warp, pc] - 2, float(block.passes[warp, pc])


# ---- blocks that differ ----------------------------------------------------------------------------------------------


def _axes(config: Launch, total: int) -> list[int]:
    """Return the number of clusters along each axis, x first."""
    extents = [extent // size for extent, size in zip(config.grid, config.cluster, strict=True)]
    return extents if math.prod(extents) == total else [total, 1, 1]


def _stops(extent: int) -> list[int]:
    return sorted({0, extent // 2, extent - 1})


def _sampled(config: Launch, total: int) -> list[int]:
    """Return the clusters to record: the first, and those with the least, medium and most work; if work is unknown, the
    middle and last of each axis."""
    if len(config.work) >= total:
        by_work = sorted(range(total), key=lambda number: (config.work[number], number))
        middling = (config.work[by_work[0]] + config.work[by_work[-1]]) / 2
        near = min(by_work, key=lambda number: (abs(config.work[number] - middling), number))
        return sorted({0, by_work[0], near, by_work[-1]})
    x, y, z = _axes(config, total)
    steps = (1, x, x * y)
    return sorted({stop * step for extent, step in zip((x, y, z), steps, strict=True) for stop in _stops(extent)})


def _between(config: Launch, total: int, values: dict[int, float]) -> dict[int, float]:
    """Return a value for each cluster: the first cluster's, plus what each axis adds, linear between samples."""
    x, y, z = _axes(config, total)
    base = values[0]
    added: list[list[float]] = []
    for extent, step in zip((x, y, z), (1, x, x * y), strict=True):
        stops = _stops(extent)
        axis_values = []
        for at in range(extent):
            low = max(stop for stop in stops if stop <= at)
            high = min(stop for stop in stops if stop >= at)
            fraction = 0.0 if low == high else (at - low) / (high - low)
            axis_values.append(values[low * step] * (1 - fraction) + values[high * step] * fraction - base)
        added.append(axis_values)
    places = itertools.product(range(z), range(y), range(x))
    return {number: max(base + added[0][i] + added[1][j] + added[2][k], 1.0) for number, (k, j, i) in enumerate(places)}


def _spread(config: Launch, total: int, slots: int, values: dict[int, float]) -> dict[int, float]:
    """Extend values of recorded clusters to all: by their work if known, else by position; where all clusters start at
    once, only the first and the last count."""
    if len(config.work) >= total:
        known = sorted((config.work[number], value) for number, value in values.items())
        work_at, values_at = [work for work, _ in known], [value for _, value in known]
        return dict(enumerate(np.interp(config.work[:total], work_at, values_at).tolist()))
    return _line(values, total) if total <= slots else _between(config, total, values)


def _line(values: dict[int, float], total: int) -> dict[int, float]:
    """Return values interpolated linearly between the first and the last cluster."""
    first, last = values[0], values[total - 1]
    return {number: first + (last - first) * number / max(1, total - 1) for number in range(total)}


def _dealt(durations: dict[int, float], slots: int) -> tuple[float, float]:
    """Return when the last cluster ends, each starting in order as an earlier one ends, and the sum of all
    durations."""
    free = [0.0] * slots
    for number in sorted(durations):
        heapq.heapreplace(free, free[0] + durations[number])
    return max(free), sum(durations.values())
