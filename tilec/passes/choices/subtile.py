"""Decision: whether tiles of a loop are split into parts (`loop.subtile`), by T.annotate_subtile, by the command line,
or by comparing the schedules of both.

A loop gains nothing if some unit is busy for its whole interval. If instead a chain of dependences takes that long, as
from a product's accumulator through its softmax to the next product, parts have shorter chains, one of which uses the
units that another one leaves idle. The model has the gain and the cost, which is reductions that end twice and smaller
instructions. So candidates are solved, after a heuristic schedule has looked promising.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from typing import Generic, TypeVar

from tilec.ir import tile
from tilec.ops.fill import Fill
from tilec.passes.analysis.rings import find_pipelined_loops
from tilec.passes.analysis.usage import find_reads, find_writes
from tilec.passes.choices.question import Candidate, Outcome, Question, make_ruled_question
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import find_wgmma_products
from tilec.passes.loop.subtile import Indivisible, find_related_dimensions, split_dimension
from tilec.sched.decision import Decider, Decision
from tilec.sched.solution import Solution
from tilec.support.diagnostics import raise_error
from tilec.support.options import DECIDING_LEVEL, CompileOptions
from tilec.support.records import dataclass

DEFAULT_PARTS = 2
LEAST_GAIN = Fraction(1, 20)
"""The fraction of the interval that parts have to save."""
MAX_SOLVER_GAIN = Fraction(3, 22)
"""The most by which a solver is assumed to shorten the heuristic interval. So a candidate whose heuristic interval is a
tenth above the one to beat is solved."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SubtilePlan(Generic[T]):
    """Ways to schedule a kernel with split tiles. `solve_quickly` gives the heuristic solution of its only loop, up to
    an interval of this many cycles. `made` gives the result of the solver, and `interval` the loop's interval in it.
    None stands for a kernel without a schedule, or with other products."""

    solve_quickly: Callable[[tile.Kernel, int | None], Solution | None]
    made: Callable[[tile.Kernel], T | None]
    interval: Callable[[T], int | None]


def show_subtile(cut: tile.Subtile) -> str:
    """Return a subtile as the trace has it: `scores (1, 2)`."""
    return f"{cut.buffer.name} ({', '.join(map(str, cut.parts))})"


def apply_requested_subtiles(kernel: tile.Kernel, options: CompileOptions) -> tuple[tile.Kernel, tuple[Decision, ...]]:
    """Return the kernel with the subtiles that it requests, or that the trace of its schedule has, and the decision."""
    by: Decider = "the kernel"
    requested, why = kernel.subtiles, "T.annotate_subtile"
    if not requested and options.schedule is not None:
        by, requested, why = "the command line", tuple(_read_trace_subtiles(kernel, options.schedule)), "--schedule"
    whole = replace(kernel, subtiles=()) if kernel.subtiles else kernel
    for cut in requested:
        whole = _apply_subtile(whole, cut)
    chosen = ", ".join(show_subtile(cut) for cut in requested if max(cut.parts) > 1) or "none"
    return whole, (Decision("subtile", chosen, by, why),) if requested else ()


def _read_trace_subtiles(kernel: tile.Kernel, trace: str) -> Iterator[tile.Subtile]:
    """Yield the subtiles that a trace records. The reader of its schedule reports a text that is no trace."""
    recorded = re.search(r'"what": "subtile",\s*"chosen": "(.*?)"', trace)
    for name, parts in re.findall(r"(\S+) \(([\d, ]+)\)", recorded[1] if recorded else ""):
        buffer = next((b for b in kernel.buffers if b.name == name), None)
        if buffer is not None:
            yield tile.Subtile(buffer, tuple(map(int, parts.split(", "))), kernel.span)


def _apply_subtile(kernel: tile.Kernel, cut: tile.Subtile) -> tile.Kernel:
    parts = max(cut.parts)
    if parts == 1:
        return kernel
    try:
        if cut.buffer not in kernel.buffers:
            raise Indivisible("it is already split, together with another tile")
        return split_dimension(kernel, cut.buffer, cut.parts.index(parts), parts)
    except Indivisible as reason:
        raise_error(
            "bad-subtile",
            f"{cut.buffer.name} cannot be split into {parts} parts",
            cut.span,
            str(reason),
            help="remove T.annotate_subtile: the compiler splits tiles where it can and where that pays",
        )


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


def choose_subtile(
    kernel: tile.Kernel, options: CompileOptions, ways: tuple[tile.Subtile, ...], whole: Solution, plan: SubtilePlan[T]
) -> Question[T]:
    """Ask whether the kernel's tiles are whole or in parts. `whole` is the solved loop of the kernel as it is."""
    ii, requested = whole.schedule.ii, options.subtile
    busy = max((b for b in whole.bounds.each if b.kind == "slot"), key=lambda bound: bound.ii)
    as_it_is = Candidate("none", partial(plan.made, kernel), "--subtile none")
    # Beyond this heuristic interval, a solver is not expected to save as much as parts have to.
    max_interval = None if requested is not None else int(ii * (1 - LEAST_GAIN) / (1 - MAX_SOLVER_GAIN))
    divided = tuple(_build_candidate(kernel, way, busy.ii, max_interval, plan) for way in ways)
    if requested == 1:
        return make_ruled_question("subtile", "the command line", "--subtile none", as_it_is)

    def explain_outcome(outcome: Outcome) -> str:
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
        price=plan.interval,
        unit="cycles an iteration",
        explain=explain_outcome,
        least_gain=LEAST_GAIN,
        last_resort=requested is not None,
        by="the compiler" if requested is None else "the command line",
    )


def _build_candidate(
    kernel: tile.Kernel, way: tile.Subtile, busy: int, max_interval: int | None, plan: SubtilePlan[T]
) -> Candidate[T]:
    """Build the candidate of one split. Its bounds: a unit busy for the whole interval stays so; then the heuristic
    schedule."""

    @cache
    def split_kernel() -> tile.Kernel | None:
        try:
            return split_dimension(kernel, way.buffer, way.parts.index(max(way.parts)), max(way.parts))
        except Indivisible:
            return None

    @cache
    def solve_quickly() -> Solution | None:
        made = split_kernel()
        return None if made is None else plan.solve_quickly(made, max_interval)

    def bound_interval() -> int | None:
        found = solve_quickly()
        return None if found is None else found.bounds.mii

    def estimate_interval() -> int | None:
        found = solve_quickly()
        return None if found is None else -int(-found.schedule.ii * (1 - MAX_SOLVER_GAIN) // 1)

    def plan_fully() -> T | None:
        parts = split_kernel()
        return None if parts is None else plan.made(parts)

    return Candidate(
        show_subtile(way), plan_fully, f"--subtile {max(way.parts)}", (lambda: busy, bound_interval, estimate_interval)
    )
