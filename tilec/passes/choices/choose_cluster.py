"""Decision: CTA pairs, that is clusters of two blocks that load or multiply together.

In a product, neighbours along x read the same rows of A, and neighbours along y the same columns of B. As a cluster of
two, each loads half of such a tile for both (TMA multicast), which halves the reads of the L2 cache: on an H100 a
persistent product of 4096³ rose from 704 to 734 TFLOP/s (a public measurement; on an H200 it gains nothing, as its
tiles come as fast as shared memory takes them). Larger clusters share more, but a cluster of multiprocessors (GPC) does
not always have room for another cluster of four.

Blocks run in pairs along the axis along which they share the larger tile, x if both are equal, if the model predicts
that this saves time (`LEAST_GAIN`), and

* if the machine has clusters and multiplies by wgmma, whose loops signal other blocks like their own;
* if the grid is known when compiling, and has an even number of blocks along that axis;
* if both blocks run the same iterations, load that tile at the same time as far as the compiler sees, and the tile can
  be split into two slices;
* if the grid is persistent and each pipelined loop only loads tiles and multiplies them, so that both blocks keep the
  same pace; or if loops keep the L2 cache nearly busy (`MIN_CACHE_LOAD`), as in attention, or busier still in a single
  wave of blocks (`MIN_CACHE_LOAD_ONE_WAVE`), where less is gained, and the blocks' waiting for each other at the
  beginning and at the end has to be paid for.

A machine with tcgen05 multiplies for both blocks at once where they share columns (`grid.cta_pair_products`), so pairs
serve that, whichever tile is larger. The grid must be as above, and the model must predict a gain: a lower bound of the
loops' intervals, as where loads of tiles take longer than products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from tilec.analysis.rings import find_pipelined_loops, is_load
from tilec.analysis.scalar_definitions import find_scheduled_statements
from tilec.ir import tile
from tilec.ops.copies.transpose import Transpose
from tilec.ops.products.gemm import Gemm
from tilec.passes.choices.question import (
    Candidate,
    Outcome,
    Question,
    QuestionGenerator,
    ask_question,
    make_ruled_question,
)
from tilec.passes.cost.block_order import find_deciding_axes
from tilec.passes.cost.kernel import BlockWalk, build_loop_nest, build_machine, find_innermost_loops
from tilec.passes.cost.launch_time import LaunchForm, LaunchTimer, list_launch_forms
from tilec.passes.grid.cta_pair_products import pair_products
from tilec.passes.grid.rasterisation_order import has_own_order
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import build_ready_problems
from tilec.passes.memory.load_footprints import find_load_footprints
from tilec.passes.memory.multicast import mark_multicast
from tilec.passes.state import KernelState
from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds
from tilec.support.display import show_share
from tilec.support.options import DECIDING_LEVEL, CompileOptions
from tilec.target.table import Target

PAIRS = {"x": tile.Cluster((2, 1, 1)), "y": tile.Cluster((1, 2, 1))}
MIN_CACHE_LOAD, MIN_CACHE_LOAD_ONE_WAVE = Fraction(3, 4), Fraction(3, 2)
"""For how much of an iteration the L2 cache is busy with what all multiprocessors ask of it. By the replay of `tilec
simulate`, at 0.94 attention takes a tenth less in pairs, or a twenty-fifth (flash_attention.tl, attention/gqa.tl);
FlashAttention-3 has pairs there too. A single wave of a product at 0.9 takes a hundredth more, one at 1.8 a seventh
less (gemm.tl, gemm/swiglu.tl); on an H200 one at 1.4 takes a seventh more (gemm.tl, 512×3072×768)."""
LEAST_GAIN = Fraction(1, 20)
"""The fraction of the time that loads of pairs have to save, beside their waiting for each other. On an H200 the one
kernel for which the model predicts more, of two 128 x 64 blocks a multiprocessor, gains 14 %, and those for which it
predicts less 1 % at best, and lose up to 9 % (benchmarks/results/h200-2026-11-27)."""
LEAST_PRODUCT_GAIN = Fraction(1, 20)
"""The fraction of the interval that products of pairs have to save."""


def choose_cluster(state: KernelState) -> QuestionGenerator[KernelState]:
    """Choose the cluster: the blocks that load or multiply shared tiles together."""
    question = _ask_for_cluster(state.assignment, state.target, state.options, state.is_persistent)
    chosen = (yield from ask_question(question)).value
    kernel = state.kernel
    return state if chosen == kernel.cluster else replace(state, kernel=replace(kernel, cluster=chosen))


def _ask_for_cluster(
    assignment: LayoutAssignment, target: Target, options: CompileOptions, walks: bool
) -> Question[tile.Cluster]:
    """Ask for the cluster of a kernel, whose grid is persistent if it `walks`."""
    kernel = assignment.kernel

    def choose_none(why: str, *others: Candidate[tile.Cluster]) -> Question[tile.Cluster]:
        return make_ruled_question("cluster", "the compiler", why, _build_candidate(tile.NO_CLUSTER), *others)

    if kernel.cluster.blocks > 1:
        given = _build_candidate(kernel.cluster)
        if options.cluster == kernel.cluster.extents:
            return make_ruled_question(
                "cluster", "the command line", f"--cluster {show_cluster(kernel.cluster)}", given
            )
        return make_ruled_question("cluster", "the kernel", "cluster_dims", given)
    if options.cluster is not None:
        return make_ruled_question("cluster", "the command line", "--cluster none", _build_candidate(tile.NO_CLUSTER))
    if options.opt_level < DECIDING_LEVEL:
        return choose_none(f"decided from -O{DECIDING_LEVEL} on")
    if not all(isinstance(extent, int) for extent in kernel.grid):
        return choose_none("the number of blocks is known only at launch")
    fitting = {
        axis: _build_candidate(PAIRS[axis])
        for axis in PAIRS
        if target.has("cluster") and _has_even_extent(assignment, axis)
    }
    if target.has("tcgen05"):
        if not walks:
            return choose_none("CTA pairs need a persistent grid, which synchronises them once for many tiles")
        return _choose_product_pairs(assignment, target, options, fitting)
    if not options.multicast:
        return choose_none("--no-multicast leaves clusters no use")
    if not (target.has("cluster") and target.has("wgmma")):
        return choose_none(f"{target.name} has no clusters with wgmma", *fitting.values())
    loops = find_pipelined_loops(kernel.body)
    if not loops or assignment.form != "warp_specialised" or has_own_order(kernel):
        return choose_none("no producer warp loads tiles that blocks share", *fitting.values())
    load = _estimate_cache_load(assignment, target)
    keep_pace = walks and all(map(only_multiplies, loops))
    if not keep_pace and load < (MIN_CACHE_LOAD if walks else MIN_CACHE_LOAD_ONE_WAVE):
        why = (
            f"loops keep the L2 cache busy for {show_share(load)} of their time, too little to pay for the "
            "waiting between blocks"
        )
        return choose_none(why, *fitting.values())
    uneven = {"xyz"[axis] for axis in find_deciding_axes(kernel)}
    found = {axis: _find_shared_tiles(assignment, axis) for axis in fitting if axis not in uneven}
    # The axis along which blocks share the larger tile is tried first: x if both are equal.
    shared = {axis: tiles for axis, (size, tiles) in sorted(found.items(), key=lambda one: -one[1][0]) if size}
    if not shared:
        return choose_none(
            "no adjacent blocks of a grid with an even extent load the same tile at the same time", *fitting.values()
        )
    form = next((form for form in list_launch_forms(assignment, target) if form.is_persistent == walks), None)
    if form is None:
        return choose_none("no block seems to fit a multiprocessor", *fitting.values())
    return _weigh_pairs(assignment, shared, target, form)


def _weigh_pairs(
    assignment: LayoutAssignment, shared: Mapping[str, str], target: Target, form: LaunchForm
) -> Question[tile.Cluster]:
    """Ask whether pairs launch in less time than blocks without a cluster. `shared` names the tiles that the blocks of
    a pair share, by the pair's axis."""
    alone = _build_candidate(tile.NO_CLUSTER)
    pairs = {axis: _build_candidate(PAIRS[axis]) for axis in shared}

    def count_cycles(cluster: tile.Cluster) -> int:
        """Return the predicted cycles of the launch with this cluster."""
        axis = next((axis for axis in shared if PAIRS[axis] == cluster), None)
        considered = assignment if axis is None else mark_multicast(_set_pair_cluster(assignment, axis))
        return LaunchTimer(considered, target).predict_cycles(form)

    def explain_outcome(outcome: Outcome) -> str:
        """Return why this cluster was chosen, in words."""
        axis = next((axis for axis, one in pairs.items() if one.answer == outcome.chosen), None)
        if axis is None:
            needs = "; ".join(f"adjacent blocks along {axis} need the same {tiles}" for axis, tiles in shared.items())
            return (
                f"{needs}: loading them once saves less than {show_share(float(LEAST_GAIN))} of the time by the model"
            )
        saved = 1 - outcome.prices[outcome.chosen] / max(outcome.prices[alone.answer], 1)
        need = f"adjacent blocks along {axis} need the same {shared[axis]}"
        return f"{need}: loading them once saves {show_share(saved)} of the time by the model"

    return Question(
        "cluster", (alone, *pairs.values()), price=count_cycles, explain=explain_outcome, least_gain=LEAST_GAIN
    )


