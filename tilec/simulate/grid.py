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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from tilec.emu import launch
from tilec.emu.machine.decode import Program
from tilec.emu.machine.steps import Recorder as Listener
from tilec.simulate.costs import InstructionCosts
from tilec.simulate.engine import Engine
from tilec.simulate.instructions import Instruction, find_back_branches
from tilec.simulate.machine_code import read_machine_lines
from tilec.simulate.record import MAX_ENTRIES, BlockRecorder, BlockTrace
from tilec.simulate.state import MemoryShares, ReplayResult
from tilec.support.records import dataclass
from tilec.target.table import Target

_WATCHED_BYTES = 1 << 17
"""Bytes of each block of the first wave whose loads are compared with the others'."""
_MAX_WATCHED_BLOCKS = 160
"""Blocks of the first wave that are compared."""
_MAX_REPLAYED = 1_200_000
"""Warp instructions of a replay; beyond this, no further rounds are replayed."""
_ENOUGH_PASSES = 5
"""Passes of a loop after which its interval is known."""
_REPLAYED_WAVES = 4
"""Waves replayed one after the other. All blocks of the first start at once and are at the same instructions, many of
the second still are; from the third on they start at different times, as earlier ones end."""
_MAX_REPLAYED_SMALL = 200_000
_REPLAYED_SMALL_WAVES = 12
"""Waves that are replayed where they are so many warp instructions together."""
_FIRST_TENSOR_SHARE = 0.6
"""The part of the time for which tensor cores are taken to be busy in the first replay, whose clock depends on it."""
_CLOCK_TRIES = 3
_SAME_CLOCK = 0.01
"""The difference of two clocks, as a fraction, below which nothing is replayed again."""
_REREAD = 2
"""How often a wave loads each byte, at least, if L2 is taken to deliver it from the half that is nearer. Copies of
threads gain nothing by that: on an H200 products whose tiles are loaded by cp.async read 9.2 and 9.4 TB/s, and 11.1 by
bulk copies (int8 8192³ and transposed TN 4096³, benchmarks/results/h200-2026-11-27/before.json, --no-tma-loads)."""
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
    cubin: bytes = b""
    """The machine code; empty if unknown."""


