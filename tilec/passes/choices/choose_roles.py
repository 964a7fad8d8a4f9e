"""Decision: which warps load and which compute.

A warp that only loads never delays those that compute, and in a persistent grid it loads the next block's tiles while
the last one is stored. But its block takes more threads, and a ring that is too short for the latency of its loads
stalls it all the same. There several blocks on a multiprocessor, whose warps are all alike, hide each other's waits;
and where statements of a loop wait for one another, they hide these waits too. The model weighs the two, for loops that
only load tiles and multiply them from their levels, for others also from the lower bounds of their intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial

from tilec.analysis.rings import find_pipelined_loops
from tilec.ir.tile import For, walk_statements
from tilec.ops.products.gemm import Gemm
from tilec.passes.choices.choose_cluster import only_multiplies
from tilec.passes.choices.question import (
    Candidate,
    Outcome,
    Question,
    QuestionGenerator,
    ask_question,
    make_ruled_question,
)
from tilec.passes.cost.estimate import (
    DoesNotFit,
    StageOption,
    estimate_alike_residency,
    estimate_residency,
    predict_by_stages,
)
from tilec.passes.cost.launch_time import LaunchTimer, list_launch_forms
from tilec.passes.loop.build_problem import build_ready_problems
from tilec.passes.state import LAYOUTS_ROW, Explorer, KernelState
from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds
from tilec.support.diagnostics import CompileError
from tilec.support.identity import IdentityKey
from tilec.support.options import DECIDING_LEVEL

LEAST_GAIN, LEAST_GAIN_OF_OTHERS = Fraction(1, 12), Fraction(3, 20)
"""The fraction of the predicted cycles that warps which are all alike have to save, in products and in other kernels,
of which the model knows less."""
MIN_ROUNDS = 4
"""How often a loop has to go through its ring, at least, for the ring's length to matter: in a shorter loop the load of
its first tiles does, which a persistent grid hides."""
_ALIKE = "all warps alike"


def choose_roles(state: KernelState, explore: Explorer) -> QuestionGenerator[KernelState]:
    """Choose which warps load and which compute, within what layouts and mechanisms allow."""
    return (yield from ask_question(_ask_for_roles(state, explore))).value


def _ask_for_roles(state: KernelState, explore: Explorer) -> Question[KernelState]:
    """Ask which warps load and which compute; a question with one answer where the kernel or an option decides."""
    assignment, options = state.assignment, state.options

    def keep_state() -> KernelState:
        return state

    if assignment.roles:
        names = ", ".join(part.name for part in assignment.roles)
        return make_ruled_question("roles", "the kernel", "it has explicit roles", Candidate(names, keep_state))
    loops = find_pipelined_loops(assignment.kernel.body)
    if assignment.form != "warp_specialised":
        in_order = ", loops one iteration after the other" if loops and assignment.form == "serial" else ""
        alike = Candidate(f"{_ALIKE}{in_order}", keep_state)
        if "serial" in state.kernel.asks:
            return make_ruled_question(
                "roles", "the compiler", "more blocks share a multiprocessor (iterations)", alike
            )
        if assignment.why_alike is not None:
            return make_ruled_question("roles", "the compiler", assignment.why_alike, alike)
        if options.pipeline_strategy == "auto":
            return make_ruled_question("roles", "the kernel", "its pass configuration", alike)
        by_line = f"--pipeline-strategy {options.pipeline_strategy}"
        return make_ruled_question("roles", "the command line", by_line, alike)
    by_role = Candidate("producer, consumer", keep_state, "--pipeline-strategy warp-specialize")
    if state.strategy == "warp-specialize":
        return make_ruled_question("roles", "the command line", "--pipeline-strategy warp-specialize", by_role)
    why = "a producer warp prefetches tiles by TMA"
    alike = Candidate(_ALIKE, lambda: None, "--pipeline-strategy unspecialize")
    by_rule = make_ruled_question("roles", "the compiler", why, by_role, alike)
    if options.opt_level < DECIDING_LEVEL:
        return by_rule
    if not all(map(_is_plain_product, loops)):
        return _weigh_launches(state, by_role, partial(_assign_alike_layouts, state, explore), why) or by_rule
    expected = _predict_as_written(state)
    if expected is None or expected.iterations < MIN_ROUNDS * expected.stages:
        return by_rule

    def count_cycles(considered: KernelState) -> int | None:
        """Return the predicted cycles of the kernel with these roles; None where the model has no price."""
        found = expected if considered is state else _predict_as_written(considered)
        if found is None:
            return None
        return expected.persistent_cycles if considered is state else found.predicted.cycles

    def explain_outcome(outcome: Outcome) -> str:
        """Return why these roles were chosen, in words."""
        if outcome.chosen == by_role.answer:
            return why
        return (
            f"{expected.stages} stages are too few for the latency of its loads: several blocks of a multiprocessor "
            "hide it from each other"
        )

    assign = partial(_assign_alike_layouts, state, explore)
    alike = Candidate(_ALIKE, assign, "--pipeline-strategy unspecialize", (lambda: expected.busy,))
    return Question("roles", (by_role, alike), price=count_cycles, explain=explain_outcome, least_gain=LEAST_GAIN)


def _assign_alike_layouts(state: KernelState, explore: Explorer) -> KernelState | None:
    """Return the kernel with warps that are all alike; None where it cannot be built so."""
    asked = replace(state.kernel, asks=tuple(sorted({*state.kernel.asks, "unspecialised"})))
    try:
        return explore(replace(state, kernel=asked, layouts=None), LAYOUTS_ROW)
    except CompileError:
        return None


def _weigh_launches(
    state: KernelState, by_role: Candidate[KernelState], assign_alike: Callable[[], KernelState | None], why: str
) -> Question[KernelState] | None:
    """Ask which roles launch in less time; None where no more blocks would share a multiprocessor, or without a
    price."""
    residency = estimate_residency(state.assignment, state.target)
    # Alone on its multiprocessor a block has nobody to hide its waits.
    if estimate_alike_residency(state.assignment, state.target) <= residency:
        return None
    timer = _time_launches(state)
    expected = None if timer is None else _price_launches(timer)
    if timer is None or expected is None:
        return None

    def count_cycles(considered: KernelState) -> int | None:
        """Return the predicted cycles of the kernel with these roles; None where the model has no price."""
        if considered is state:
            return expected
        other = _time_launches(considered)
        return None if other is None else _price_launches(other, residency + 1)

    def explain_outcome(outcome: Outcome) -> str:
        """Return why these roles were chosen, in words."""
        if outcome.chosen == by_role.answer:
            return why
        return "several blocks of a multiprocessor hide the waits of each other's statements"

    alike = Candidate(_ALIKE, assign_alike, "--pipeline-strategy unspecialize", (lambda: timer.least_cycles,))
    return Question(
        "roles", (by_role, alike), price=count_cycles, explain=explain_outcome, least_gain=LEAST_GAIN_OF_OTHERS
    )


def _time_launches(state: KernelState) -> LaunchTimer | None:
    """Return what predicts the kernel's launches, from the lower bounds of its loops' intervals; None where its grid is
    known at launch only, or a loop has no schedule."""
    if not all(isinstance(extent, int) for extent in state.kernel.grid):
        return None
    try:
        problems = build_ready_problems(state.assignment, state.target)
        intervals = {IdentityKey(one.loop): compute_bounds(one.problem).mii for one in problems}
    except (CompileError, Unschedulable):
        return None
    return LaunchTimer(state.assignment, state.target, intervals)


def _price_launches(timer: LaunchTimer, blocks: int = 1) -> int | None:
    """Return the cycles of the kernel's fastest form with this many blocks a multiprocessor or more; None without
    any."""
    forms = [form for form in list_launch_forms(timer.assignment, timer.target) if form.together >= blocks]
    return min(map(timer.predict_cycles, forms), default=None)


def _is_plain_product(loop: For) -> bool:
    """Return whether a loop only loads tiles and multiplies them into one sum: of two, an epilogue takes more registers
    than the estimate knows."""
    sums = {stmt.c.buffer.name for stmt in walk_statements(loop.body) if isinstance(stmt, Gemm)}
    return only_multiplies(loop) and len(sums) == 1


def _predict_as_written(state: KernelState) -> StageOption | None:
    """Return the prediction with as many stages as the loops may have; None where the kernel does not seem to fit."""
    try:
        return max(predict_by_stages(state.assignment, state.target), key=lambda option: option.stages)
    except DoesNotFit:
        return None
