"""Decision: whether tiles of a loop are split into parts (`loop.subtile`), by T.annotate_subtile, by the command line,
or by comparing the schedules of both.

A loop gains nothing if some unit is busy for its whole interval. If instead a chain of dependences takes that long, as
from a product's accumulator through its softmax to the next product, parts have shorter chains, one of which uses the
units that another one leaves idle. The model has the gain and the cost, which is reductions that end twice and smaller
instructions. So candidates are solved, after a heuristic schedule has looked promising.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

from tilec.analysis.rings import find_pipelined_loops
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ops.fill import Fill
from tilec.passes.choices.question import (
    Candidate,
    Outcome,
    Question,
    make_ruled_question,
)
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.apply_requested_subtiles import show_subtile
from tilec.passes.loop.assign_roles import find_wgmma_products
from tilec.passes.loop.subtile import Indivisible, find_related_dimensions, split_dimension
from tilec.passes.scheduling.solve_loops import plan_loops
from tilec.passes.state import LAYOUTS_ROW, Exploration, Explorer, KernelState
from tilec.sched.solution import Solution
from tilec.support.diagnostics import CompileError
from tilec.support.options import DECIDING_LEVEL, CompileOptions

DEFAULT_PARTS = 2
LEAST_GAIN = Fraction(1, 8)
"""The fraction of the interval that parts have to save. On an H200 parts that shorten it by 7 to 10 % make six kernels
2 to 27 % slower, since the assembler emits more for them; retention, by 13 %, becomes 31 % faster, as two blocks fit a
multiprocessor (benchmarks/results/h200-2026-11-26-c30a4ca2)."""
MAX_SOLVER_GAIN = Fraction(3, 22)
"""The most by which a solver is assumed to shorten the heuristic interval. So a candidate whose heuristic interval is a
tenth above the one to beat is solved."""
SplitPlanner = Callable[[tile.Kernel, Exploration], KernelState | None]
"""Schedules the loop of a kernel with split tiles; None for a kernel without a schedule, or with fewer products."""


def find_subtile_candidates(
    kernel: tile.Kernel, assignment: LayoutAssignment, options: CompileOptions
) -> tuple[tile.Subtile, ...]:
    """Return the ways to split tiles of a kernel's only pipelined loop, each a tile that holds one iteration's product
    and is computed with; none where there is nothing to decide."""
    if options.schedule is not None or options.max_scheduled_ii is not None:
        return ()
    if options.subtile is None and options.opt_level < DECIDING_LEVEL:
        return ()
    loops = find_pipelined_loops(assignment.kernel.body)
    if len(loops) != 1 or assignment.form == "serial" or loops[0].stage is not None:
        return ()
    multiplied = find_wgmma_products(loops[0].body)
    leaves = [s for s in tile.walk_statements(loops[0].body) if isinstance(s, tile.TileOp | tile.Parallel)]
    others = [s for s in leaves if not any(s is p for p in multiplied)]
    cleared = {b.name for s in others if isinstance(s, Fill) for b in find_writes(s)}
    sums = {b.name for p in multiplied for b in find_writes(p) if b.name in cleared or not p.only_adds}
    computed_with = {b.name for s in others for b in find_reads(s)}
    parts = options.subtile or DEFAULT_PARTS
    found: list[tile.Subtile] = []
    seen: list[dict[tile.Buffer, int]] = []
    for buffer in (b for b in kernel.buffers if b.scope == "fragment" and b.name in sums & computed_with):
        for dim in range(len(buffer.shape)):
            try:
                cut = find_related_dimensions(kernel, (buffer, dim))
            except Indivisible:
                continue
            if cut not in seen:
                seen.append(cut)
                found.append(tile.Subtile(buffer, tuple(parts if d == dim else 1 for d in range(len(buffer.shape)))))
    return tuple(found)


def choose_subtile(state: KernelState, explore: Explorer) -> Question[KernelState] | None:
    """Choose whole or split tiles for the only pipelined loop, whichever has the smaller interval."""
    unassigned = state.search.before_layouts
    assert unassigned is not None
    is_asked = any(decision.what == "subtile" for decision in unassigned.decisions)
    splits = () if is_asked else find_subtile_candidates(unassigned.kernel, state.assignment, state.options)
    if not splits:
        return None
    products = len(find_wgmma_products(state.assignment.kernel.body))

    @cache
    def assign_split_layouts(split: tile.Kernel) -> KernelState | None:
        """Return the state of a split kernel with layouts; None if it does not compile or loses wgmma products.

        Layouts decide whether a product is one, so choices behind them are only made for a kernel that keeps all.
        """
        tried = replace(unassigned, kernel=split)
        try:
            assigned = explore(tried, LAYOUTS_ROW).assignment.kernel
            if len(find_wgmma_products(assigned.body)) < products:
                return None
            return explore(tried, "choose-programmatic-launch")
        except CompileError:
            return None

    def plan_split(split: tile.Kernel, exploration: Exploration) -> KernelState | None:
        """Return the state of a split kernel with schedules of its loops; None where it has none."""
        tried = assign_split_layouts(split)
        try:
            return None if tried is None else plan_loops(tried, explore, exploration)
        except CompileError:
            return None

    planned = plan_loops(state, explore, Exploration())
    return _compare_splits(unassigned.kernel, splits, planned, plan_split)


def _get_only_solution(state: KernelState | None) -> Solution | None:
    """Return the solution of the only loop, or None."""
    return state.loops[0].solution if state is not None and len(state.loops) == 1 else None


def _get_interval(state: KernelState) -> int | None:
    solution = _get_only_solution(state)
    return None if solution is None else solution.schedule.ii


def _compare_splits(
    kernel: tile.Kernel, ways: tuple[tile.Subtile, ...], planned: KernelState, plan: SplitPlanner
) -> Question[KernelState]:
    """Ask whether the kernel's tiles are whole or in parts. `planned` has the solved loop of the kernel as it is."""
    options, (loop,) = planned.options, planned.loops
    whole = loop.solution
    ii, requested = whole.schedule.ii, options.subtile
    busy = max((b for b in whole.bounds.each if b.kind == "slot"), key=lambda bound: bound.ii)
    as_it_is = Candidate("none", lambda: planned, "--subtile none")
    # Beyond this heuristic interval, a solver is not expected to save as much as parts have to.
    max_interval = None if requested is not None else int(ii * (1 - LEAST_GAIN) / (1 - MAX_SOLVER_GAIN))
    divided = tuple(_build_candidate(kernel, way, busy.ii, max_interval, plan) for way in ways)
    if requested == 1:
        return make_ruled_question("subtile", "the command line", "--subtile none", as_it_is)
    if requested is None and loop.loop.groups > 1:
        # On an H200 parts made all five kernels slower, by 2 to 27 %, that were predicted to gain from both.
        gained = "its warpgroups run apart: one computes while another multiplies"
        return make_ruled_question("subtile", "the compiler", gained, as_it_is)

    def explain_outcome(outcome: Outcome) -> str:
        """Return why this split was chosen or none, in words."""
        best = outcome.prices.get(outcome.chosen, ii)
        if requested is not None:
            given = f"--subtile {requested}; an interval of {best} cycles; with whole tiles {ii}"
            missing = f"no split of its tiles into {requested} parts leaves products for wgmma"
            return missing if outcome.chosen == "none" else given
        if outcome.chosen != "none":
            gained = "one part computes while another multiplies"
            return f"an interval of {best} cycles instead of {ii}: {gained}"
        others = {answer: price for answer, price in outcome.prices.items() if answer != "none"}
        if others:
            way = min(others, key=others.__getitem__)
            return f"an interval of {others[way]} cycles with {way}; with whole tiles {ii}"
        if busy.ii * LEAST_GAIN.denominator > ii * (LEAST_GAIN.denominator - LEAST_GAIN.numerator):
            return f"{busy.name} is busy in {busy.ii} of the interval's {ii} cycles, so parts would also wait for it"
        return "no split of its tiles is faster"

    return Question(
        "subtile",
        (as_it_is, *divided),
        price=_get_interval,
        unit="cycles an iteration",
        explain=explain_outcome,
        least_gain=LEAST_GAIN,
        last_resort=requested is not None,
        by="the compiler" if requested is None else "the command line",
    )