@dataclass(slots=True)
class Simulation:
    """The simulated launch. `first` is the replay of the first blocks; `cycles` are those of the whole grid."""

    launch: Launch
    costs: InstructionCosts
    clock_mhz: int
    """The clock of the multiprocessors."""
    instructions: Sequence[Instruction]
    first: ReplayResult
    shares: MemoryShares
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
    missed: float
    """Bytes that are loaded from DRAM, of `loaded`."""
    stored: float
    flops: float
    block: BlockTrace
    weight: float
    """Number of clusters like that of `block` that together have as many warp instructions as the grid."""
    lengths: tuple[int, int]
    """Warp instructions of the shortest and the longest recorded block."""
    follows_numbers: bool
    """True if computed numbers decide what runs, so that all were computed."""
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Return the time of the whole grid in seconds."""
        return self.cycles / (self.clock_mhz * 1e6)


def simulate_launch(
    config: Launch, target: Target, find_clock: Callable[[float], int], *, blocks: int = 0, draws: bool = False
) -> Simulation:
    """Return the simulation of a launch on the target, extrapolated to the grid, or to `blocks` blocks if that is not
    0. `find_clock` returns the clock in MHz with tensor cores busy for a fraction of the time."""
    recording = replace(_record_launch(config, target, blocks), draws=draws)
    has_products = any(instruction.flops for instruction in recording.instructions)
    found = _replay_launch(recording, find_clock(_FIRST_TENSOR_SHARE if has_products else 0.0))
    for _ in range(_CLOCK_TRIES):
        clock = find_clock(measure_tensor_share(found))
        if abs(clock / found.clock_mhz - 1) <= _SAME_CLOCK:
            break
        found = _replay_launch(recording, clock)
    return found


def measure_tensor_share(found: Simulation) -> float:
    """Return the fraction of the time for which the tensor cores of an average multiprocessor are busy."""
    busy = found.first.held.get("tensor", 0.0) / found.first.cycles
    return busy * found.active / found.costs.sms * (1 - found.tail / found.cycles)


@dataclass(frozen=True, slots=True)
class _Recording:
    """The recording of a launch by the emulator. `total` clusters are simulated; `slots` are resident at a time on all
    multiprocessors, one in each of `seats`, and more where several share one. `clusters` are the recorded ones.
    Blocks of the first wave load the fraction `missing` of their bytes from DRAM, and of those of one step
    `missing_by_step`."""

    launch: Launch
    costs: InstructionCosts
    instructions: Sequence[Instruction]
    loops: frozenset[int]
    clusters: dict[int, list[BlockTrace]]
    total: int
    slots: int
    seats: int
    tiles: int
    """Tiles for each slot, with a dynamic tile scheduler; or else 0."""
    missing: float
    missing_by_step: Mapping[int, float]
    skips_numbers: bool
    notes: tuple[str, ...]
    draws: bool = False
    """True if the replay keeps what a picture of it needs."""

    @property
    def active(self) -> int:
        """Return the number of multiprocessors that have a block."""
        return min(self.costs.sms, min(self.total, self.seats) * math.prod(self.launch.cluster))


def _record_launch(config: Launch, target: Target, blocks: int) -> _Recording:
    """Run some clusters of a launch in the emulator, of `blocks` blocks or of all for 0, and return what they did."""
    costs = InstructionCosts(target)
    size = math.prod(config.cluster)
    total = math.prod(config.grid) // size
    if blocks:
        total = min(total, -(-blocks // size))
    has_own_limit = size > 2 and any(limit.name == "sms_in_large_clusters" for limit in target.limits)
    sms = target.limit("sms_in_large_clusters") if has_own_limit else costs.sms
    seats = max(1, sms // size)
    slots = seats * config.resident
    notes: list[str] = []
    is_dynamic = "clusterlaunchcontrol.try_cancel" in config.ptx
    chosen: Sequence[int] = _choose_samples(config, total) if total > slots or config.work else sorted({0, total - 1})
    if is_dynamic:
        # A cluster takes over tiles of clusters that have not started: an equal number in each place.
        chosen = range(-(-total // slots))
        notes.append(f"dynamic tile scheduler: {len(chosen)} tiles for each of {min(total, slots)} places")
    wave = range(min(total, slots, _MAX_WATCHED_BLOCKS))
    seen = _record_clusters(config, costs, chosen, () if is_dynamic else wave)
    # With a dynamic tile scheduler, the first wave is watched as if all its clusters had begun.
    watched = _record_clusters(config, costs, (), wave, all_begin=True) if is_dynamic else seen
    if not seen.skips_numbers:
        notes.append("control flow depends on data: all numbers are computed, with inputs of zeros")
    return _Recording(
        config, costs, seen.instructions, find_back_branches(seen.program),
        {number: cluster for number, cluster in seen.clusters.items() if number in chosen},
        total, slots, seats, len(chosen) if is_dynamic else 0,
        *_find_dram_fractions([watched.clusters[number] for number in wave]), seen.skips_numbers, tuple(notes),
    )  # fmt: skip


def _replay_launch(recording: _Recording, clock_mhz: int) -> Simulation:
    """Replay what was recorded with multiprocessors at this clock, and extrapolate to the grid."""
    config, costs, recorded = recording.launch, recording.costs, recording.clusters
    total, slots, seats, tiles = recording.total, recording.slots, recording.seats, recording.tiles
    size, first = math.prod(config.cluster), recorded[0]
    # Bytes a cycle are of the target's clock: the clock of memory does not depend on that of multiprocessors.
    scale = costs.clock_mhz / clock_mhz / recording.active
    l2_rate = costs.l2_bytes_per_cycle
    if recording.missing * _REREAD <= 1:
        l2_rate = max(l2_rate, costs.l2_shared_bytes_per_cycle)
    shares = MemoryShares(
        l2_rate * scale, costs.dram_read_bytes_per_cycle * scale, recording.missing,
        missing_by_step=recording.missing_by_step, write_price=costs.price_written_byte(_find_written_part(recording)),
        l2_to_threads=costs.l2_bytes_per_cycle * scale,
    )  # fmt: skip

    def replay_clusters(
        cluster: Sequence[BlockTrace], resident: int, count: int, *, draw: bool = False
    ) -> ReplayResult:
        """Replay `count` clusters like this one, `resident` at a time; of a partly recorded one `resident`,
        extrapolated."""
        engine = Engine(recording.instructions, costs, shares, loops=recording.loops, draws=draw)
        steady = _find_steady_loop(cluster[0], recording.loops) if cluster[0].length > MAX_ENTRIES else None
        if steady is None:
            return engine.run([cluster] * count, resident)
        warp, pc, passes, all_passes = steady
        result = engine.run([cluster] * resident, resident, (warp, pc, passes))
        marks = result.marks[warp, pc]
        half = len(marks) // 2
        interval = (marks[-1] - marks[half]) / (len(marks) - 1 - half)
        # What follows the last pass is estimated as half an interval.
        result.stretch_to(marks[-1] + interval * (all_passes - len(marks) + 0.5))
        result.ends = [result.cycles] * resident
        return result

    lengths = {number: sum(block.length for block in cluster) for number, cluster in recorded.items()}
    shortest, longest = min(lengths.values()), max(lengths.values())
    is_uniform = bool(tiles) or total <= 1 or longest == shortest
    if is_uniform:
        count = 1 if tiles else total
        waves = max(1, -(-count // slots))
        together = max(1, min(config.resident, -(-count // seats)))
        rounds = _count_rounds(waves, longest * together) if first[0].length <= MAX_ENTRIES else 1
        result = replay_clusters(first, together, together * rounds, draw=recording.draws)
        each = _measure_wave(result, together, rounds)
        last = count - (waves - 1) * slots
        cycles, tail = result.cycles + (waves - rounds) * each, 0.0
        if waves > 1 and last < slots:
            # In the last wave fewer clusters share a multiprocessor, and some multiprocessors have none.
            together_at_end = max(1, -(-last // seats))
            ending = each
            if together_at_end != together:
                ending = replay_clusters(first, together_at_end, together_at_end).cycles
            cycles += ending - each
            tail = ending * (1 - last / (seats * together_at_end))
        weight = total / tiles if tiles else float(total)
    else:
        durations: dict[int, float] = {}
        results: dict[int, ReplayResult] = {}
        together = max(1, min(config.resident, -(-total // seats)))
        for number, cluster in recorded.items():
            known = next((n for n in results if lengths[n] == lengths[number]), None)
            if known is None:
                results[number] = replay_clusters(cluster, together, together, draw=recording.draws and not results)
                durations[number] = results[number].cycles
            else:
                durations[number] = durations[known]
        typical = max(results, key=lambda number: lengths[number])
        result, first = results[typical], recorded[typical]
        spread = _interpolate_over_grid(config, total, slots, durations)
        cycles, busy = _deal_clusters(spread, seats * together)
        tail = cycles - busy / min(slots, total)
        made = _interpolate_over_grid(config, total, slots, {n: float(lengths[n]) for n in durations})
        weight = sum(made.values()) / lengths[typical]

    # What idle multiprocessors leave of L2 and DRAM at the end, the others have.
    relief = tail * min(max(result.held.get("dram", 0.0), result.held.get("l2", 0.0)) / result.cycles, 1.0)
    cycles, tail = cycles - relief, tail - relief

    def sum_over_grid(amount: Callable[[BlockTrace], float]) -> float:
        """Return a block's amount summed over the whole grid, extrapolated from the recorded clusters."""
        if is_uniform:
            return sum(map(amount, first)) * weight
        each = {number: float(sum(map(amount, cluster))) for number, cluster in recorded.items()}
        return sum(_interpolate_over_grid(config, total, slots, each).values())

    return Simulation(
        launch=config, costs=costs, clock_mhz=clock_mhz, instructions=recording.instructions, first=result,
        shares=shares, cycles=cycles, blocks=total * size, active=recording.active, together=together,
        waves=total / slots, tail=tail, loaded=sum_over_grid(lambda block: block.loaded / block.part),
        missed=sum_over_grid(lambda block: _count_missed(block, recording)),
        stored=sum_over_grid(lambda block: block.stored),
        flops=sum_over_grid(lambda block: _count_flops(block, recording.instructions)),
        block=first[0], weight=weight, lengths=(shortest // size, longest // size),
        follows_numbers=not recording.skips_numbers, notes=list(recording.notes),
    )  # fmt: skip


def _count_missed(block: BlockTrace, recording: _Recording) -> float:
    """Return the bytes that a recorded block loads from DRAM."""
    fractions = recording.missing_by_step
    read = sum(size * fractions.get(pc, recording.missing) for pc, size in block.loads.items())
    return read / block.part


def _find_written_part(recording: _Recording) -> float:
    """Return which part of the bytes that DRAM moves is written, of all recorded blocks; 0 where they move none."""
    blocks = [block for cluster in recording.clusters.values() for block in cluster]
    stored = sum(block.stored for block in blocks)
    return stored / max(stored + sum(_count_missed(block, recording) for block in blocks), 1)


def _count_rounds(waves: int, instructions: int) -> int:
    """Return how many of these waves to replay, each of so many warp instructions: more of small ones, in whose later
    rounds blocks start at different times."""
    few = min(_REPLAYED_WAVES, _MAX_REPLAYED // max(1, instructions))
    many = min(_REPLAYED_SMALL_WAVES, _MAX_REPLAYED_SMALL // max(1, instructions))
    return max(1, min(waves, max(few, many)))


def _measure_wave(result: ReplayResult, together: int, rounds: int) -> float:
    """Return the cycles of a wave among others: of the second half of the replayed rounds, without the last one, whose
    blocks have ever fewer others beside them."""
    if rounds < 2:
        return result.cycles / rounds
    first = max(rounds // 2, 1) if rounds > 2 else rounds
    if rounds == 2:
        return result.ends[-1] - result.ends[-1 - together]
    ends = sorted(result.ends)
    return (ends[-1 - together] - ends[first * together - 1]) / (rounds - 1 - first)


def _record_clusters(
    config: Launch, costs: InstructionCosts, whole: Sequence[int], wave: Sequence[int], *, all_begin: bool = False
) -> BlockRecorder:
    """Run these clusters in the emulator and return their recorder: `whole` ones are recorded, those of `wave` only
    watched."""
    made: list[BlockRecorder] = []
    lines = read_machine_lines(config.cubin, config.entry)
    numbers = sorted({*whole, *wave})

    def create_recorder(program: Program) -> Listener:
        """Return the new recorder of the launch, and keep it in `made`."""
        made.append(BlockRecorder(program, costs, whole, numbers, _WATCHED_BYTES, lines))
        return made[0]

    launch(
        config.ptx, config.entry, config.grid, config.block, config.args, cluster=config.cluster,
        dynamic_smem=config.dynamic_smem, races=False, observe=create_recorder, only=numbers, step_limit=1 << 40,
        all_begin=all_begin,
    )  # fmt: skip
    return made[0]


def _find_dram_fractions(clusters: Sequence[Sequence[BlockTrace]]) -> tuple[float, dict[int, float]]:
    """Return the fraction of the bytes loaded by a wave that come from DRAM, and that of each step: each piece of
    memory once, with the load that is the first, then from L2. It is 1 if no load is watched."""
    watched: dict[int, int] = {}
    missed: dict[int, int] = {}
    known: set[tuple[int, ...]] = set()
    for block in (block for cluster in clusters for block in cluster):
        for pc, size in block.watched.items():
            watched[pc] = watched.get(pc, 0) + size
        for key, (size, pc) in block.pieces.items():
            if key not in known:
                missed[pc] = missed.get(pc, 0) + size
        known.update(block.pieces)
    overall = min(1.0, sum(missed.values()) / sum(watched.values())) if any(watched.values()) else 1.0
    return overall, {pc: min(1.0, missed.get(pc, 0) / size) for pc, size in watched.items() if size}


def _count_flops(block: BlockTrace, instructions: Sequence[Instruction]) -> int:
    """Return the floating-point operations of all products of a block."""
    total = 0
    for pc, count in block.counts.items():
        flops = instructions[pc].flops
        if flops and instructions[pc].deed == "tcgen05.mma":
            flops *= block.details[pc][0] * block.details[pc][1]
        total += flops * count
    return total


def _find_steady_loop(block: BlockTrace, loops: frozenset[int]) -> tuple[int, int, int, float] | None:
    """Return the loop that extrapolates a partly recorded block: (warp, back branch, passes to replay, all), or None.
    It is the outermost loop with enough recorded passes, of those that the recording does not see the end of."""
    written: dict[tuple[int, int], int] = {}
    for number, entries in enumerate(block.warps):
        for step, _ in entries:
            if step in loops:
                written[number, step] = written.get((number, step), 0) + 1
    enough = [key for key, passes in written.items() if _ENOUGH_PASSES <= passes < block.passes[key]]
    if not enough:
        return None
    busiest = max(sum(n for (w, _), n in block.passes.items() if w == warp) for warp, _ in enough)
    busiest_warp_loops = [
        key for key in enough if sum(n for (w, _), n in block.passes.items() if w == key[0]) == busiest
    ]
    warp, pc = min(busiest_warp_loops, key=lambda key: (block.passes[key], key))
    return warp, pc, written[warp, pc] - 2, float(block.passes[warp, pc])


def _count_axis_clusters(config: Launch, total: int) -> list[int]:
    """Return the number of clusters along x, y and z; all along x if only some of the grid is simulated."""
    extents = [extent // size for extent, size in zip(config.grid, config.cluster, strict=True)]
    return extents if math.prod(extents) == total else [total, 1, 1]


def _list_axis_samples(extent: int) -> list[int]:
    """Return the first, middle and last position along an axis."""
    return sorted({0, extent // 2, extent - 1})


def _choose_samples(config: Launch, total: int) -> list[int]:
    """Return the clusters to record: the first, and by work the least, medium and most, else ends and middle of each
    axis."""
    if len(config.work) >= total:
        by_work = sorted(range(total), key=lambda number: (config.work[number], number))
        middling = (config.work[by_work[0]] + config.work[by_work[-1]]) / 2
        near = min(by_work, key=lambda number: (abs(config.work[number] - middling), number))
        return sorted({0, by_work[0], near, by_work[-1]})
    x, y, z = _count_axis_clusters(config, total)
    steps = (1, x, x * y)
    return sorted(
        {stop * step for extent, step in zip((x, y, z), steps, strict=True) for stop in _list_axis_samples(extent)}
    )


def _interpolate_by_axis(config: Launch, total: int, values: dict[int, float]) -> dict[int, float]:
    """Return a value for each cluster, at least 1: the first cluster's plus what each axis adds, linear between
    samples."""
    x, y, z = _count_axis_clusters(config, total)
    base = values[0]
    added: list[list[float]] = []
    for extent, step in zip((x, y, z), (1, x, x * y), strict=True):
        stops = _list_axis_samples(extent)
        axis_values = []
        for at in range(extent):
            low = max(stop for stop in stops if stop <= at)
            high = min(stop for stop in stops if stop >= at)
            fraction = 0.0 if low == high else (at - low) / (high - low)
            axis_values.append(values[low * step] * (1 - fraction) + values[high * step] * fraction - base)
        added.append(axis_values)
    places = itertools.product(range(z), range(y), range(x))
    return {number: max(base + added[0][i] + added[1][j] + added[2][k], 1.0) for number, (k, j, i) in enumerate(places)}


def _interpolate_over_grid(config: Launch, total: int, slots: int, values: dict[int, float]) -> dict[int, float]:
    """Return a value for each cluster, by number, from recorded ones: by work if known, else by position. Where all
    start at once, only the first and the last count."""
    if len(config.work) >= total:
        known = sorted((config.work[number], value) for number, value in values.items())
        work_at, values_at = [work for work, _ in known], [value for _, value in known]
        return dict(enumerate(np.interp(config.work[:total], work_at, values_at).tolist()))
    if total > slots:
        return _interpolate_by_axis(config, total, values)
    first, last = values[0], values[total - 1]
    return {number: first + (last - first) * number / max(1, total - 1) for number in range(total)}


def _deal_clusters(durations: dict[int, float], slots: int) -> tuple[float, float]:
    """Return when the last cluster ends, if `slots` run at a time in order, and the sum of all durations."""
    free = [0.0] * slots
    for number in sorted(durations):
        heapq.heapreplace(free, free[0] + durations[number])
    return max(free), sum(durations.values())
