"""Whether tiles of a loop are cut into parts (`loop.subtile`), which the kernel may say (T.annotate_subtile), or
the command line, or else the schedules of both.

A loop gains nothing by it if some unit has work in all of its interval. If instead a chain of dependences takes that
long, as that from a product's accumulator through its softmax to the next product, parts have shorter chains, one of
which uses the units that another one leaves idle. How much that gives and what it costs, in reductions that end twice
and in smaller instructions, is in the model; so candidates are solved, after a look at what heuristics make of them.
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
from tilec.passes.choices.question import Candidate, Outcome, Question, ruled
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import products
from tilec.passes.loop.subtile import Indivisible, divided, related
from tilec.sched.decision import Decider, Decision
from tilec.sched.solution import Solution
from tilec.support.diagnostics import raise_error
from tilec.support.options import DECIDING_LEVEL, CompileOptions
from tilec.support.records import dataclass

PARTS = 2
LEAST_GAIN = Fraction(1, 20)
"""Of the interval is what parts have to save."""
SOLVED_FASTER = Fraction(3, 22)
"""By no more of the heuristics' interval, it is taken, may that of a solver be smaller: so one of which it is a tenth
above what is to be beaten is solved."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """How a kernel with its tiles cut is planned: `quickly` gives the heuristics' solution of its only loop, looked for
    up to an interval of so many cycles, and `made` all there is with the solver's, of which `interval` is what the loop
    takes. None is for a kernel that has no schedule, or not the same products."""

    quickly: Callable[[tile.Kernel, int | None], Solution | None]
    made: Callable[[tile.Kernel], T | None]
    interval: Callable[[T], int | None]


def show(cut: tile.Subtile) -> str:
    """As in the trace: `scores (1, 2)`."""
    return f"{cut.buffer.name} ({', '.join(map(str, cut.parts))})"


def as_asked(kernel: tile.Kernel, options: CompileOptions) -> tuple[tile.Kernel, tuple[Decision, ...]]:
    """The kernel with the tiles in parts that it asks for, or else the trace that its schedule is taken from; and what
    is to be said of it."""
    by: Decider = "the kernel"
    asked, why = kernel.subtiles, "T.annotate_subtile"
    if not asked and options.schedule is not None:
        by, asked, why = "the command line", tuple(_in_trace(kernel, options.schedule)), "--schedule"
    whole = replace(kernel, subtiles=()) if kernel.subtiles else kernel
    for cut in asked:
        whole = _carried_out(whole, cut)
    chosen = ", ".join(show(cut) for cut in asked if max(cut.parts) > 1) or "none"
    return whole, (Decision("subtile", chosen, by, why),) if asked else ()


def _in_trace(kernel: tile.Kernel, trace: str) -> Iterator[tile.Subtile]:
    """What a trace says was decided. Whether it is a trace at all is found out where its schedule is read."""
    said = re.search(r'"what": "subtile",\s*"chosen": "(.*?)"', trace)
    for name, parts in re.findall(r"(\S+) \(([\d, ]+)\)", said[1] if said else ""):
        buffer = next((b for b in kernel.buffers if b.name == name), None)
        if buffer is not None:
            yield tile.Subtile(buffer, tuple(map(int, parts.split(", "))), kernel.span)


def _carried_out(kernel: tile.Kernel, cut: tile.Subtile) -> tile.Kernel:
    parts = max(cut.parts)
    if parts == 1:
        return kernel
    try:
        if cut.buffer not in kernel.buffers:
            raise Indivisible("it is in parts already, with another tile")
        return divided(kernel, cut.buffer, cut.parts.index(parts), parts)
    except Indivisible as reason:
        raise_error(
            "bad-subtile",
            f"{cut.buffer.name} cannot be cut into {parts} parts",
            cut.span,
            str(reason),
            help="leave T.annotate_subtile out: the compiler cuts tiles where it can and where that pays",
        )


def candidates(kernel: tile.Kernel, assignment: LayoutAssignment, options: CompileOptions) -> tuple[tile.Subtile, ...]:
    """The ways to cut the tiles of a kernel's only pipelined loop that hold a product of one iteration, with which
    something is computed; none where there is nothing to decide."""
    if options.schedule is not None or options.max_scheduled_ii is not None:
        return ()
    if options.subtile is None and options.opt_level < DECIDING_LEVEL:
        return ()
    loops = find_pipelined_loops(assignment.kernel.body)
    if len(loops) != 1 or assignment.form == "serial" or loops[0].stage is not None:
        return ()
    multiplied = products(loops[0].body)
    leaves = [s for s in tile.walk_statements(loops[0].body) if isinstance(s, tile.TileOp | tile.Parallel)]
    others = [s for s in leaves if not any(s is p for p in multiplied)]
    cleared = {b.name for s in others if isinstance(s, Fill) for b in find_writes(s)}
    sums = {b.name for p in multiplied for b in find_writes(p) if b.name in cleared or not p.only_adds}
    computed_with = {b.name for s in others for b in find_reads(s)}
    parts = options.subtile or PARTS
    found: list[tile.Subtile] = []
    seen: list[dict[tile.Buffer, int]] = []
    for buffer in (b for b in kernel.buffers if b.scope == "fragment" and b.name in sums & computed_with):
        for dim in range(len(buffer.shape)):
            try:
                cut = related(kernel, (buffer, dim))
            except Indivisible:
                continue
            if cut not in seen:
                seen.append(cut)
                found.append(tile.Subtile(buffer, tuple(parts if d == dim else 1 for d in range(len(buffer.shape)))))
    return tuple(found)


def question(
    kernel: tile.Kernel, options: CompileOptions, ways: tuple[tile.Subtile, ...], whole: Solution, plan: Plan[T]
) -> Question[T]:
    """Whether the tiles of the kernel are whole or in parts. `whole` is the solved loop of the kernel as it is."""
    ii, asked = whole.schedule.ii, options.subtile
    busy = max((b for b in whole.bounds.each if b.kind == "slot"), key=lambda bound: bound.ii)
    as_it_is = Candidate("none", partial(plan.made, kernel), "--subtile none")
    # Beyond this interval of the heuristics', a solver's is not expected to save what parts have to.
    most = None if asked is not None else int(ii * (1 - LEAST_GAIN) / (1 - SOLVED_FASTER))
    divided = tuple(_candidate(kernel, way, busy.ii, most, plan) for way in ways)
    if asked == 1:
        return ruled("subtile", "the command line", "--subtile none", as_it_is)

    def explain(outcome: Outcome) -> str:
        best = outcome.prices.get(outcome.chosen, ii)
        if asked is not None:
            given = f"--subtile {asked}; an interval of {best} cycles, and {ii} with whole tiles"
            missing = f"no way to cut its tiles into {asked} parts leaves products for wgmma"
            return missing if outcome.chosen == "none" else given
        if outcome.chosen != "none":
            gained = "one part computes while another one multiplies"
            return f"an interval of {best} cycles, and {ii} with whole tiles: {gained}"
        others = {answer: price for answer, price in outcome.prices.items() if answer != "none"}
        if others:
            way = min(others, key=others.__getitem__)
            return f"an interval of {others[way]} cycles with {way}, and {ii} with whole tiles"
        if busy.ii * LEAST_GAIN.denominator > ii * (LEAST_GAIN.denominator - LEAST_GAIN.numerator):
            return f"{busy.name} is held in {busy.ii} of the interval's {ii} cycles: parts would wait for it too"
        return "no way to cut its tiles is faster"

    return Question(
        "subtile",
        (as_it_is, *divided),
        price=plan.interval,
        unit="cycles an iteration",
        explain=explain,
        least_gain=LEAST_GAIN,
        last_resort=asked is not None,
        by="the compiler" if asked is None else "the command line",
    )


def _candidate(kernel: tile.Kernel, way: tile.Subtile, busy: int, most: int | None, plan: Plan[T]) -> Candidate[T]:
    """The tiles cut in one way. What holds a unit for the whole interval holds it in parts too; and after that the
    heuristics' schedule says what there is to hope for."""

    @cache
    def cut() -> tile.Kernel | None:
        try:
            return divided(kernel, way.buffer, way.parts.index(max(way.parts)), max(way.parts))
        except Indivisible:
            return None

    @cache
    def quick() -> Solution | None:
        made = cut()
        return None if made is None else plan.quickly(made, most)

    def least() -> int | None:
        found = quick()
        return None if found is None else found.bounds.mii

    def likely() -> int | None:
        found = quick()
        return None if found is None else -int(-found.schedule.ii * (1 - SOLVED_FASTER) // 1)

    def made() -> T | None:
        parts = cut()
        return None if parts is None else plan.made(parts)

    return Candidate(show(way), made, f"--subtile {max(way.parts)}", (lambda: busy, least, likely))