def _build_candidate(
    kernel: tile.Kernel, way: tile.Subtile, busy: int, max_interval: int | None, plan: SplitPlanner
) -> Candidate[KernelState]:
    """Build the candidate of one split. Its bounds: a unit busy for the whole interval stays so; then the heuristic
    schedule."""

    @cache
    def split_kernel() -> tile.Kernel | None:
        """Return the kernel with the tile split; None where it cannot be divided so."""
        try:
            return split_dimension(kernel, way.buffer, way.parts.index(max(way.parts)), max(way.parts))
        except Indivisible:
            return None

    @cache
    def solve_quickly() -> Solution | None:
        made, by_heuristic = split_kernel(), Exploration(is_by_heuristic=True, most=max_interval)
        return None if made is None else _get_only_solution(plan(made, by_heuristic))

    def bound_interval() -> int | None:
        found = solve_quickly()
        return None if found is None else found.bounds.mii

    def estimate_interval() -> int | None:
        found = solve_quickly()
        return None if found is None else -int(-found.schedule.ii * (1 - MAX_SOLVER_GAIN) // 1)

    def plan_fully() -> KernelState | None:
        parts = split_kernel()
        return None if parts is None else plan(parts, Exploration())

    return Candidate(
        show_subtile(way), plan_fully, f"--subtile {max(way.parts)}", (lambda: busy, bound_interval, estimate_interval)
    )
