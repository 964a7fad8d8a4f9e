"""Predicts the cycles of a kernel before anything of it is solved: its layouts are enough, if each loop has as many
stages as it asks for, or as fit."""

from __future__ import annotations

import math
from functools import partial

from tilec.ir.tile import Buffer, For, TileOp
from tilec.passes.binds import scheduled
from tilec.passes.layout import Laid
from tilec.passes.rings import is_load
from tilec.target import Target
from tilec.tune.kernel import Block, Walk, innermost, machine, nest, nest_cycles, places, residence, tensor_bytes
from tilec.tune.model import Launch, Prediction, ctas_per_sm, predict_blocks
from tilec.tune.rank import Refused

STAGES = 4
"""Of loops that do not say how many they may have."""
OTHER_REGISTERS = 40
"""Of a thread, beside sums and fragments: addresses, counters."""
BLOCKS = 64
"""So many of a grid are looked at: enough to rank by."""
_PRODUCER_THREADS = 128


def estimate(laid: Laid, target: Target) -> Prediction:
    """Raises `Refused` where a block does not fit a multiprocessor. A grid that is known at launch only counts as one
    full wave."""
    kernel, loops = laid.kernel, innermost(laid)
    registers = sum(b.bytes for b in kernel.buffers if b.scope == "fragment") // 4 // kernel.threads + OTHER_REGISTERS
    if registers > target.limit("registers_per_thread"):
        raise Refused(f"needs about {registers} registers a thread, of {target.limit('registers_per_thread')}")
    stages, smem = _staged(laid, loops, target)
    threads = kernel.threads + (_PRODUCER_THREADS if laid.form == "warp_specialised" else 0)
    together = ctas_per_sm(smem, registers, threads, residence(target))
    if not together:
        raise Refused(f"{threads} threads of {registers} registers do not fit a multiprocessor")

    extents = [extent for extent in kernel.grid if isinstance(extent, int)]
    is_known, sms = len(extents) == len(kernel.grid), target.limit("sms")
    x, y, z = (*extents, 1, 1, 1)[:3] if is_known else (1, 1, 1)
    grid = x, y, z
    ctas = math.prod(grid) if is_known else sms * together
    walk = Walk(laid, target, loops)
    blocks = [walk.block(place) for place in places(grid, BLOCKS)]
    nests = {
        (id(loop), trips): nest(walk, loop, trips, stages[id(loop)], min(sms, max(ctas, 1)))
        for block in blocks
        for loop, trips in block.loops
    }

    def cycles(block: Block, neighbours: int) -> int:
        return block.around + sum(nest_cycles(nests[id(loop), trips], neighbours) for loop, trips in block.loops)

    tensors = [p for p in kernel.params if isinstance(p, Buffer) and not p.is_dynamic]
    moved = sum(tensor_bytes(tensor) for tensor in tensors) if is_known else 0
    loaded = sum(block.loaded for block in blocks) * ctas // len(blocks)
    launch = Launch(ctas, together, loaded, moved)
    return predict_blocks([partial(cycles, block) for block in blocks], launch, machine(target))


def _staged(laid: Laid, loops: tuple[For, ...], target: Target) -> tuple[dict[int, int], int]:
    """The stages of each loop, and the bytes of shared memory of a block."""
    sizes = {name: layout.bytes for name, layout in laid.shared.items()}
    ringed = {id(loop): _loaded(loop) & set(sizes) for loop in loops}
    alone = set(sizes).difference(*ringed.values())
    others, most = sum(sizes[name] for name in alone), target.limit("smem_bytes_per_cta")
    if (least := sum(sizes.values())) > most:
        raise Refused(f"needs {least} bytes of shared memory, of {most}")
    stages, used = {}, others
    for loop in loops:
        size = sum(sizes[name] for name in ringed[id(loop)])
        fit = (most - others) // size if size else STAGES
        stages[id(loop)] = max(1, min(STAGES if loop.num_stages is None else max(loop.num_stages, 1), fit))
        used = max(used, others + size * stages[id(loop)])
    return stages, used


def _loaded(loop: For) -> set[str]:
    """The tiles that a trip loads."""
    loads = (s for s in scheduled(loop) if isinstance(s, TileOp) and is_load(s))
    return {region.buffer.name for load in loads for region in load.regions[1:2]}
