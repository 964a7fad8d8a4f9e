"""The model's report on a built kernel: its time, its bound, and how near it comes to the roofline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Literal

from tilec.ir.tile import For, Stmt, TileOp, walk_statements
from tilec.passes.cost.block_time import BlockCode, BlockTimer, MachineInterval, add_machine_code
from tilec.passes.cost.count_dram_reads import count_repeated_bytes
from tilec.passes.cost.kernel import (
    COMPUTE_SLOTS,
    REREAD,
    TENSOR_SLOT,
    BlockCost,
    BlockWalk,
    build_loop_cost,
    build_machine,
    count_held_by_slot,
    count_moved_bytes,
    find_innermost_loops,
    read_clock,
    read_occupancy_limits,
    sample_blocks,
)
from tilec.passes.cost.known_values import Contents
from tilec.passes.cost.model import (
    PING_PONG_CYCLES,
    SCHEDULERS,
    Clock,
    Launch,
    LevelTime,
    Machine,
    Prediction,
    count_cta_cycles,
    count_ctas_by_resource,
    overlap_times,
    predict_blocks,
    predict_level_times,
)
from tilec.passes.grid.persistent import replace_dynamic_by_static_stride
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.sched.schedule import Status
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.target.table import Target

Limit = Literal["compute", "DRAM"]


UNFILLED_STALLS = 74
"""Of 100 cycles that stall counts keep a warp from issuing, those in which warps of other warpgroups do not issue
either, where warpgroups alternate. Fitted to flash_attention with heads of 64 and 128, as decided, with
--no-split-loops and with --no-overlap, on an H200 (benchmarks/results/h200-2026-11-27): 70 to 79."""


IN_ORDER: tuple[Status, ...] = ("given", "serial")
"""Schedules that overlap no iterations. Their intervals count products of all warpgroups; but a warpgroup waits for its
own, while the others are elsewhere in their iterations."""


@dataclass(frozen=True, slots=True)
class LoopReport:
    """The levels of a pipelined loop in a full wave, and its interval if it was scheduled."""

    line: int
    levels: tuple[LevelTime, ...]
    ii: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """All times in cycles. `predicted` is the one prediction: the longer of `by_levels`, what the levels of its loops
    allow, and `by_schedule`, what their schedules do.
    `fits` is how many CTAs each resource of an SM has room for. `compute` and `dram` are the least that the kernel's
    work and its tensors take of the whole machine. `bound` is what the time is made of. Where `is_one_wave`, the grid
    is known at launch only, and all of this is about one full wave, with no tensors counted. Where `assumes_sizes`, the
    kernel has sizes that were not given: loops that depend on them run as often as is likely. `gpu` is the product
    whose limits were taken ("": those of the target's file). Tensor cores are busy for `tensor_share` of the time, on
    which the `clock` depends. `assumed` are the contents of tensors, by name, that decide how long loops run and were
    not given."""

    kernel: str
    target: str
    ctas: int
    fits: tuple[tuple[str, int], ...]
    loops: tuple[LoopReport, ...]
    by_levels: Prediction
    by_schedule: Prediction
    bound: str
    compute: int
    dram: int
    is_one_wave: bool = False
    gpu: str = ""
    tensor_share: float = 0.0
    clock: Clock = Clock(1, 1)
    launch_cycles: int = 0
    assumes_sizes: bool = False
    assumed: tuple[tuple[str, int], ...] = ()

    @property
    def clock_mhz(self) -> int:
        """The clock that cycles are of."""
        return self.clock.nominal

    @property
    def counted_blocks(self) -> str:
        """Return for which blocks the time is predicted, in words."""
        return "a full wave of blocks" if self.is_one_wave else f"{self.ctas:,} block{'s' * (self.ctas != 1)}"

    @property
    def assumption(self) -> str:
        """Return what the prediction assumes, as the end of a sentence; empty where all is known."""
        values = ", ".join(f"{name} = {value:,}" for name, value in self.assumed)
        return (", whatever the sizes" if self.assumes_sizes else "") + (f", if all {values}" if values else "")

    @property
    def loaded_clock_mhz(self) -> int:
        """The clock that the board can hold."""
        return self.clock.under_load(self.tensor_share)

    @property
    def machine(self) -> str:
        """The target, and the GPU whose limits were taken if one was named."""
        return f"{self.target} ({self.gpu})" if self.gpu else self.target

    @property
    def together(self) -> int:
        """The CTAs of an SM."""
        return max(min(count for _, count in self.fits), 1)

    @property
    def roofline(self) -> int:
        """The least time of this work: all SMs compute all the time, and each tensor passes to or from memory once."""
        return max(self.compute, self.dram)

    @property
    def limits(self) -> Prediction:
        """The roofline in the form of a prediction: the longer part alone, since a bound knows no waiting."""
        return max(Prediction(self.compute, 0, 1), Prediction(0, self.dram, 1), key=self.at)

    @property
    def limit(self) -> Limit:
        """The resource that sets the roofline."""
        return "compute" if self.compute >= self.dram else "DRAM"

    @property
    def predicted(self) -> Prediction:
        """The predicted time: the longer of the memory levels and the schedules."""
        return max(self.by_levels, self.by_schedule, key=self.at)

    @property
    def after_launch(self) -> float:
        """The predicted microseconds from the start of the first block on."""
        return self.at(self.predicted) - self.launch_cycles / self.loaded_clock_mhz

    @property
    def achieved(self) -> float:
        """The fraction of the roofline that the prediction reaches."""
        return self.roofline / max(self.predicted.cycles, 1)

    @property
    def is_a_bound(self) -> bool:
        """True if the longest part of the prediction is the roofline itself: it says nothing about how near a kernel
        comes."""
        found = self.predicted
        return self.roofline > 0 and self.roofline >= 0.995 * (max(found.compute, found.memory) - self.launch_cycles)

    @property
    def gap(self) -> str:
        """The difference between the predictions by schedules and by levels, in words; empty where they agree, or where
        no loop has a schedule."""
        levels, schedules = round(self.at(self.by_levels), 1), round(self.at(self.by_schedule), 1)
        if levels == schedules or all(loop.ii is None for loop in self.loops):
            return ""
        if levels > schedules:
            adds = f"what binds adds {levels - schedules:,.1f}"
            return f"{schedules:,.1f} µs if only the loops' schedules counted; {adds}"
        return f"{levels:,.1f} µs if only the levels counted; the loops' schedules add {schedules - levels:,.1f}"

    def microseconds(self, cycles: int) -> float:
        return cycles / self.clock_mhz

    def at(self, predicted: Prediction, clock_mhz: int | None = None) -> float:
        """Return the microseconds of a prediction at this clock of the multiprocessors (None: the one that this kernel
        leaves them). Memory does not depend on it."""
        compute = predicted.compute / (clock_mhz or self.loaded_clock_mhz)
        return overlap_times(compute, self.microseconds(predicted.memory), self.microseconds(predicted.misses))

    def scale_to_clock(self, predicted: Prediction) -> int:
        """Return the same time in cycles of the target's clock, so that kernels with different clocks compare."""
        return round(self.at(predicted) * self.clock_mhz)


def build_report(
    assignment: LayoutAssignment,
    schedules: Sequence[ScheduledLoop],
    target: Target,
    grid: tuple[int, int, int] | None,
    threads: int,
    smem_bytes: int,
    registers: int,
    sizes: Mapping[str, int] | None = None,
    contents: Contents | None = None,
    *,
    assumes_sizes: bool = False,
    intervals: Mapping[int, MachineInterval] | None = None,
    dram_reads: int | None = None,
    code: BlockCode | None = None,
) -> Report:
    """Predict a kernel as it was built, from the blocks that are launched (None: known at launch only), the threads and
    bytes of shared memory of one, and the registers of a thread. `sizes` are those that the kernel learns at launch;
    `assumes_sizes`: it has some, and they are unknown. `contents` are those of tensors that decide how often loops
    run, `intervals` what is known of the machine code of scheduled loops, by their lines. `dram_reads` are the
    bytes that the blocks read from DRAM in their order; None if each byte counts once. `code` is the machine code
    outside of scheduled loops, where it is known."""
    kernel, sms = replace_dynamic_by_static_stride(assignment.kernel, target), target.limit("sms")
    if kernel is not assignment.kernel:
        assignment = replace(assignment, kernel=kernel)
        x, y, z = (size for size in (*kernel.grid, 1, 1)[:3] if isinstance(size, int))
        grid = x, y, z
    fits = count_ctas_by_resource(smem_bytes, registers, threads, read_occupancy_limits(target))
    together = max(min(fits.values()), 1)
    ctas = sms * together if grid is None else math.prod(grid)
    spots = list(sample_blocks((1, 1, 1) if grid is None else grid))
    by_loop = {IdentityKey(one.loop.loop): one for one in schedules}

    inner = find_innermost_loops(assignment)
    of_levels = BlockWalk(assignment, target, inner, sizes, contents)
    blocks = scheduled_blocks = [of_levels.walk_block(place) for place in spots]
    if by_loop.keys() != {IdentityKey(loop) for loop in inner}:
        of_schedules = BlockWalk(assignment, target, (one.loop.loop for one in schedules), sizes, contents)
        scheduled_blocks = [of_schedules.walk_block(place) for place in spots]
    if code is not None:
        add_code = partial(add_machine_code, code=code, intervals=intervals or {}, warps=-(-threads // 32))
        blocks, scheduled_blocks = _change_blocks(add_code, blocks), _change_blocks(add_code, scheduled_blocks)

    loaded = sum(block.loaded for block in blocks) * ctas // len(blocks)
    moved = 0 if grid is None else count_moved_bytes(kernel, loaded, sizes)
    missed = min(dram_reads, loaded) if dram_reads is not None and loaded >= REREAD * moved else 0
    repeated = 0 if grid is None else count_repeated_bytes(kernel, ctas, sms * together, target.limit("l2_bytes"))
    launch, where = Launch(ctas, together, loaded, moved + repeated, missed), build_machine(target, loaded, moved)

    def count_stages(loop: For) -> int:
        return count_versions_under_way(by_loop.get(IdentityKey(loop)))

    # Warps that are all alike wait for each other in every iteration.
    warpgroups = max(kernel.threads // 128, 1) if assignment.form == "warp_specialised" else 1

    def count_scheduled_cycles(loop: For, trip_count: int, neighbours: int) -> int:
        """Return the cycles of a loop by its schedule; alternating warpgroups and its machine code may take longer."""
        cost = build_loop_cost(by_loop[IdentityKey(loop)], trip_count, target)
        groups = by_loop[IdentityKey(loop)].loop.groups
        if groups > 1:
            cost = replace(cost, ii=cost.ii + PING_PONG_CYCLES)
        elif by_loop[IdentityKey(loop)].schedule.status in IN_ORDER:
            products = count_held_by_slot(by_loop[IdentityKey(loop)]).get(TENSOR_SLOT, 0)
            cost = replace(cost, ii=max(cost.busy, cost.ii - products * (warpgroups - 1) // warpgroups))
        if (interval := (intervals or {}).get(loop.span.line)) is not None:
            if groups > 1:
                products = count_held_by_slot(by_loop[IdentityKey(loop)]).get(TENSOR_SLOT, 0) // groups
                cost = replace(cost, ii=max(cost.ii, products + interval.stalls * groups * UNFILLED_STALLS // 100))
            issue = interval.held * kernel.threads // 32 // SCHEDULERS
            cost = replace(cost, ii=max(cost.ii, interval.cycles, issue), busy=max(cost.busy, issue))
        return count_cta_cycles([cost], neighbours)

    timer = BlockTimer(of_levels, count_stages, min(sms, max(ctas, 1)), where)

    by_levels: Callable[[BlockCost, int], int] = partial(timer.count_block_cycles, timer.count_level_cycles)
    by_schedules: Callable[[BlockCost, int], int] = partial(timer.count_block_cycles, count_scheduled_cycles)
    levels = predict_blocks(_list_block_timers(by_levels, blocks), launch, where)
    scheduled = predict_blocks(_list_block_timers(by_schedules, scheduled_blocks), launch, where)
    full = -(-min(ctas, sms * together) // sms)
    loops = []
    for loop in inner:
        trip_count = max((n for block in blocks for other, n, _ in block.loops if other is loop), default=0)
        one = timer.get_nest(loop, trip_count)
        times = predict_level_times(one.levels, one.use, full, one.own)
        known = by_loop.get(IdentityKey(loop))
        loops.append(LoopReport(loop.span.line, tuple(times), known.schedule.ii if known else None))
    return Report(
        kernel.name,
        target.name,
        ctas,
        tuple(fits.items()),
        tuple(loops),
        levels,
        scheduled,
        _describe_bound(
            loops, [(each.around, by_levels(each, full)) for each in _list_distinct(blocks)], levels, launch, where
        ),
        _count_least_compute(blocks, ctas, target),
        moved // target.limit("dram_bytes_per_cycle"),
        grid is None,
        target.gpu,
        min(_count_held_cycles(blocks, TENSOR_SLOT, ctas, target) / max(levels.cycles, scheduled.cycles, 1), 1.0),
        read_clock(target),
        where.launch_cycles,
        assumes_sizes,
        tuple(sorted(of_levels.assumed.items())),
    )


def _change_blocks(change: Callable[[BlockCost], BlockCost], blocks: Sequence[BlockCost]) -> list[BlockCost]:
    """List the blocks as they are after a change; copies stay copies."""
    changed = {IdentityKey(block): change(block) for block in _list_distinct(blocks)}
    return [changed[IdentityKey(block)] for block in blocks]


def _list_distinct(blocks: Iterable[BlockCost]) -> list[BlockCost]:
    """List the blocks of which others are copies."""
    return [key.of for key in dict.fromkeys(map(IdentityKey, blocks))]


def _list_block_timers(
    count_cycles: Callable[[BlockCost, int], int], blocks: Sequence[BlockCost]
) -> list[Callable[[int], int]]:
    """Return a function from the blocks that share a multiprocessor to its cycles for each block; copies share one."""
    timers = {IdentityKey(block): cache(partial(count_cycles, block)) for block in _list_distinct(blocks)}
    return [timers[IdentityKey(block)] for block in blocks]


def count_versions_under_way(scheduled_loop: ScheduledLoop | None) -> int:
    """Return for how many iterations a loop loads early: the least versions of its loaded rings, or more where a
    version is free again before its iteration ends. Other rings hold computed values."""
    if scheduled_loop is None:
        return 1
    stage = [start // scheduled_loop.schedule.ii for start in scheduled_loop.schedule.start]
    under_way = (
        max(depth, 1 + max((stage[j] for j in ring.consumers), default=0) - min(stage[i] for i in ring.producers))
        for ring, depth in zip(scheduled_loop.loop.problem.rings, scheduled_loop.schedule.depth, strict=True)
        if any(_has_loads(scheduled_loop.loop.statements[i]) for i in ring.producers)
    )
    return min(under_way, default=1)


def _has_loads(stmt: Stmt) -> bool:
    return any(isinstance(inner, TileOp) and inner.is_load for inner in walk_statements((stmt,)))


def _count_least_compute(blocks: Sequence[BlockCost], ctas: int, target: Target) -> int:
    """Return the cycles of the busiest computing slot, for all CTAs over all SMs."""
    return max(_count_held_cycles(blocks, slot, ctas, target) for slot in COMPUTE_SLOTS)


def _count_held_cycles(blocks: Sequence[BlockCost], slot: str, ctas: int, target: Target) -> int:
    return sum(block.held.get(slot, 0) for block in blocks) * ctas // (len(blocks) * target.limit("sms"))


def _describe_bound(
    loops: Sequence[LoopReport],
    blocks: Sequence[tuple[int, int]],
    found: Prediction,
    launch: Launch,
    where: Machine,
) -> str:
    """Describe what most of the time is spent on. `blocks` are, for each block, its cycles around pipelined loops and
    in all: a persistent block runs a loop more than once."""
    if found.memory > found.compute:
        of_l2 = launch.l2_bytes * where.dram_bytes_per_cycle
        return "L2 bandwidth" if of_l2 > launch.dram_bytes * where.l2_bytes_per_cycle else "DRAM bandwidth"
    if not loops:
        return "statements outside pipelined loops"
    longest = max(loops, key=lambda loop: loop.levels[0].cycles)
    around, cycles = max(blocks, key=lambda block: block[1])
    if 2 * around > cycles:
        return "statements around the pipelined loops"
    for time in longest.levels:
        if time.bound != "use":
            return f"{time.bound} of {time.level.name} in the loop at line {longest.line}"
    return f"what the loop at line {longest.line} computes"
