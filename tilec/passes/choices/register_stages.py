"""Whether products of shared tiles load their fragments ahead, across the trips of their loops.

Without that the warps of a block wait, behind the barrier of each trip, for what the first step of the product reads.
Blocks that share a multiprocessor hide that for one another; and fragments that live from trip to trip take registers,
of which fewer blocks may then have enough. The model of `cost.estimate` weighs that, before anything is solved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from tilec.ir.tile import Kernel, walk
from tilec.passes.analysis.fragment_prefetch import is_loaded_ahead
from tilec.passes.choices.occupancy import expected
from tilec.passes.choices.question import Answer, Asking, Candidate, Outcome, Question, ask, ruled
from tilec.passes.cost.estimate import Refused, Room, by_stages, registers_of
from tilec.passes.layout.assign_layouts import Laid
from tilec.passes.loop.product_loops import STAGES, Candidate as ProductLoop, candidates, with_register_level
from tilec.passes.loop.product_steps import product_steps
from tilec.passes.loop.statement_price import demands
from tilec.support.diagnostics import CompileError
from tilec.support.options import MAY_DECIDE, CompileOptions
from tilec.target.table import Target

LEAST_GAIN = Fraction(1, 20)
"""Of the predicted cycles. Nothing but registers that nobody else needs is given for it."""


def asking(
    kernel: Kernel, laid: Laid, layouts: Callable[[Kernel], Laid], target: Target, options: CompileOptions
) -> Asking[Laid]:
    """Gives `laid`, the kernel with its layouts, or the same with fragments loaded ahead. Of each product that could be
    meant it is asked, since of each there may be another reason; those that could load ahead all do, or none does."""
    asked = options.register_stages
    found = candidates(kernel, laid, is_asked=asked is not None)
    able = tuple(one for one in found if one.steps)
    answer: Answer[Laid] | None = None
    for one in found:
        what = "register stages" if len(found) == 1 else f"register stages at line {one.product.span.line}"
        if not one.steps and asked != 1:
            yield from ask(ruled(what, "the compiler", one.why, Candidate("1", lambda: laid)))
        elif answer is None:
            answer = yield from ask(replace(_question(kernel, laid, able, layouts, target, options), what=what))
        else:
            decision, value = answer.decision, answer.value
            yield from ask(ruled(what, decision.by, decision.why, Candidate(decision.chosen, partial(_same, value))))
    return laid if answer is None else answer.value


def _same(laid: Laid) -> Laid:
    return laid


def _question(
    kernel: Kernel,
    laid: Laid,
    able: tuple[ProductLoop, ...],
    layouts: Callable[[Kernel], Laid],
    target: Target,
    options: CompileOptions,
) -> Question[Laid]:
    asked = options.register_stages
    plain = Candidate("1", lambda: laid, "--register-stages 1")
    if asked == 1:
        return ruled("", "the command line", "--register-stages 1", plain)
    if asked is None and options.opt_level < MAY_DECIDE:
        return ruled("", "the compiler", f"not at -O{options.opt_level}", plain)
    ahead = _by_ldmatrix(kernel, able, layouts, target)
    if isinstance(ahead, str):
        return ruled("", "the compiler", ahead, plain)
    loaded = Candidate(str(STAGES), lambda: ahead, f"--register-stages {STAGES}")
    if asked is not None:
        return ruled("", "the command line", f"--register-stages {asked}", loaded, plain)
    try:
        rooms, others = by_stages(laid, target), by_stages(ahead, target)
    except Refused as refused:
        return ruled("", "the compiler", f"with fragments loaded ahead it {refused}", plain, loaded)
    before, now = _built(rooms, laid), _built(others, ahead)
    more = f"for about {registers_of(ahead, target) - registers_of(laid, target)} registers more"
    share = next((room.together for room in others if room.stages == before.stages), 0)
    gain = 1 - now.predicted.cycles / before.predicted.cycles
    if gain < LEAST_GAIN and share < before.together:
        why = f"{more} only {share} of the {before.together} blocks of a multiprocessor would fit"
        return ruled("", "the compiler", why, plain, loaded)

    def explain(outcome: Outcome) -> str:
        if outcome.chosen == "1":
            return _too_little(gain, before, more)
        steps = [product_steps(one.product, demands(one.product, laid), target) for one in able if one.inner is None]
        exposed = [s.exposed for s in steps if s is not None]
        waits = f"{max(exposed)} cycles in which each trip" if exposed else "each step of the loop in it"
        first = "its first fragments" if exposed else "its fragments"
        return f"{waits} would wait for {first} by ldmatrix: {gain:.0%} less time by the model, {more}"

    return Question(
        "",
        (plain, loaded),
        price=lambda made: (now if made is ahead else before).predicted.cycles,
        explain=explain,
        least_gain=LEAST_GAIN,
    )


def _too_little(gain: float, before: Room, more: str) -> str:
    # What the model assumes before anything is solved: what is built may have other stages, and take more registers.
    stages = f"{before.stages} stages" if before.stages > 1 else "1 stage"
    shared = f", with {stages} and {before.together} blocks a multiprocessor, which compute while one waits"
    return f"{max(gain, 0):.0%} less time by the model{shared if before.together > 1 else ''}, {more}"


def _by_ldmatrix(
    kernel: Kernel, able: tuple[ProductLoop, ...], layouts: Callable[[Kernel], Laid], target: Target
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


def _built(rooms: Sequence[Room], laid: Laid) -> Room:
    """What the kernel is expected to be built with: fewer stages are taken only where all warps are alike."""
    return expected(rooms) if laid.form == "unspecialised" else max(rooms, key=lambda room: room.stages)