def _estimate_cache_load(assignment: LayoutAssignment, target: Target) -> float:
    """Return the largest fraction of an iteration, over all loops, for which all multiprocessors keep the L2 cache
    busy, at the rate at which it delivers bytes that each block reads for itself."""
    loops = find_innermost_loops(assignment)
    walk = BlockWalk(assignment, target, loops)
    blocks = math.prod(extent for extent in assignment.kernel.grid if isinstance(extent, int))
    loading = min(target.limit("sms"), blocks)
    machine = build_machine(target)

    def estimate_loop_load(loop: tile.For) -> float:
        """Return for how much of an iteration of this loop the L2 cache is busy."""
        loads = (stmt for stmt in find_scheduled_statements(loop) if isinstance(stmt, tile.TileOp) and is_load(stmt))
        busy = sum(walk.price_statement(stmt).loaded for stmt in loads) * loading / machine.l2_bytes_per_cycle
        each = build_loop_nest(walk, loop, 1, 1, loading, machine)
        return busy / max(each.use, each.own, 1)

    return max(map(estimate_loop_load, loops), default=0.0)


def show_cluster(cluster: tile.Cluster) -> str:
    """Return the cluster as `--cluster` takes it: `2x1`."""
    if cluster.blocks == 1:
        return "none"
    x, y, z = cluster.extents
    return f"{x}x{y}" if z == 1 else f"{x}x{y}x{z}"


