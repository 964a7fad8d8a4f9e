"""Prediction of a kernel's cycles from its layouts alone, before anything is solved, with as many stages as pay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial

from tilec.analysis.fragment_prefetch import is_fragment_prefetch
from tilec.analysis.rings import is_load
from tilec.analysis.scalar_definitions import find_scheduled_statements
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ops.products.gemm import Gemm
from tilec.passes.cost.kernel import (
    BlockCost,
    BlockWalk,
    LoopNest,
    build_loop_nest,
    build_machine,
    count_nest_cycles,
    count_tensor_bytes,
    find_innermost_loops,
    read_occupancy_limits,
    sample_blocks,
)
from tilec.passes.cost.model import Launch, Prediction, count_ctas_per_sm, predict_blocks
from tilec.passes.grid.persistent import replace_dynamic_by_static_stride
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.pools import choose_register_split
from tilec.passes.loop.price.product_steps import count_steps_along_k, price_product_steps
from tilec.passes.loop.price.statement_price import count_demands
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.target.table import Target

DEFAULT_STAGES = 4
"""The stages assumed for loops that do not say how many they may have."""
OTHER_REGISTERS = 40
"""Registers of a thread beside sums and fragments: addresses, counters."""
SAMPLED_BLOCKS = 64
"""The most blocks of a grid that are walked: enough to rank by."""


class DoesNotFit(Exception):
    """Raised for a kernel that, by the model, does not fit the machine; its text says why."""


REGISTERS_FOR_PREFETCH = 16
"""Additional registers of a thread with prefetched fragments: addresses of other loads are computed while these
live."""
ASSEMBLED_SHARE = Fraction(83, 100)
"""The share of the estimated registers that a warp-specialised kernel needs once it is assembled: 70 to 99 % for nine
samples, since fragments do not all live at once."""
MISFIT_FACTOR = 1000
"""The factor by which a variant that does not seem to fit ranks behind one that does."""


def estimate_cycles(assignment: LayoutAssignment, target: Target) -> int:
    """Return the predicted cycles of a kernel with the best number of stages that fits. A grid known at launch only
    counts as one full wave.

    A block that does not seem to fit a multiprocessor counts as alone and `MISFIT_FACTOR` times slower: registers are
    estimated, tiles may share memory, and only building a kernel shows whether it can be built.
    """
    try:
        return min(room.predicted.cycles for room in predict_by_stages(assignment, target))
    except DoesNotFit:
        return MISFIT_FACTOR * min(
            room.predicted.cycles for room in predict_by_stages(assignment, target, must_fit=False)
        )


@dataclass(frozen=True, slots=True)
class StageOption:
    """A number of stages for each loop (fewer where a loop may not have as many), the number of blocks that then fit a
    multiprocessor `together`, and the prediction. Of its cycles a producer warp hides `hidden` in a persistent grid:
    its next tiles are loaded while the consumers store the last one. The multiprocessors are busy with loads and
    products for `busy` cycles at least. The longest loop has so many `iterations`."""

    stages: int
    together: int
    predicted: Prediction
    hidden: int = 0
    busy: int = 0
    iterations: int = 0

    @property
    def persistent_cycles(self) -> int:
        """The predicted cycles of a persistent grid."""
        return max(self.predicted.cycles - self.hidden, self.busy)


def predict_by_stages(
    assignment: LayoutAssignment, target: Target, *, must_fit: bool = True
) -> tuple[StageOption, ...]:
    """Return the options that fit, from one stage on. Raises `DoesNotFit` where none does, or, without `must_fit`,
    takes one stage and one block a multiprocessor."""
    assignment = replace(assignment, kernel=replace_dynamic_by_static_stride(assignment.kernel, target))
    kernel, loops, sms = assignment.kernel, find_innermost_loops(assignment), target.limit("sms")
    registers = estimate_registers(assignment, target)
    threads = assignment.block_threads
    rooms = find_stage_options(assignment, loops, registers, threads, target) if must_fit else [(1, 1)]
    extents = [extent for extent in kernel.grid if isinstance(extent, int)]
    is_known = len(extents) == len(kernel.grid)
    x, y, z = (*extents, 1, 1, 1)[:3] if is_known else (1, 1, 1)
    walk = BlockWalk(assignment, target, loops)
    blocks = [walk.walk_block(place) for place in sample_blocks((x, y, z), SAMPLED_BLOCKS)]
    visits = dict.fromkeys((IdentityKey(loop), trip_count) for block in blocks for loop, trip_count, _ in block.loops)
    loading = min(sms, max(x * y * z, 1)) if is_known else sms
    tensors = [p for p in kernel.params if isinstance(p, tile.Buffer) and not p.is_dynamic]
    tensor_total = sum(count_tensor_bytes(tensor) for tensor in tensors) if is_known else 0
    loaded = sum(block.loaded for block in blocks) * x * y * z // len(blocks)
    machine = build_machine(target, loaded, tensor_total)
    of_loops = {loop: build_loop_nest(walk, loop.of, 1, 1, loading, machine) for loop, _ in visits}
    nests = {(loop, trip_count): of_loops[loop].of(trip_count) for loop, trip_count in visits}

    busy = [
        sum(times * nests[IdentityKey(loop), n].count_busy_cycles() for loop, n, times in block.loops)
        for block in blocks
    ]

    def count_cycles(stages: int, block: BlockCost, held: int, neighbours: int) -> int:
        """Return the cycles of a block with so many neighbours, whose loops hold the busiest slot for `held` cycles."""
        staged = [(limit_stages(nests[IdentityKey(loop), n], loop, stages), times) for loop, n, times in block.loops]
        alone = block.around + sum(times * count_nest_cycles(nest, 1) for nest, times in staged)
        # Blocks of a multiprocessor fill each other's waits, and share what loads and multiplies.
        waiting = block.around + sum(times * nest.count_waiting_cycles(neighbours) for nest, times in staged)
        return max(alone, waiting if neighbours > 1 else 0, neighbours * held)

    def predict_option(stages: int, together: int) -> StageOption:
        """Return the prediction with so many stages and blocks a multiprocessor."""
        ctas = x * y * z if is_known else sms * together
        launch = Launch(ctas, together, sum(block.loaded for block in blocks) * ctas // len(blocks), tensor_total)
        cycles = [partial(count_cycles, stages, block, held) for block, held in zip(blocks, busy, strict=True)]
        predicted = predict_blocks(cycles, launch, machine)
        around = sum(block.around for block in blocks) // len(blocks)
        filling = max((nest.levels[0].latency + nest.levels[0].transfer for nest in nests.values()), default=0)
        hidden = max(predicted.waves - 1, 0) * min(filling, around)
        iterations = max((trip_count for _, trip_count in nests), default=0)
        return StageOption(stages, together, predicted, hidden, sum(busy) * ctas // (len(busy) * sms), iterations)

    return tuple(predict_option(stages, together) for stages, together in rooms)


def estimate_registers(assignment: LayoutAssignment, target: Target) -> int:
    """Estimate the registers of a thread: its fragments, two steps of the product that needs the most, and others."""
    fragments = [b for b in assignment.kernel.buffers if b.scope == "fragment"]
    if assignment.roles:  # a thread has the fragments of its role
        return sum(b.bytes for b in fragments) // 4 // assignment.kernel.threads + OTHER_REGISTERS
    statements = [s for s in tile.walk_statements(assignment.kernel.body) if isinstance(s, tile.TileOp)]
    held = sum(-(-assignment.fragments[b.name].register_count * b.dtype.bits // 32) for b in fragments)
    for_prefetch = REGISTERS_FOR_PREFETCH if any(map(is_fragment_prefetch, statements)) else 0
    read = max((count_step_registers(s, assignment, target) for s in statements), default=0)
    return held + 2 * read + OTHER_REGISTERS + for_prefetch


def estimate_residency(assignment: LayoutAssignment, target: Target) -> int:
    """Estimate how many blocks of a warp-specialised kernel share a multiprocessor, with all versions of their tiles.
    Where registers are moved between roles, a block takes a multiprocessor whole; tensor memory is not shared either.
    """
    if target.has("tcgen05") or choose_register_split(assignment, target) != (None, None):
        return 1
    loops = find_innermost_loops(assignment)
    registers = int(estimate_registers(assignment, target) * ASSEMBLED_SHARE)
    sizes = {name: layout.bytes for name, layout in assignment.shared.items()}
    ringed = (
        sum(sizes[name] for name in _find_loaded_tiles(loop) & set(sizes)) * (find_most_stages(loop) - 1)
        for loop in loops
    )
    smem = sum(sizes.values()) + sum(ringed)
    return max(count_ctas_per_sm(smem, registers, assignment.block_threads, read_occupancy_limits(target)), 1)


def estimate_alike_residency(assignment: LayoutAssignment, target: Target) -> int:
    """Estimate how many blocks would share a multiprocessor if the warps of a warp-specialised kernel were all alike,
    with one version of each tile. Tensor memory is not shared."""
    if target.has("tcgen05"):
        return 1
    registers = int(estimate_registers(assignment, target) * ASSEMBLED_SHARE)
    smem = sum(layout.bytes for layout in assignment.shared.values())
    return count_ctas_per_sm(smem, registers, assignment.kernel.threads, read_occupancy_limits(target))


def count_step_registers(product: tile.TileOp, assignment: LayoutAssignment, target: Target) -> int:
    """Return the registers of a thread that one step of an mma.sync product reads from shared memory."""
    found = count_demands(product, assignment)
    if not isinstance(product, Gemm) or price_product_steps(product, found, target) is None:
        return 0
    read = sum(dict(d.parameters).get("bytes", 0) for d in found)
    return -(-read // count_steps_along_k(product) // (4 * assignment.kernel.threads))


def find_stage_options(
    assignment: LayoutAssignment, loops: tuple[tile.For, ...], registers: int, threads: int, target: Target
) -> Iterator[tuple[int, int]]:
    """Yield the numbers of stages with which a block fits a multiprocessor, and how many blocks then do."""
    most_registers, most_bytes = target.limit("registers_per_thread"), target.limit("smem_bytes_per_cta")
    if registers > most_registers:
        raise DoesNotFit(f"needs about {registers} registers a thread; the limit is {most_registers}")
    sizes = {name: layout.bytes for name, layout in assignment.shared.items()}
    if (least := sum(sizes.values())) > most_bytes:
        raise DoesNotFit(f"needs {least} bytes of shared memory; the limit is {most_bytes}")
    ringed = [sum(sizes[name] for name in _find_loaded_tiles(loop) & set(sizes)) for loop in loops]
    # A tile that no loop uses, as one that a store goes through, takes the place of others, unless a producer warp
    # fills these for the next block already.
    outside = 0 if assignment.form == "warp_specialised" else _count_bytes_outside(assignment, loops, sizes)
    if not count_ctas_per_sm(least, registers, threads, read_occupancy_limits(target)):
        raise DoesNotFit(f"{threads} threads of about {registers} registers do not fit a multiprocessor")

    def list_options() -> Iterator[tuple[int, int]]:
        """Yield the numbers of stages with which a block fits, and how many blocks then share a multiprocessor."""
        for stages in range(1, max((find_most_stages(loop) for loop in loops), default=1) + 1):
            versions = (min(stages, find_most_stages(loop)) for loop in loops)
            smem = least - outside + sum(size * (n - 1) for size, n in zip(ringed, versions, strict=True))
            smem = max(smem, outside)
            if smem <= most_bytes and (
                together := count_ctas_per_sm(smem, registers, threads, read_occupancy_limits(target))
            ):
                yield stages, together

    return list_options()


def _count_bytes_outside(assignment: LayoutAssignment, loops: tuple[tile.For, ...], sizes: Mapping[str, int]) -> int:
    """Return the bytes of shared tiles that are used outside the loops only."""
    inside = {
        buffer.name
        for loop in loops
        for stmt in tile.walk_statements(loop.body)
        for buffer in (*find_reads(stmt), *find_writes(stmt))
    }
    return sum(size for name, size in sizes.items() if name not in inside)


def find_most_stages(loop: tile.For) -> int:
    """Return the most versions that the tiles of a loop may have."""
    return DEFAULT_STAGES if loop.num_stages is None else max(loop.num_stages, 1)


def limit_stages(loop_nest: LoopNest, loop: tile.For, stages: int) -> LoopNest:
    """Return the loop's levels with so many stages, or as many as it may have."""
    outer, *inner = loop_nest.levels
    return replace(loop_nest, levels=(replace(outer, stages=min(stages, find_most_stages(loop))), *inner))


def _find_loaded_tiles(loop: tile.For) -> set[str]:
    loads = (s for s in find_scheduled_statements(loop) if isinstance(s, tile.TileOp) and is_load(s))
    return {region.buffer.name for load in loads for region in load.regions[1:2]}
