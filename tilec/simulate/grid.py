"""A whole launch: which blocks are looked at, how they share the machine, and how long all of them take.

A few clusters of blocks are recorded and replayed; the rest of the grid is made of them. Blocks that run the same
number of instructions are taken to be alike. Where they differ (a causal kernel, the rest of a persistent one), a few
are replayed and the others lie between them: between those that have less and more to do, where it is known how much
each has; else between those at the ends and in the middle of each axis of the grid. All are dealt to the
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
"""Of each block of the first wave, until which its loads are compared with the others'."""
_MOST_WATCHED = 160
"""Blocks of the first wave that are compared."""
_MOST_REPLAYED = 1_200_000
"""Warp instructions of a replay; beyond them a steady state is taken as found."""
_ENOUGH = 5
"""Passes of a loop after which its interval is known."""
_ROUNDS = 3
"""Waves that are replayed one after the other: in the third, blocks begin as those before them end."""
Position = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel and how it is launched; `resident` clusters fit on the multiprocessors of one."""

    ptx: str
    entry: str
    grid: Position
    block: Position
    cluster: Position
    dynamic_smem: int
    args: tuple[object, ...]
    resident: int
    work: tuple[float, ...] = ()
    """Of each cluster, how much it has to do, in any unit; empty where nobody knows."""


@dataclass(slots=True)
class Simulation:
    """What a launch takes. `first` is the replay of the first blocks; `cycles` are of the whole grid."""

    launch: Launch
    costs: Costs
    instructions: Sequence[Instruction]
    first: Result
    shares: Shares
    cycles: float
    blocks: int
    """Of the grid."""
    active: int
    """Multiprocessors that have a block."""
    together: int
    """Clusters that the replay has on the same multiprocessors at a time."""
    waves: float
    tail: float
    """The part of the time in which some multiprocessors have nothing to do, as cycles."""
    loaded: float
    stored: float
    flops: float
    block: Block
    weight: float
    """How many clusters like the one of `block` have as many warp instructions as the grid."""
    lengths: tuple[int, int]
    """Warp instructions of the shortest and of the longest block that was looked at."""
    follows_numbers: bool
    """Whether the numbers decide what runs, so that they were computed."""
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.cycles / (self.costs.clock_mhz * 1e6)


def simulate(what: Launch, target: Target, *, blocks: int = 0, draws: bool = False) -> Simulation:
    """Replay a launch on a machine; of at most `blocks` blocks, where that is given."""
    costs = Costs(target)
    size = math.prod(what.cluster)
    total = math.prod(what.grid) // size
    if blocks:
        total = min(total, -(-blocks // size))
    sms = target.limit("sms_in_large_clusters") if size > 2 and _has(target, "sms_in_large_clusters") else costs.sms
    seats = max(1, sms // size)
    slots = seats * what.resident
    notes: list[str] = []
    is_dynamic = "clusterlaunchcontrol.try_cancel" in what.ptx
    chosen: Sequence[int] = _sampled(what, total) if total > slots or what.work else sorted({0, total - 1})
    if is_dynamic:
        # A cluster takes over the work of those that have not started: as many as there are for each place.
        chosen = range(-(-total // slots))
        notes.append(f"dynamic tile scheduler: {len(chosen)} tiles for each of {min(total, slots)} places")
    wave = range(min(total, slots, _MOST_WATCHED))
    seen = _recorded(what, costs, chosen, () if is_dynamic else wave)
    # Where a cluster takes the work of others, those of the first wave are watched as if all had begun.
    watched = _recorded(what, costs, (), wave, all_begin=True) if is_dynamic else seen
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
        # The last pass is followed by as much as came before the first one, or less: half of an interval is a guess.
        result.stretch(marks[-1] + interval * (all_passes - len(marks) + 0.5))
        result.ends = [result.cycles] * resident
        return result

    lengths = {number: sum(block.length for block in cluster) for number, cluster in recorded.items()}
    shortest, longest = min(lengths.values()), max(lengths.values())
    if is_dynamic or total <= 1 or longest == shortest:
        count = 1 if is_dynamic else total
        waves = max(1, -(-count // slots))
        together = max(1, min(what.resident, -(-count // seats)))
        rounds = max(1, min(waves, _ROUNDS, _MOST_REPLAYED // max(1, longest * together)))
        rounds = rounds if first[0].length <= MOST_ENTRIES else 1
        result = replayed(first, together, together * rounds, draw=draws)
        each = result.cycles / rounds if rounds < 2 else result.ends[-1] - result.ends[-1 - together]
        last = count - (waves - 1) * slots
        cycles, tail = result.cycles + (waves - rounds) * each, 0.0
        if waves > 1 and last < slots:
            # In the last wave fewer are resident together, and some multiprocessors have none.
            left = max(1, -(-last // seats))
            ending = each if left == together else replayed(first, left, left).cycles
            cycles += ending - each
            tail = ending * (1 - last / (seats * left))
        weight = total / len(chosen) if is_dynamic else float(total)
    else:
        durations: dict[int, float] = {}
        results: dict[int, Result] = {}
        together = max(1, min(what.resident, -(-total // seats)))
        for number, cluster in recorded.items():
            known = next((n for n in results if lengths[n] == lengths[number]), None)
            if known is None:
                results[number] = replayed(cluster, together, together, draw=draws and not results)
                durations[number] = results[number].cycles
            else:
                durations[number] = durations[known]
        result = results[max(results, key=lambda number: lengths[number])]
        first = recorded[max(results, key=lambda number: lengths[number])]
        spread = _spread(what, total, slots, durations)
        cycles, busy = _dealt(spread, seats * together)
        tail = cycles - busy / min(slots, total)
        waves = -(-total // slots)
        made = _spread(what, total, slots, {n: float(lengths[n]) for n in durations})
        weight = sum(made.values()) / lengths[max(results, key=lambda number: lengths[number])]

    def of_all(amount: Callable[[Block], float]) -> float:
        """Of the whole grid, what the clusters have that were looked at."""
        if is_dynamic or longest == shortest:
            return sum(map(amount, first)) * weight
        each = {number: float(sum(map(amount, cluster))) for number, cluster in recorded.items()}
        return sum(_spread(what, total, slots, each).values())

    if not seen.skips_numbers:
        notes.append("what runs depends on the numbers: they are computed, for inputs of zeros")
    return Simulation(
        launch=what, costs=costs, instructions=seen.instructions, first=result, shares=shares, cycles=cycles,
        blocks=total * size, active=active, together=together, waves=total / slots, tail=tail,
        loaded=of_all(lambda block: block.loaded / block.part), stored=of_all(lambda block: block.stored),
        flops=of_all(lambda block: _flops(block, seen.instructions)),
        block=first[0], weight=weight, lengths=(shortest // size, longest // size),
        follows_numbers=not seen.skips_numbers, notes=notes,
    )  # fmt: skip


def _has(target: Target, limit: str) -> bool:
    return any(known.name == limit for known in target.limits)


def _recorded(
    what: Launch, costs: Costs, whole: Sequence[int], wave: Sequence[int], *, all_begin: bool = False
) -> Recorder:
    made: list[Recorder] = []
    numbers = sorted({*whole, *wave})

    def observe(program: Program) -> Listener:
        made.append(Recorder(program, costs, whole, numbers, _WATCHED_BYTES))
        return made[0]

    launch(
        what.ptx, what.entry, what.grid, what.block, what.args, cluster=what.cluster, dynamic_smem=what.dynamic_smem,
        races=False, observe=observe, only=numbers, step_limit=1 << 40, all_begin=all_begin,
    )  # fmt: skip
    return made[0]


def _missing(clusters: Sequence[Sequence[Block]]) -> float:
    """Which part of what the blocks of a wave load first is loaded by one of them first: the others find it in L2."""
    blocks = [block for cluster in clusters for block in cluster]
    pieces: dict[tuple[int, ...], int] = {}
    asked = 0
    for block in blocks:
        pieces |= block.pieces
        asked += block.watched
    return min(1.0, sum(pieces.values()) / asked) if asked else 1.0


def _flops(block: Block, instructions: Sequence[Instruction]) -> int:
    total = 0
    for pc, count in block.counts.items():
        flops = instructions[pc].flops
        if flops and instructions[pc].deed == "tcgen05.mma":
            flops *= block.details[pc][0] * block.details[pc][1]
        total += flops * count
    return total


def _steady(block: Block, loops: frozenset[int]) -> tuple[int, int, int, float] | None:
    """For a block of which not all is written down: the warp and the branch back by whose times it is told how the rest
    goes on, after how many passes, and how many there are in all, with the part of one that follows the last. The
    outermost loop that has enough of them."""
    written: dict[tuple[int, int], int] = {}
    for number, entries in enumerate(block.warps):
        for step, _ in entries:
            if step in loops:
                written[number, step] = written.get((number, step), 0) + 1
    enough = [key for key, passes in written.items() if passes >= _ENOUGH]
    if not enough:
        return None
    busiest = max(sum(n for (w, _), n in block.passes.items() if w == warp) for warp, _ in enough)
    mine = [key for key in enough if sum(n for (w, _), n in block.passes.items() if w == key[0]) == busiest]
    warp, pc = min(mine, key=lambda key: (block.passes[key], key))
    return warp, pc, written[warp, pc] - 2, float(block.passes[warp, pc])


# ---- blocks that differ ----------------------------------------------------------------------------------------------


def _axes(what: Launch, total: int) -> list[int]:
    """Clusters along each axis, x first."""
    extents = [extent // size for extent, size in zip(what.grid, what.cluster, strict=True)]
    return extents if math.prod(extents) == total else [total, 1, 1]


def _stops(extent: int) -> list[int]:
    return sorted({0, extent // 2, extent - 1})


def _sampled(what: Launch, total: int) -> list[int]:
    """The first cluster, and those with the least, a middling amount and the most to do; where that is not known, on
    each axis the one in the middle and the last."""
    if len(what.work) >= total:
        by_work = sorted(range(total), key=lambda number: (what.work[number], number))
        middling = (what.work[by_work[0]] + what.work[by_work[-1]]) / 2
        near = min(by_work, key=lambda number: (abs(what.work[number] - middling), number))
        return sorted({0, by_work[0], near, by_work[-1]})
    x, y, z = _axes(what, total)
    steps = (1, x, x * y)
    return sorted({stop * step for extent, step in zip((x, y, z), steps, strict=True) for stop in _stops(extent)})


def _between(what: Launch, total: int, values: dict[int, float]) -> dict[int, float]:
    """A value for each cluster: that of the first, and what each axis adds to it, in straight lines between stops."""
    x, y, z = _axes(what, total)
    base = values[0]
    added: list[list[float]] = []
    for extent, step in zip((x, y, z), (1, x, x * y), strict=True):
        stops = _stops(extent)
        line = []
        for at in range(extent):
            low = max(stop for stop in stops if stop <= at)
            high = min(stop for stop in stops if stop >= at)
            part = 0.0 if low == high else (at - low) / (high - low)
            line.append(values[low * step] * (1 - part) + values[high * step] * part - base)
        added.append(line)
    places = itertools.product(range(z), range(y), range(x))
    return {number: max(base + added[0][i] + added[1][j] + added[2][k], 1.0) for number, (k, j, i) in enumerate(places)}


def _spread(what: Launch, total: int, slots: int, values: dict[int, float]) -> dict[int, float]:
    """A value for each cluster, from those of the ones that were looked at: by what each has to do, or else by their
    place, of which the first and the last count where all start at once."""
    if len(what.work) >= total:
        known = sorted((what.work[number], value) for number, value in values.items())
        at, of = [work for work, _ in known], [value for _, value in known]
        return dict(enumerate(np.interp(what.work[:total], at, of).tolist()))
    return _line(values, total) if total <= slots else _between(what, total, values)


def _line(values: dict[int, float], total: int) -> dict[int, float]:
    """Between the first and the last."""
    first, last = values[0], values[total - 1]
    return {number: first + (last - first) * number / max(1, total - 1) for number in range(total)}


def _dealt(durations: dict[int, float], slots: int) -> tuple[float, float]:
    """When the last ends, each starting where one has ended, in order; and the sum of all."""
    free = [0.0] * slots
    for number in sorted(durations):
        heapq.heapreplace(free, free[0] + durations[number])
    return max(free), sum(durations.values())
