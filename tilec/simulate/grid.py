"""A whole launch: which blocks are looked at, how they share the machine, and how long all of them take.

A few clusters of blocks are recorded and replayed; the rest of the grid is made of them. Blocks that run the same
number of instructions are taken to be alike. Where they differ (a causal kernel, the rest of a persistent one), those
at the ends and in the middle of each axis of the grid are replayed, the others lie between them, and all are dealt to
the multiprocessors in the order of the grid.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilec.emu import launch
from tilec.emu.decode import Program
from tilec.emu.recorder import Recorder as Listener
from tilec.simulate.costs import Costs
from tilec.simulate.engine import Engine, Result, Shares
from tilec.simulate.instructions import Instruction, loops_of
from tilec.simulate.record import OFF, Block, Recorder
from tilec.target.table import Target

_WATCHED_BYTES = 1 << 17
"""Of each block of the first wave, until which its loads are compared with the others'."""
_MOST_WATCHED = 160
"""Blocks of the first wave that are compared."""
_MOST_REPLAYED = 1_200_000
"""Warp instructions of a replay; beyond them a steady state is taken as found."""
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
    waves: float
    tail: float
    """The part of the time in which some multiprocessors have nothing to do, as cycles."""
    loaded: float
    stored: float
    flops: float
    block: Block
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
    chosen: list[int] | range = _sampled(what, total)
    if is_dynamic:
        # A cluster takes over the work of those that have not started: as many as there are for each place.
        chosen = range(-(-total // slots))
        notes.append(f"dynamic tile scheduler: {len(chosen)} tiles for each of {min(total, slots)} places")
    seen = _recorded(what, costs, chosen)
    recorded = dict(zip(chosen, seen.clusters, strict=False))
    active = min(costs.sms, min(total, seats) * size)
    shares = Shares(costs.l2_bytes_per_cycle / active, costs.dram_bytes_per_cycle / active)
    first = seen.clusters[0]
    if not is_dynamic and sum(block.loaded for block in first):
        shares = replace(shares, missing=_missing(what, costs, range(min(total, slots, _MOST_WATCHED))))
    loops = loops_of(seen.program)

    def replayed(cluster: Sequence[Block], resident: int, count: int, *, draw: bool = False) -> Result:
        engine = Engine(seen.instructions, costs, shares, loops=loops, draws=draw)
        return engine.run([cluster] * count, resident)

    lengths = {number: sum(block.length for block in cluster) for number, cluster in recorded.items()}
    shortest, longest = min(lengths.values()), max(lengths.values())
    if is_dynamic or total <= 1 or longest == shortest:
        count = 1 if is_dynamic else total
        waves = max(1, -(-count // slots))
        together = max(1, min(what.resident, -(-count // seats)))
        rounds = max(1, min(waves, _ROUNDS, _MOST_REPLAYED // max(1, longest * together)))
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
        weight = float(total if not is_dynamic else min(total, slots))
    else:
        durations = {}
        results = {}
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
        spread = _between(what, total, durations)
        cycles, busy = _dealt(spread, seats * together)
        tail = cycles - busy / min(slots, total)
        waves = -(-total // slots)
        made = _between(what, total, {n: float(lengths[n]) for n in durations})
        weight = sum(made.values()) / lengths[max(results, key=lambda number: lengths[number])]
    flops = sum(_flops(block, seen.instructions) for block in first) * weight
    loaded = sum(block.loaded for block in first) * weight
    stored = sum(block.stored for block in first) * weight
    if not seen.skips_numbers:
        notes.append("what runs depends on the numbers: they are computed, for inputs of zeros")
    return Simulation(
        launch=what, costs=costs, instructions=seen.instructions, first=result, shares=shares, cycles=cycles,
        blocks=total * size, active=active, waves=total / slots, tail=tail, loaded=loaded, stored=stored, flops=flops,
        block=first[0], lengths=(shortest // size, longest // size), follows_numbers=not seen.skips_numbers,
        notes=notes,
    )  # fmt: skip


def _has(target: Target, limit: str) -> bool:
    return any(known.name == limit for known in target.limits)


def _recorded(what: Launch, costs: Costs, clusters: Sequence[int], most_bytes: int = 0) -> Recorder:
    made: list[Recorder] = []

    def observe(program: Program) -> Listener:
        made.append(Recorder(program, costs, most_bytes))
        return made[0]

    launch(
        what.ptx, what.entry, what.grid, what.block, what.args, cluster=what.cluster, dynamic_smem=what.dynamic_smem,
        races=False, observe=observe, only=clusters, step_limit=1 << 40,
    )  # fmt: skip
    return made[0]


def _missing(what: Launch, costs: Costs, clusters: Sequence[int]) -> float:
    """Which part of what the blocks of a wave load first is loaded by one of them first: the others find it in L2."""
    seen = _recorded(what, costs, clusters, _WATCHED_BYTES)
    blocks = [block for cluster in seen.clusters for block in cluster]
    pieces: dict[tuple[int, ...], int] = {}
    asked = 0
    for block in blocks:
        pieces |= block.piece_bytes
        asked += block.loaded
    return min(1.0, sum(pieces.values()) / asked) if asked else 1.0


def _flops(block: Block, instructions: Sequence[Instruction]) -> int:
    total = 0
    for warp in block.warps:
        for pc, detail in warp:
            flops = instructions[pc].flops
            if flops and detail != OFF:
                if instructions[pc].deed == "tcgen05.mma":
                    flops *= detail[0] * detail[1]
                total += flops
    return total


# ---- blocks that differ ----------------------------------------------------------------------------------------------


def _axes(what: Launch, total: int) -> list[int]:
    """Clusters along each axis, x first."""
    extents = [extent // size for extent, size in zip(what.grid, what.cluster, strict=True)]
    return extents if math.prod(extents) == total else [total, 1, 1]


def _stops(extent: int) -> list[int]:
    return sorted({0, extent // 2, extent - 1})


def _sampled(what: Launch, total: int) -> list[int]:
    """The first cluster, and on each axis the one in the middle and the last."""
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
    return {
        number: max(base + added[0][i] + added[1][j] + added[2][k], 1.0) for number, (k, j, i) in enumerate(places)
    }


def _dealt(durations: dict[int, float], slots: int) -> tuple[float, float]:
    """When the last ends, each starting where one has ended, in order; and the sum of all."""
    free = [0.0] * slots
    for number in sorted(durations):
        heapq.heapreplace(free, free[0] + durations[number])
    return max(free), sum(durations.values())
