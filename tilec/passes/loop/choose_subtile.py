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
from typing import Final

from tilec.ir import tile
from tilec.ops.fill import Fill
from tilec.passes.analysis.rings import pipelined_loops
from tilec.passes.analysis.usage import reads, writes
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import products
from tilec.passes.loop.subtile import Indivisible, divided, related
from tilec.sched.decision import Alternative, Decider, Decision
from tilec.sched.solution import Solution
from tilec.support.diagnostics import fail
from tilec.support.options import MAY_DECIDE, CompileOptions, Scheduler

PARTS = 2
LEAST_GAIN = 20
"""A twentieth of the interval is what parts have to save."""
ABOVE = 10
"""By a tenth the heuristics' interval may be above the one to beat: a solver may still find a smaller one."""

_UNIT: Final = "cycles an iteration"

Price = Callable[[tile.Kernel, Scheduler], Solution | None]
"""The solved loop of a kernel, None if it has no schedule or not the same products."""


def show(subtiled: tile.Subtile) -> str:
    """As in the trace: `scores (1, 2)`."""
    return f"{subtiled.buffer.name} ({', '.join(map(str, subtiled.parts))})"


def as_asked(kernel: tile.Kernel, options: CompileOptions) -> tuple[tile.Kernel, tuple[Decision, ...]]:
    """The kernel with the tiles in parts that it asks for, or else the trace that its schedule is taken from; and what
    is to be said of it."""
    by: Decider = "the kernel"
    asked, why = kernel.subtiles, "T.annotate_subtile"
    if not asked and options.schedule is not None:
        by, asked, why = "the command line", tuple(_in_trace(kernel, options.schedule)), "--schedule"
    whole = replace(kernel, subtiles=()) if kernel.subtiles else kernel
    for subtiled in asked:
        whole = _carried_out(whole, subtiled)
    chosen = ", ".join(show(subtiled) for subtiled in asked if max(subtiled.parts) > 1) or "none"
    return whole, (Decision("subtile", chosen, by, why),) if asked else ()


def _in_trace(kernel: tile.Kernel, trace: str) -> Iterator[tile.Subtile]:
    """What a trace says was decided. Whether it is a trace at all is found out where its schedule is read."""
    said = re.search(r'"what": "subtile",\s*"chosen": "(.*?)"', trace)
    for name, parts in re.findall(r"(\S+) \(([\d, ]+)\)", said[1] if said else ""):
        buffer = next((b for b in kernel.buffers if b.name == name), None)
        if buffer is not None:
            yield tile.Subtile(buffer, tuple(map(int, parts.split(", "))), kernel.span)


def _carried_out(kernel: tile.Kernel, subtiled: tile.Subtile) -> tile.Kernel:
    parts = max(subtiled.parts)
    if parts == 1:
        return kernel
    try:
        if subtiled.buffer not in kernel.buffers:
            raise Indivisible("it is in parts already, with another tile")
        return divided(kernel, subtiled.buffer, subtiled.parts.index(parts), parts)
    except Indivisible as reason:
        fail(
            "bad-subtile",
            f"{subtiled.buffer.name} cannot be cut into {parts} parts",
            subtiled.span,
            str(reason),
            help="leave T.annotate_subtile out: the compiler cuts tiles where it can and where that pays",
        )


