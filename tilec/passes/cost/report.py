"""The model's report on a built kernel: its time, its bound, and how near it comes to the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from tilec.ir.tile import Buffer, For, Stmt, TileOp, walk_statements
from tilec.passes.cost.kernel import (
    COMPUTE_SLOTS,
    TENSOR_SLOT,
    BlockCost,
    BlockWalk,
    LoopNest,
    build_loop_cost,
    build_loop_nest,
    build_machine,
    count_nest_cycles,
    count_moved_bytes,
    find_innermost_loops,
    read_occupancy_limits,
    sample_blocks,
)
from tilec.passes.cost.model import (
    Launch,
    LevelTime,
    Machine,
    Prediction,
    count_cta_cycles,
    count_ctas_by_resource,
    predict_blocks,
    predict_level_times,
)
from tilec.passes.grid.persistent import replace_dynamic_by_static_stride
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.target.table import Target

Limit = Literal["compute", "DRAM"]
START = 800
NO_TENSOR_SHARE, LIGHT_TENSOR_SHARE = 0.02, 0.45


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
    whose limits were taken ("": those of the target's file). For `tensor_share` of the time tensor cores are busy;
    `clock_mhz` is the clock that cycles of memory are of, `tensor_clock_mhz` the one left when they always are."""

    kernel: str
    target: str
    clock_mhz: int
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
    tensor_clock_mhz: int = 0
    light_clock_mhz: int = 0
    free_clock_mhz: int = 0
    assumes_sizes: bool = False

    @property
    def counted_blocks(self) -> str:
        """Return for which blocks the time is predicted, in words."""
        return "a full wave of blocks" if self.is_one_wave else f"{self.ctas:,} block{'s' * (self.ctas != 1)}"

    @property
    def assumption(self) -> str:
        """Return what the prediction assumes of sizes, as the end of a sentence; empty where they are known."""
        return ", whatever the sizes" if self.assumes_sizes else ""

    @property
    def loaded_clock_mhz(self) -> int:
        """The clock that the board can hold: busy tensor cores lower it in proportion to their share of the time. The
        clock of a calibrated file is already the one under load."""
        if not self.free_clock_mhz:
            fall = max(self.clock_mhz - self.tensor_clock_mhz, 0)
            return round(self.clock_mhz - fall * self.tensor_share)
        if self.tensor_share < NO_TENSOR_SHARE:
            return self.free_clock_mhz
        fall = max(self.light_clock_mhz - self.tensor_clock_mhz, 0)
        return round(self.light_clock_mhz - fall * max(self.tensor_share / LIGHT_TENSOR_SHARE - 1, 0) / (1 / LIGHT_TENSOR_SHARE - 1))

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
        """The roofline in the form of a prediction."""
        return Prediction(self.compute, self.dram, 1)

    @property
    def limit(self) -> Limit:
        """The resource that sets the roofline."""
        return "compute" if self.compute >= self.dram else "DRAM"

    @property
    def predicted(self) -> Prediction:
        """The predicted time: the longer of the memory levels and the schedules."""
        return max(self.by_levels, self.by_schedule, key=self.at)

    @property
    def achieved(self) -> float:
        """The fraction of the roofline that the prediction reaches."""
        return self.roofline / max(self.predicted.cycles, 1)

    @property
    def is_a_bound(self) -> bool:
        """True if the prediction is the roofline itself, and says nothing about how near a kernel comes."""
        return self.roofline > 0 and self.achieved >= 0.995

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
        return max(predicted.compute / (clock_mhz or self.loaded_clock_mhz), self.microseconds(predicted.memory))

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
    *,
    assumes_sizes: bool = False,
) -> Report:
    """Predict a kernel as it was built, from the blocks that are launched (None: known at launch only), the threads and
    bytes of shared memory of one, and the registers of a thread. `sizes` are those that the kernel learns at launch;
    `assumes_sizes`: it has some, and they are unknown."""
    kernel, sms = replace_dynamic_by_static_stride(assignment.kernel, target), target.limit("sms")
    limits = {limit.name: limit.value for limit in target.limits}
    if kernel is not assignment.kernel:
        assignment = replace(assignment, kernel=kernel)
        x, y, z = (size for size in (*kernel.grid, 1, 1)[:3] if isinstance(size, int))
        grid = x, y, z
    fits = count_ctas_by_resource(smem_bytes, registers, threads, read_occupancy_limits(target))
    together = max(min(fits.values()), 1)
    ctas = sms * together if grid is None else math.prod(grid)
    spots = list(sample_blocks((1, 1, 1) if grid is None else grid))
    by_loop = {IdentityKey(one.loop.loop): one for one in schedules}

    of_schedules = BlockWalk(assignment, target, (one.loop.loop for one in schedules), sizes)
    scheduled_blocks = [of_schedules.walk_block(place) for place in spots]
    inner = find_innermost_loops(assignment)
    of_levels = BlockWalk(assignment, target, inner, sizes)
    blocks = [of_levels.walk_block(place) for place in spots]

    loaded = sum(block.loaded for block in blocks) * ctas // len(blocks)
    moved = 0 if grid is None else count_moved_bytes(kernel, loaded, sizes)
    launch, where = Launch(ctas, together, loaded, moved), build_machine(target, loaded, moved)

    nests: dict[tuple[IdentityKey[For], int], LoopNest] = {}

    def get_nest(loop: For, trip_count: int) -> LoopNest:
        if (IdentityKey(loop), trip_count) not in nests:
            stages = count_versions_under_way(by_loop.get(IdentityKey(loop)))
            nests[IdentityKey(loop), trip_count] = build_loop_nest(
                of_levels, loop, trip_count, stages, min(sms, max(ctas, 1)), where
            )
        return nests[IdentityKey(loop), trip_count]

    is_specialised = assignment.form == "warp_specialised"

    def count_hidden_cycles(block: BlockCost, loops: Sequence[tuple[For, int, int]]) -> int:
        """Return the cycles of first loads that a producer warp hides: it loads a loop's first tiles while the others
        are still at the statements before it, but for the first time."""
        runs = sum(times for _, _, times in loops)
        if not is_specialised or runs < 2:
            return 0
        firsts = [(get_nest(loop, n).levels[0], times) for loop, n, times in loops]
        each = block.around // runs
        return sum(min(level.latency + level.transfer, each) * times for level, times in firsts) * (runs - 1) // runs

    def count_level_cycles(block: BlockCost, neighbours: int) -> int:
        alone = block.around + sum(
            times * count_nest_cycles(get_nest(loop, trip_count), neighbours) for loop, trip_count, times in block.loops
        )
        return START + max(alone - count_hidden_cycles(block, block.loops), _count_computing_cycles(block, neighbours))

    def count_schedule_cycles(block: BlockCost, neighbours: int) -> int:
        alone = block.around + sum(
            times * count_cta_cycles([build_loop_cost(by_loop[IdentityKey(loop)], trip_count, target)], neighbours)
            for loop, trip_count, times in block.loops
        )
        return START + max(alone - count_hidden_cycles(block, block.loops), _count_computing_cycles(block, neighbours))

    levels = predict_blocks([partial(count_level_cycles, block) for block in blocks], launch, where)
    full = -(-min(ctas, sms * together) // sms)
    loops = []
    for loop in inner:
        trip_count = max((n for block in blocks for other, n, _ in block.loops if other is loop), default=0)
        one = get_nest(loop, trip_count)
        times = predict_level_times(one.levels, one.use, full, one.own)
        known = by_loop.get(IdentityKey(loop))
        loops.append(LoopReport(loop.span.line, tuple(times), known.schedule.ii if known else None))
    return Report(
        kernel.name,
        target.name,
        target.limit("clock_mhz"),
        ctas,
        tuple(fits.items()),
        tuple(loops),
        levels,
        predict_blocks([partial(count_schedule_cycles, block) for block in scheduled_blocks], launch, where),
        _describe_bound(
            loops, [(block.around, count_level_cycles(block, full)) for block in blocks], levels, launch, where
        ),
        _count_least_compute(blocks, ctas, target),
        moved // target.limit("dram_bytes_per_cycle"),
        grid is None,
        target.gpu,
        min(_count_held_cycles(blocks, TENSOR_SLOT, ctas, target) / max(levels.cycles, 1), 1.0),
        target.limit("tensor_clock_mhz"),
        limits.get("light_clock_mhz", 0),
        limits.get("free_clock_mhz", 0),
        assumes_sizes,
    )


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


def _count_computing_cycles(block: BlockCost, neighbours: int) -> int:
    """Return the cycles for which the blocks of an SM keep the busiest computing slot: the work of a block around its
    pipelined loops hides behind other blocks' waits, but not behind their computing."""
    return neighbours * max(block.held.get(slot, 0) for slot in COMPUTE_SLOTS)


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