def _build_candidate(cluster: tile.Cluster) -> Candidate[tile.Cluster]:
    return Candidate(show_cluster(cluster), lambda: cluster, f"--cluster {show_cluster(cluster)}")


def only_multiplies(loop: tile.For) -> bool:
    """Return whether a loop multiplies tiles, and beside that only loads them, transposes them or defines variables.
    wgmma cannot read some operands untransposed."""
    work = [stmt for stmt in loop.body if not isinstance(stmt, tile.Bind)]
    others = [stmt for stmt in work if not (isinstance(stmt, tile.TileOp) and is_load(stmt))]
    return all(isinstance(stmt, Gemm | Transpose) for stmt in others) and any(isinstance(s, Gemm) for s in others)


def _find_shared_tiles(assignment: LayoutAssignment, axis: str) -> tuple[int, str]:
    """Return the bytes of the tiles that a pair along this axis shares, and their names; 0 and "" if it shares none."""
    paired = mark_multicast(_set_pair_cluster(assignment, axis))
    found = [strip for strip in find_load_footprints(paired.kernel) if strip.shared]
    return sum(strip.bytes for strip in found), ", ".join(dict.fromkeys(strip.tile for strip in found))


def _has_even_extent(assignment: LayoutAssignment, axis: str) -> bool:
    """Return whether the grid has a known, even extent along this axis; one that it lacks counts as 1."""
    at = "xyz".index(axis)
    extent = assignment.kernel.grid[at] if at < len(assignment.kernel.grid) else 1
    return isinstance(extent, int) and extent % 2 == 0