def candidates(kernel: tile.Kernel, assignment: LayoutAssignment, options: CompileOptions) -> tuple[tile.Subtile, ...]:
    """The ways to cut the tiles of a kernel's only pipelined loop that hold a product of one iteration, with which
    something is computed; none where there is nothing to decide."""
    if options.schedule is not None or options.max_scheduled_ii is not None:
        return ()
    if options.subtile is None and options.opt_level < MAY_DECIDE:
        return ()
    loops = pipelined_loops(assignment.kernel.body)
    if len(loops) != 1 or assignment.form == "serial" or loops[0].stage is not None:
        return ()
    multiplied = products(loops[0].body)
    leaves = [s for s in tile.walk(loops[0].body) if isinstance(s, tile.TileOp | tile.Parallel)]
    others = [s for s in leaves if not any(s is p for p in multiplied)]
    cleared = {b.name for s in others if isinstance(s, Fill) for b in writes(s)}
    sums = {b.name for p in multiplied for b in writes(p) if b.name in cleared or not p.only_adds}
    computed_with = {b.name for s in others for b in reads(s)}
    parts = options.subtile or PARTS
    found: list[tile.Subtile] = []
    seen: list[dict[tile.Buffer, int]] = []
    for buffer in (b for b in kernel.buffers if b.scope == "fragment" and b.name in sums & computed_with):
        for dim in range(len(buffer.shape)):
            try:
                subtiled = related(kernel, (buffer, dim))
            except Indivisible:
                continue
            if subtiled not in seen:
                seen.append(subtiled)
                found.append(tile.Subtile(buffer, tuple(parts if d == dim else 1 for d in range(len(buffer.shape)))))
    return tuple(found)


def as_pays(
    kernel: tile.Kernel, whole: Solution, options: CompileOptions, ways: tuple[tile.Subtile, ...], price: Price
) -> tuple[tile.Kernel, Decision]:
    """The kernel with its tiles in parts, or as it is, whichever has the smaller interval; and why. `whole` is the
    solved loop of the kernel as it is."""
    if options.subtile == 1:
        return kernel, Decision("subtile", "none", "the command line", "--subtile none")
    ii = whole.schedule.ii
    busy = max((b for b in whole.bounds.each if b.kind == "slot"), key=lambda bound: bound.ii)
    if options.subtile is None and _gains_little(ii, busy.ii):
        why = f"{busy.name} is held in {busy.ii} of the interval's {ii} cycles: parts would wait for it too"
        return kernel, Decision("subtile", "none", "the compiler", why)
    limit = ii if options.subtile is None else None
    found: list[tuple[int, tile.Kernel, tile.Subtile]] = []
    for way in ways:
        try:
            subtiled = divided(kernel, way.buffer, way.parts.index(max(way.parts)), max(way.parts))
        except Indivisible:
            continue
        if (solution := _solved(subtiled, limit, options.scheduler, price)) is not None:
            found.append((solution.schedule.ii, subtiled, way))
    weighed = (Alternative("none", ii, _UNIT), *(Alternative(show(way), each, _UNIT) for each, _, way in found))
    if not found:
        missing = "is faster" if options.subtile is None else f"into {options.subtile} parts leaves products for wgmma"
        why = f"no way to cut its tiles {missing}"
        return kernel, Decision("subtile", "none", "the compiler", why, weighed)
    best, subtiled, way = min(found, key=lambda one: one[0])
    if options.subtile is not None:
        why = f"--subtile {options.subtile}; an interval of {best} cycles, and {ii} with whole tiles"
        return subtiled, Decision("subtile", show(way), "the command line", why, weighed)
    if _gains_little(ii, best):
        why = f"an interval of {best} cycles with {show(way)}, and {ii} with whole tiles"
        return kernel, Decision("subtile", "none", "the compiler", why, weighed)
    why = f"an interval of {best} cycles, and {ii} with whole tiles: one part computes while another one multiplies"
    return subtiled, Decision("subtile", show(way), "the compiler", why, weighed)


def _gains_little(ii: int, least: int) -> bool:
    return least * LEAST_GAIN > ii * (LEAST_GAIN - 1)


def _solved(kernel: tile.Kernel, limit: int | None, scheduler: Scheduler, price: Price) -> Solution | None:
    """What the solver makes of it, if the bounds and the heuristics leave room below the limit."""
    if limit is None:
        return price(kernel, scheduler)
    quick = price(kernel, "heuristic")
    if quick is None or _gains_little(limit, quick.bounds.mii):
        return None
    return price(kernel, scheduler) if quick.schedule.ii * ABOVE <= limit * (ABOVE + 1) else None
