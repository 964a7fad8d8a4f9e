"""The time of each block of a grid, before anything is solved, and of the grid with its blocks in an order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from tilec.ir import tile
from tilec.passes.cost.estimate import SAMPLED_BLOCKS, DoesNotFit, find_stage_options, limit_stages
from tilec.passes.cost.kernel import (
    BlockCost,
    BlockWalk,
    LoopNest,
    build_loop_nest,
    build_machine,
    count_nest_cycles,
    count_tensor_bytes,
    find_innermost_loops,
    sample_blocks,
)
from tilec.passes.cost.model import simulate_dynamic
from tilec.passes.grid.persistent import replace_dynamic_by_static_stride
from tilec.passes.grid.rasterisation_order import list_places
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.target.table import Target

Y_FIRST = tile.Raster(1, by_rows=False)
MAX_TILES = 1 << 14
"""The largest grid for which the duration of each block is estimated."""
BALANCING = (Y_FIRST, tile.Raster(2), tile.Raster(4), tile.Raster(8))
"""The orders that let blocks of unlike length end together: along y, or in low panels of rows. Every other panel goes
backwards, so that lengths that grow along x fall again."""
LEAST_GAIN = Fraction(1, 100)
"""The fraction of the cycles or of the bytes that an order of blocks has to save."""


@dataclass(frozen=True, slots=True)
class BlockEstimate:
    """The time of one block of the grid: `cycles` in all, those until its first tiles are loaded (`filling`), and those
    outside of its pipelined loops (`around`)."""

    cycles: int
    filling: int
    around: int


def estimate_blocks(assignment: LayoutAssignment, target: Target, most: int) -> list[BlockEstimate] | None:
    """Return the time of every block of the grid, in numbering order, with as many stages as fit. None where the grid
    is larger than `most`, does not fit, or is known at launch only."""
    assignment = replace(assignment, kernel=replace_dynamic_by_static_stride(assignment.kernel, target))
    kernel, loops = assignment.kernel, find_innermost_loops(assignment)
    extents = [extent for extent in kernel.grid if isinstance(extent, int)]
    if len(extents) < len(kernel.grid) or not 0 < math.prod(extents) <= most:
        return None
    try:
        stages = max(stages for stages, _ in find_stage_options(assignment, loops, 0, assignment.block_threads, target))
    except DoesNotFit:
        return None
    walk = BlockWalk(assignment, target, loops)
    x, y, z = (*extents, 1, 1)[:3]
    sampled = [walk.walk_block(place) for place in sample_blocks((x, y, z), SAMPLED_BLOCKS)]
    tensors = [p for p in kernel.params if isinstance(p, tile.Buffer) and not p.is_dynamic]
    loaded = sum(block.loaded for block in sampled) * x * y * z // len(sampled)
    machine = build_machine(target, loaded, sum(map(count_tensor_bytes, tensors)))
    nests = {IdentityKey(loop): build_loop_nest(walk, loop, 1, stages, target.limit("sms"), machine) for loop in loops}
    deciding = find_deciding_axes(kernel)
    known: dict[tuple[int, ...], BlockEstimate] = {}
    found = []
    for place in sample_blocks((x, y, z), most):
        at = tuple(place[axis] for axis in deciding)
        if at not in known:
            known[at] = _estimate_block(walk.walk_block(place), nests, stages)
        found.append(known[at])
    return found


def _estimate_block(block: BlockCost, nests: Mapping[IdentityKey[tile.For], LoopNest], stages: int) -> BlockEstimate:
    """Return the time of one block alone on its multiprocessor, with at most this many stages a loop."""
    runs = [(loop, times, nests[IdentityKey(loop)].of(trip_count)) for loop, trip_count, times in block.loops]
    cycles = sum(times * count_nest_cycles(limit_stages(one, loop, stages), 1) for loop, times, one in runs)
    filling = max((one.levels[0].latency + one.levels[0].transfer for *_, one in runs), default=0)
    return BlockEstimate(block.around + cycles, filling, block.around)


def find_deciding_axes(kernel: tile.Kernel) -> list[int]:
    """Return the axes of the grid on which a block's control flow depends."""
    deciding: set[tile.Var] = set()
    binds: dict[tile.Var, tile.Expr] = {}
    pending: list[tile.Expr] = []
    for stmt in tile.walk_control_flow(kernel.body):
        match stmt:
            case tile.For(start=start, stop=stop):
                pending += (start, stop)
            case tile.If(condition=condition) | tile.While(condition=condition):
                pending.append(condition)
            case tile.Bind(var=var, value=value):
                binds[var] = value
            case _:
                pass
    while pending:
        new = {e for e in tile.walk_expr(pending.pop()) if isinstance(e, tile.Var)} - deciding
        deciding |= new
        pending += (binds[var] for var in new if var in binds)
    return [axis for axis, var in enumerate(kernel.block_vars) if var in deciding]


def simulate_persistent(tiles: Sequence[BlockEstimate], at_once: int, is_dealt: bool) -> int:
    """Return the same time for persistent blocks, which load their next tile while they store the last one: by a fixed
    stride, or, if `is_dealt`, scheduled dynamically."""
    later = (each.cycles - min(each.filling, each.around) for each in tiles[at_once:])
    durations = [*(each.cycles for each in tiles[:at_once]), *later]
    if is_dealt:
        return simulate_dynamic(durations, at_once)
    return max(sum(durations[first::at_once]) for first in range(at_once))


def order_blocks(kernel: tile.Kernel, tiles: Sequence[BlockEstimate], raster: tile.Raster) -> list[BlockEstimate]:
    """Return the tiles of a grid, given in numbering order, in the order of a raster: for clusters, each cluster's
    longest block."""
    width, depth = (extent for extent in (*kernel.grid, 1)[:2] if isinstance(extent, int))
    across, along, _ = kernel.cluster.extents
    places = list_places(width // across, depth // along, raster)
    found = []
    for first in range(0, len(tiles), width * depth):
        for x, y in places:
            begins = (first + (y * along + row) * width + x * across for row in range(along))
            found.append(max((each for at in begins for each in tiles[at : at + across]), key=lambda one: one.cycles))
    return found
