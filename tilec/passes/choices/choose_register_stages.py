"""Decision: whether products of shared tiles prefetch their fragments across the iterations of their loops.

Without it, the warps of a block wait behind each iteration's barrier for the operands of the product's first step.
Blocks that share a multiprocessor hide that for one another. But fragments that live across iterations take registers,
of which fewer blocks may then have enough. The model of `cost.estimate` weighs that before anything is solved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from tilec.analysis.fragment_prefetch import is_fragment_prefetch
from tilec.ir.tile import Kernel, walk_statements
from tilec.passes.choices.choose_stages_by_occupancy import choose_expected_stages
from tilec.passes.choices.question import (
    Answer,
    Candidate,
    Outcome,
    Question,
    QuestionGenerator,
    ask_question,
    make_ruled_question,
)
from tilec.passes.cost.estimate import DoesNotFit, StageOption, estimate_registers, predict_by_stages
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.price.product_steps import price_product_steps
from tilec.passes.loop.price.statement_price import count_demands
from tilec.passes.loop.stages.product_loops import (
    REGISTER_STAGES,
    ProductLoop as ProductLoop,
    find_product_loops,
    prefetch_product_fragments,
)
from tilec.passes.state import LAYOUTS_ROW, Explorer, KernelState
from tilec.support.diagnostics import CompileError
from tilec.support.display import show_share
from tilec.support.options import DECIDING_LEVEL, CompileOptions
from tilec.target.table import Target

LEAST_GAIN = Fraction(1, 20)
"""The fraction of the predicted cycles to save. The price is only registers that nothing else needs."""


def choose_register_stages(state: KernelState, explore: Explorer) -> QuestionGenerator[KernelState]:
    """Decide whether products load their fragments one iteration early.

    There is a question about each product that could be meant, since each may have another reason; all eligible ones
    prefetch, or none.
    """
    kernel, assignment, target, options = state.kernel, state.assignment, state.target, state.options
    requested = options.register_stages

    def assign_layouts(prefetching: Kernel) -> LayoutAssignment:
        return explore(replace(state, kernel=prefetching, layouts=None), LAYOUTS_ROW).assignment

    found = find_product_loops(kernel, assignment, is_asked=requested is not None)
    eligible = tuple(one for one in found if one.steps)
    answer: Answer[LayoutAssignment] | None = None
    for one in found:
        what = "register stages" if len(found) == 1 else f"register stages at line {one.product.span.line}"
        if not one.steps and requested != 1:
            yield from ask_question(
                make_ruled_question(what, "the compiler", one.why, Candidate("1", lambda: assignment))
            )
        elif answer is None:
            answer = yield from ask_question(
                replace(_build_question(kernel, assignment, eligible, assign_layouts, target, options), what=what)
            )
        else:
            decision, value = answer.decision, answer.value
            yield from ask_question(
                make_ruled_question(
                    what, decision.by, decision.why, Candidate(decision.chosen, partial(_return_same, value))
                )
            )
    return state if answer is None else replace(state, layouts=answer.value)


def _return_same(assignment: LayoutAssignment) -> LayoutAssignment:
    return assignment


def _build_question(
    kernel: Kernel,
    assignment: LayoutAssignment,
    eligible: tuple[ProductLoop, ...],
    layouts: Callable[[Kernel], LayoutAssignment],
    target: Target,
    options: CompileOptions,
) -> Question[LayoutAssignment]:
    """Ask whether fragments are prefetched, or give the only answer with its reason; the question has no name yet."""
    requested = options.register_stages
    plain = Candidate("1", lambda: assignment, "--register-stages 1")
    if requested == 1:
        return make_ruled_question("", "the command line", "--register-stages 1", plain)
    if requested is None and options.opt_level < DECIDING_LEVEL:
        return make_ruled_question("", "the compiler", f"not at -O{options.opt_level}", plain)
    prefetching = _assign_prefetching_layouts(kernel, eligible, layouts, target)
    if isinstance(prefetching, str):
        return make_ruled_question("", "the compiler", prefetching, plain)
    loaded = Candidate(str(REGISTER_STAGES), lambda: prefetching, f"--register-stages {REGISTER_STAGES}")
    if requested is not None:
        return make_ruled_question("", "the command line", f"--register-stages {requested}", loaded, plain)
    try:
        rooms, others = predict_by_stages(assignment, target), predict_by_stages(prefetching, target)
    except DoesNotFit as refused:
        return make_ruled_question("", "the compiler", f"with prefetched fragments the kernel {refused}", plain)
    before, now = _choose_built_stages(rooms, assignment), _choose_built_stages(others, prefetching)
    more = (
        f"with about {estimate_registers(prefetching, target) - estimate_registers(assignment, target)} more registers"
    )
    share = next((room.together for room in others if room.stages == before.stages), 0)
    gain = 1 - now.predicted.cycles / before.predicted.cycles

    def explain_outcome(outcome: Outcome) -> str:
        """Return why fragments are prefetched or not, in words."""
        if outcome.chosen == "1" and share < before.together:
            return f"{more} only {share} instead of {before.together} blocks would fit on a multiprocessor"
        if outcome.chosen == "1":
            return _explain_small_gain(gain, before, more)
        steps = [
            price_product_steps(one.product, count_demands(one.product, assignment), target)
            for one in eligible
            if one.inner is None
        ]
        exposed = [s.exposed_cycles for s in steps if s is not None]
        waits = "each step of the inner loop would wait for its fragments"
        if exposed:
            waits = f"each iteration would wait {max(exposed)} cycles for its first fragments by ldmatrix"
        return f"without prefetching {waits}: {show_share(gain)} less time by the model, {more}"

    return Question(
        "",
        (plain, loaded),
        price=lambda made: (now if made is prefetching else before).predicted.cycles,
        explain=explain_outcome,
        least_gain=LEAST_GAIN,
    )


def _explain_small_gain(gain: float, before: StageOption, more: str) -> str:
    """Return why a gain was too small, in words: the share of time, the neighbours, and the registers that it takes."""
    # Assumptions before anything is solved: the built kernel may have other stages, and take more registers.
    stages = f"{before.stages} stages" if before.stages > 1 else "1 stage"
    shared = f", with {stages} and {before.together} blocks on a multiprocessor, which compute while one waits"
    return f"{show_share(max(gain, 0))} less time by the model{shared if before.together > 1 else ''}, {more}"


def _assign_prefetching_layouts(
    kernel: Kernel, eligible: tuple[ProductLoop, ...], layouts: Callable[[Kernel], LayoutAssignment], target: Target
) -> LayoutAssignment | str:
    """Return the kernel with fragments prefetched and its layouts, or why ldmatrix does not load them."""
    try:
        prefetching = layouts(prefetch_product_fragments(kernel, eligible))
    except CompileError as error:
        title = error.diagnostics[0].title if error.diagnostics else "there is no such kernel"
        are_there = all(one.inner is not None for one in eligible)
        return f"with {REGISTER_STAGES} stages, {title}" if are_there else f"with its operands in registers, {title}"
    loads = [s for s in walk_statements(prefetching.kernel.body) if is_fragment_prefetch(s)]
    if not loads:
        return "the product is not in the kernel's text, a pass has made it"
    plain = [s for s in loads if any(d.kind != "ldmatrix" for d in count_demands(s, prefetching))]
    return f"ldmatrix cannot load its fragments as {plain[0].span.place} needs them" if plain else prefetching


def _choose_built_stages(rooms: Sequence[StageOption], assignment: LayoutAssignment) -> StageOption:
    """Return the option that the kernel is expected to be built with: fewer stages only where all warps are alike."""
    return (
        choose_expected_stages(rooms)
        if assignment.form == "unspecialised"
        else max(rooms, key=lambda room: room.stages)
    )