def _set_pair_cluster(assignment: LayoutAssignment, axis: str) -> LayoutAssignment:
    return replace(assignment, kernel=replace(assignment.kernel, cluster=PAIRS[axis]))


# ---- pairs that multiply together ------------------------------------------------------------------------------------


def _choose_product_pairs(
    assignment: LayoutAssignment, target: Target, options: CompileOptions, fitting: dict[str, Candidate[tile.Cluster]]
) -> Question[tile.Cluster]:
    """Ask for pairs whose tensor cores multiply together, along the first axis that allows it; else none, and why."""
    alone = _build_candidate(tile.NO_CLUSTER)
    if not options.cta_pairs:
        return make_ruled_question("cluster", "the compiler", "--no-cta-pairs leaves clusters no use", alone)
    reasons: list[str] = []
    for axis in PAIRS:
        if not _has_even_extent(assignment, axis):
            reasons.append(f"the extent of the grid along {axis} is not even")
            continue
        paired, reason = pair_products(_set_pair_cluster(assignment, axis), target)
        if paired is not None:
            return _weigh_product_pairs(assignment, paired, axis, target, options)
        reasons.append(reason)
    return make_ruled_question("cluster", "the compiler", "; ".join(dict.fromkeys(reasons)), alone, *fitting.values())


def _weigh_product_pairs(
    assignment: LayoutAssignment, paired: LayoutAssignment, axis: str, target: Target, options: CompileOptions
) -> Question[tile.Cluster]:
    """Ask whether a pair that multiplies together lowers the lower bounds of the loops' intervals."""
    try:
        before, after = (_bound_interval(each, target, options) for each in (assignment, paired))
    except Unschedulable:
        return make_ruled_question(
            "cluster", "the compiler", "its loops have no schedule", _build_candidate(tile.NO_CLUSTER)
        )

    def explain_outcome(outcome: Outcome) -> str:
        """Return why this cluster was chosen, in words."""
        if outcome.chosen == "none":
            return f"with pairs along {axis} an interval is at least {after} cycles, without {before}"
        tiles = [
            (b, half) for b, half in zip(assignment.kernel.buffers, paired.kernel.buffers, strict=True) if b != half
        ]
        names = ", ".join(whole.name for whole, _ in tiles)
        whole, halves = (sum(each[at].bytes for each in tiles) / 2**10 for at in (0, 1))
        return (
            f"adjacent blocks along {axis} multiply together, each with half of {names}, {halves:g} KiB instead of "
            f"{whole:g}: an interval is at least {after} cycles instead of {before}"
        )

    return Question(
        "cluster",
        (_build_candidate(tile.NO_CLUSTER), _build_candidate(PAIRS[axis])),
        price=lambda cluster: before if cluster == tile.NO_CLUSTER else after,
        unit="cycles an iteration",
        explain=explain_outcome,
        least_gain=LEAST_PRODUCT_GAIN,
    )


def _bound_interval(assignment: LayoutAssignment, target: Target, options: CompileOptions) -> int:
    """Return the sum of the lower bounds of the innermost loops' intervals, in cycles."""
    given = build_ready_problems(
        assignment,
        target,
        unlimited_smem=options.switches.unlimited_smem,
        overlap=options.overlap,
        store_role=options.epilogue_warp,
    )
    return sum(compute_bounds(loop.problem).mii for loop in given)
