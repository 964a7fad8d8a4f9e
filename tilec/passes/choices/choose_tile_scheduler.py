"""Decision: how a block of a persistent grid gets its next tile (`grid.persistent`)."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.tile import Kernel
from tilec.passes.choices.question import Candidate, Question, QuestionGenerator, ask_question, make_ruled_question
from tilec.passes.cost.block_order import LEAST_GAIN, MAX_TILES, estimate_blocks, order_blocks, simulate_persistent
from tilec.passes.grid.persistent import (
    blocks_at_once,
    make_persistent,
    schedule_tiles_dynamically,
    why_not_dynamically_scheduled,
)
from tilec.passes.grid.rasterise import AS_NUMBERED, scale_to_clusters
from tilec.passes.state import KernelState


def choose_tile_scheduler(state: KernelState) -> QuestionGenerator[KernelState]:
    """Choose how blocks of a persistent grid get their next tile, and build that grid."""
    if not state.is_persistent:
        return state
    if state.options.tile_scheduler == "auto" and not state.target.has("cluster.launch_control"):
        return replace(state, kernel=_schedule_tiles_statically(state))
    return replace(state, kernel=(yield from ask_question(_ask_for_scheduler(state))).value)


def _ask_for_scheduler(state: KernelState) -> Question[Kernel]:
    """Ask how a block of a persistent grid gets its next tile."""
    kernel, assignment, target, options = state.kernel, state.assignment, state.target, state.options
    requested = options.tile_scheduler
    static = Candidate("static", lambda: _schedule_tiles_statically(state), "--tile-scheduler static")
    if requested == "static":
        return make_ruled_question("tile scheduler", "the command line", "--tile-scheduler static", static)
    if reason := why_not_dynamically_scheduled(kernel, target):
        return make_ruled_question("tile scheduler", "the compiler", reason, static)
    by_machine = schedule_tiles_dynamically(kernel)
    dynamic = Candidate("launch control", lambda: by_machine, "--tile-scheduler launch-control")
    if requested != "auto":
        return make_ruled_question(
            "tile scheduler", "the command line", f"--tile-scheduler {requested}", dynamic, static
        )
    why = "a block that ends early, or could start early, gets more tiles (the default of CUTLASS)"
    tiles = estimate_blocks(replace(assignment, kernel=kernel), target, MAX_TILES)
    if tiles is None:
        return make_ruled_question("tile scheduler", "the compiler", why, dynamic, static)
    raster = scale_to_clusters(kernel.raster or AS_NUMBERED, kernel.cluster.extents)
    in_order = order_blocks(kernel, tiles, raster)
    at_once = max(state.residency * blocks_at_once(target, kernel.cluster.blocks) // kernel.cluster.blocks, 1)
    return Question(
        "tile scheduler",
        (dynamic, static),
        price=lambda made: simulate_persistent(in_order, at_once, is_dealt=made is by_machine),
        explain=lambda outcome: why if outcome.chosen == dynamic.answer else "a static stride ends sooner",
        least_gain=LEAST_GAIN,
    )


def _schedule_tiles_statically(state: KernelState) -> Kernel:
    """Return the kernel whose persistent blocks advance by the number of blocks that run at once."""
    kernel = state.kernel
    return make_persistent(kernel, state.residency * blocks_at_once(state.target, kernel.cluster.blocks))
