"""Whether products of shared tiles load their fragments ahead, across the iterations of their loops.

Without that the warps of a block wait, behind the barrier of each iteration, for what the first step of the product
reads. Blocks that share a multiprocessor hide that for one another; and fragments that live from iteration to iteration
take registers, of which fewer blocks may then have enough. The model of `cost.estimate` weighs that, before anything is
solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tilec.ir.tile import Kernel, walk
from tilec.passes.analysis.fragment_prefetch import is_fragment_prefetch
from tilec.passes.choices.occupancy import expected
from tilec.passes.cost.estimate import Refused, Room, by_stages, registers_of
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.product_loops import STAGES, Candidate, candidates, with_register_level
from tilec.passes.loop.product_steps import product_steps
from tilec.passes.loop.statement_price import demands
from tilec.sched.decision import Alternative, Decider, Decision
from tilec.support.diagnostics import CompileError
from tilec.support.options import MAY_DECIDE, CompileOptions
from tilec.target.table import Target

LEAST_GAIN = 0.05
"""Of the predicted cycles. Nothing but registers that nobody else needs is given for it."""
Said = tuple[Decider, str]


def as_pays(
    kernel: Kernel,
    assignment: LayoutAssignment,
    layouts: Callable[[Kernel], LayoutAssignment],
    target: Target,
    options: CompileOptions,
) -> tuple[LayoutAssignment, tuple[Decision, ...]]:
    """`assignment`, the kernel with its layouts, or the same with fragments prefetched; and what is to be said of each
    product that could be meant."""
    asked = options.register_stages
    found = candidates(kernel, assignment, is_asked=asked is not None)
    eligible = tuple(one for one in found if one.steps)
    if not found:
        return assignment, ()
    forbidden: Said | None = None
    if asked == 1:
        forbidden = "the command line", "--register-stages 1"
    elif asked is None and options.opt_level < MAY_DECIDE:
        forbidden = "the compiler", f"not at -O{options.opt_level}"
    if forbidden is not None or not eligible:
        return assignment, tuple(_decisions(found, 1, forbidden or ("the compiler", "")))
    prefetching = _by_ldmatrix(kernel, eligible, layouts, target)
    if isinstance(prefetching, str):
        return assignment, tuple(_decisions(found, 1, ("the compiler", prefetching)))
    if asked is not None:
        return prefetching, tuple(_decisions(found, STAGES, ("the command line", f"--register-stages {asked}")))
    pays, why, weighed = _weighed(assignment, prefetching, eligible, target)
    decisions = _decisions(found, STAGES if pays else 1, ("the compiler", why), weighed)
    return prefetching if pays else assignment, tuple(decisions)


def _by_ldmatrix(
    kernel: Kernel, eligible: tuple[Candidate, ...], layouts: Callable[[Kernel], LayoutAssignment], target: Target
) -> LayoutAssignment | str:
    """The kernel with fragments prefetched and its layouts, or why ldmatrix does not load them."""
    try:
        prefetching = layouts(with_register_level(kernel, eligible))
    except CompileError as error:
        title = error.diagnostics[0].title if error.diagnostics else "there is no such kernel"
        are_there = all(one.inner is not None for one in eligible)
        return f"with {STAGES} stages, {title}" if are_there else f"with its operands in registers, {title}"
    loads = [s for s in walk(prefetching.kernel.body) if is_fragment_prefetch(s)]
    if not loads:
        return "it is not a product that the kernel's text has"
    plain = [s for s in loads if any(d.kind != "ldmatrix" for d in demands(s, prefetching))]
    return f"ldmatrix cannot load its fragments as {plain[0].span.place} needs them" if plain else prefetching


def _weighed(
    assignment: LayoutAssignment, prefetching: LayoutAssignment, eligible: tuple[Candidate, ...], target: Target
) -> tuple[bool, str, tuple[Alternative, ...]]:
    """Whether it pays by the model, what that says, and what both ways cost."""
    try:
        rooms, others = by_stages(assignment, target), by_stages(prefetching, target)
    except Refused as refused:
        return False, f"with fragments prefetched it {refused}", ()
    before, now = _built(rooms, assignment), _built(others, prefetching)
    weighed = tuple(
        Alternative(str(stages), room.predicted.cycles, "cycles") for stages, room in ((1, before), (STAGES, now))
    )
    gain = 1 - now.predicted.cycles / before.predicted.cycles
    more = f"for about {registers_of(prefetching, target) - registers_of(assignment, target)} registers more"
    if gain >= LEAST_GAIN:
        steps = [
            product_steps(one.product, demands(one.product, assignment), target)
            for one in eligible
            if one.inner is None
        ]
        exposed = [s.exposed for s in steps if s is not None]
        waits = f"{max(exposed)} cycles in which each iteration" if exposed else "each step of the loop in it"
        first = "its first fragments" if exposed else "its fragments"
        return True, f"{waits} would wait for {first} by ldmatrix: {gain:.0%} less time by the model, {more}", weighed
    share = next((room.together for room in others if room.stages == before.stages), 0)
    if share < before.together:
        return False, f"{more} only {share} of the {before.together} blocks of a multiprocessor would fit", weighed
    # What the model assumes before anything is solved: what is built may have other stages, and take more registers.
    stages = f"{before.stages} stages" if before.stages > 1 else "1 stage"
    shared = f", with {stages} and {before.together} blocks a multiprocessor, which compute while one waits"
    said = f"{max(gain, 0):.0%} less time by the model{shared if before.together > 1 else ''}, {more}"
    return False, said, weighed


def _built(rooms: Sequence[Room], assignment: LayoutAssignment) -> Room:
    """What the kernel is expected to be built with: fewer stages are taken only where all warps are alike."""
    return expected(rooms) if assignment.form == "unspecialised" else max(rooms, key=lambda room: room.stages)


def _decisions(
    found: tuple[Candidate, ...], stages: int, said: Said, weighed: tuple[Alternative, ...] = ()
) -> Iterator[Decision]:
    for one in found:
        place = "" if len(found) == 1 else f" at line {one.product.span.line}"
        named = partial(Decision, f"register stages{place}")
        if said[0] == "the command line" and stages == 1:
            yield named("1", *said)
        elif one.steps:
            yield named(str(stages), *said, weighed)
        else:
            yield named("1", "the compiler", one.why)
