"""The time of a whole launch from a kernel's layouts: the price of decisions about its grid, its clusters, its roles.

The blocks of a persistent grid are predicted as what they walk over; the loops take what their levels allow, and at
least the lower bounds of their intervals where these are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilec.ir.tile import For
from tilec.passes.cost.block_time import BlockTimer
from tilec.passes.cost.estimate import (
    SAMPLED_BLOCKS,
    DoesNotFit,
    estimate_registers,
    estimate_residency,
    find_most_stages,
    find_stage_options,
)
from tilec.passes.cost.kernel import (
    SHARED_SLOTS,
    BlockCost,
    BlockWalk,
    build_machine,
    count_moved_bytes,
    find_innermost_loops,
    sample_blocks,
)
from tilec.passes.cost.model import Launch, Prediction, predict_blocks
from tilec.passes.grid.persistent import blocks_at_once
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.target.table import Target

Intervals = Mapping[IdentityKey[For], int]
"""The least cycles between iterations of loops, as one block runs them."""


@dataclass(frozen=True, slots=True)
class LaunchForm:
    """The versions of tiles, the blocks that share a multiprocessor, and whether only as many blocks are launched as
    run at once, which walk over the grid."""

    stages: int
    together: int
    is_persistent: bool = False


def list_launch_forms(assignment: LayoutAssignment, target: Target) -> list[LaunchForm]:
    """Return the forms in which a kernel can be launched: where a producer warp loads, with all versions of the tiles,
    persistent or not; else one for each number of versions that fits. Empty where not even one block fits."""
    loops = find_innermost_loops(assignment)
    is_specialised = assignment.form == "warp_specialised"
    registers = 0 if is_specialised else estimate_registers(assignment, target)
    try:
        options = list(find_stage_options(assignment, loops, registers, assignment.block_threads, target))
    except DoesNotFit:
        return []
    if not is_specialised:
        return [LaunchForm(stages, together) for stages, together in options]
    residency = estimate_residency(assignment, target)
    return [LaunchForm(options[-1][0], residency, is_persistent) for is_persistent in (False, True)]


class LaunchTimer:
    """Predicts the launches of one kernel, in several forms. The grid must be known."""

    def __init__(self, assignment: LayoutAssignment, target: Target, intervals: Intervals | None = None) -> None:
        self.assignment, self.target, self.intervals = assignment, target, intervals or {}
        self.grid = _find_extents(assignment)
        self.ctas, self.sms = math.prod(self.grid), target.limit("sms")
        self.loops = find_innermost_loops(assignment)
        self.walk = BlockWalk(assignment, target, self.loops)
        self.blocks = [self.walk.walk_block(place) for place in sample_blocks(self.grid, SAMPLED_BLOCKS)]
        loaded = sum(block.loaded for block in self.blocks) * self.ctas // len(self.blocks)
        moved = count_moved_bytes(assignment.kernel, loaded)
        self.launch = Launch(self.ctas, 1, loaded, moved)
        self.machine = build_machine(target, loaded, moved)

    @property
    def least_cycles(self) -> int:
        """The cycles below which no form of the launch stays: the busiest computing slot, and memory."""
        held = {slot: sum(block.held.get(slot, 0) for block in self.blocks) for slot in SHARED_SLOTS}
        computing = max(held.values()) * self.ctas // (len(self.blocks) * self.sms)
        return max(computing, predict_blocks([], replace(self.launch, ctas=0), self.machine).memory)

    def predict_cycles(self, form: LaunchForm) -> int:
        """Return the predicted cycles of the launch."""
        loading = min(self.sms, self.ctas)
        stages = {IdentityKey(loop): min(form.stages, find_most_stages(loop)) for loop in self.loops}
        timer = BlockTimer(self.walk, lambda loop: stages[IdentityKey(loop)], loading, self.machine)

        def count_loop(loop: For, trip_count: int, neighbours: int) -> int:
            """Return the cycles of a loop by its levels, but at least its first load and bounded intervals."""
            by_levels = timer.count_level_cycles(loop, trip_count, neighbours)
            least = self.intervals.get(IdentityKey(loop), 0)
            first = timer.get_nest(loop, trip_count).levels[0]
            return max(by_levels, first.latency + first.transfer + least * trip_count)

        count_block = partial(timer.count_block_cycles, count_loop)
        if not form.is_persistent:
            launch = Launch(self.ctas, form.together, self.launch.l2_bytes, self.launch.dram_bytes)
            return predict_blocks([partial(count_block, block) for block in self.blocks], launch, self.machine).cycles
        at_once = min(blocks_at_once(self.target, self.assignment.kernel.cluster.blocks) * form.together, self.ctas)
        tiles = -(-self.ctas // at_once)
        walking = _join_blocks(self.blocks)
        together = -(-at_once // self.sms)
        compute = count_block(walking, together) * tiles // len(self.blocks)
        memory = predict_blocks([], replace(self.launch, ctas=0), self.machine).memory
        return Prediction(compute + self.machine.launch_cycles, memory, tiles).cycles


def _join_blocks(blocks: Sequence[BlockCost]) -> BlockCost:
    """Return a block that does the work of all of these, one after the other."""
    joined = BlockCost()
    for block in blocks:
        joined.add(block, 1)
    return joined


def _find_extents(assignment: LayoutAssignment) -> tuple[int, int, int]:
    """Return the extents of a grid that is known when compiling."""
    x, y, z = (*(extent for extent in assignment.kernel.grid if isinstance(extent, int)), 1, 1, 1)[:3]
    return x, y, z
