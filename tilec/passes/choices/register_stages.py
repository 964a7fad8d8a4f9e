"""Whether products of shared tiles load their fragments ahead, across the trips of their loops.

Without that the warps of a block wait, behind the barrier of each trip, for what the first step of the product reads.
Blocks that share a multiprocessor hide that for one another; and fragments that live from trip to trip take registers,
of which fewer blocks may then have enough. The model of `cost.estimate` weighs that, before anything is solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tilec.ir.tile import Kernel, walk
from tilec.passes.analysis.fragment_prefetch import is_loaded_ahead
from tilec.passes.choices.occupancy import expected
from tilec.passes.cost.estimate import Refused, Room, by_stages, registers_of
from tilec.passes.layout.assign_layouts import Laid
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
    kernel: Kernel, laid: Laid, layouts: Callable[[Kernel], Laid], target: Target, options: CompileOptions
) -> tuple[Laid, tuple[Decision, ...]]:
    """`laid`, the kernel with its layouts, or the same with fragments loaded ahead; and what is to be said of each
    product that could be meant."""
    asked = options.register_stages
    found = candidates(kernel, laid, is_asked=asked is not None)
    able = tuple(one for one in found if one.steps)
    if not found:
        return laid, ()
    forbidden: Said | None = None
    if asked == 1:
        forbidden = "the command line", "--register-stages 1"
    elif asked is None and options.opt_level < MAY_DECIDE:
        forbidden = "the compiler", f"not at -O{options.opt_level}"
    if forbidden is not None or not able:
        return laid, tuple(_decisions(found, 1, forbidden or ("the compiler", "")))
    ahead = _by_ldmatrix(kernel, able, layouts, target)
    if isinstance(ahead, str):
        return laid, tuple(_decisions(found, 1, ("the compiler", ahead)))
    if asked is not None:
        return ahead, tuple(_decisions(found, STAGES, ("the command line", f"--register-stages {asked}")))
    pays, why, weighed = _weighed(laid, ahead, able, target)
    decisions = _decisions(found, STAGES if pays else 1, ("the compiler", why), weighed)
    return ahead if pays else laid, tuple(decisions)


def _by_ldmatrix(
    kernel: Kernel, able: tuple[Candidate, ...], layouts: Callable[[Kernel], Laid], target: Target
) -> Laid | str:
    """The kernel with fragments loaded ahead and its layouts, or why ldmatrix does not load them."""
    try:
        ahead = layouts(with_register_level(kernel, able))
    except CompileError as error:
        title = error.diagnostics[0].title if error.diagnostics else "there is no such kernel"
        are_there = all(one.inner is not None for one in able)
        return f"with {STAGES} stages, {title}" if are_there else f"with its operands in registers, {title}"
    loads = [s for s in walk(ahead.kernel.body) if is_loaded_ahead(s)]
    if not loads:
        return "it is not a product that the kernel's text has"
    plain = [s for s in loads if any(d.kind != "ldmatrix" for d in demands(s, ahead))]
    return f"ldmatrix cannot load its fragments as {plain[0].span.place} needs them" if plain else ahead


def _weighed(
    laid: Laid, ahead: Laid, able: tuple[Candidate, ...], target: Target
) -> tuple[bool, str, tuple[Alternative, ...]]:
    """Whether it pays by the model, what that says, and what both ways cost."""
    try:
        rooms, others = by_stages(laid, target), by_stages(ahead, target)
    except Refused as refused:
        return False, f"with fragments loaded ahead it {refused}", ()
    before, now = _built(rooms, laid), _built(others, ahead)
    weighed = tuple(
        Alternative(str(stages), room.predicted.cycles, "cycles") for stages, room in ((1, before), (STAGES, now))
    )
    gain = 1 - now.predicted.cycles / before.predicted.cycles
    more = f"for about {registers_of(ahead, target) - registers_of(laid, target)} registers more"
    if gain >= LEAST_GAIN:
        steps = [product_steps(one.product, demands(one.product, laid), target) for one in able if one.inner is None]
        exposed = [s.exposed for s in steps if s is not None]
        waits = f"{max(exposed)} cycles in which each trip" if exposed else "each step of the loop in it"
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


def _built(rooms: Sequence[Room], laid: Laid) -> Room:
    """What the kernel is expected to be built with: fewer stages are taken only where all warps are alike."""
    return expected(rooms) if laid.form == "unspecialised" else max(rooms, key=lambda room: room.stages)


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
