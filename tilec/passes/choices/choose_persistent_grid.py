"""Decision: whether only as many blocks as run at once are launched, and walk over the grid (`grid.persistent`)."""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.rings import find_pipelined_loops
from tilec.ir.tile import Bind, Expr, If, Kernel, Load, Var, walk_expr, walk_statements
from tilec.passes.choices.question import (
    Candidate,
    Outcome,
    Question,
    QuestionGenerator,
    ask_question,
    make_ruled_question,
)
from tilec.passes.cost.block_order import LEAST_GAIN, MAX_TILES, estimate_blocks, simulate_persistent
from tilec.passes.cost.estimate import estimate_residency
from tilec.passes.cost.model import simulate_dynamic
from tilec.passes.grid.persistent import blocks_at_once, why_not_dynamically_scheduled, why_not_persistent
from tilec.passes.state import KernelState


def choose_persistent_grid(state: KernelState) -> QuestionGenerator[KernelState]:
    """Decide whether to launch only as many blocks as run at once, each looping over the grid."""
    is_specialised = state.assignment.form == "warp_specialised" and not state.assignment.roles
    residency = estimate_residency(state.assignment, state.target) if is_specialised else 1
    is_persistent = (yield from ask_question(_ask_for_persistence(state, residency))).value
    search = replace(state.search, kernel_before_grid=state.kernel)
    return replace(state, is_persistent=is_persistent, residency=residency, search=search)


def _ask_for_persistence(state: KernelState, residency: int) -> Question[bool]:
    """Ask whether as many blocks as run at once walk over the grid, `residency` of them on each multiprocessor. A later
    pass may have found why they cannot."""
    kernel, assignment, target, options = state.kernel, state.assignment, state.target, state.options
    against = dict(state.search.withdrawn_choices).get("choose-persistent-grid")
    at_once = residency * blocks_at_once(target, kernel.cluster.blocks)
    stays = Candidate("no", lambda: False, "--no-persistent")
    if not options.persistent:
        return make_ruled_question("persistent grid", "the command line", "--no-persistent", stays)
    if against is None:
        against = "without a producer warp no loads of the next tile start early"
        if assignment.form == "warp_specialised":
            against = why_not_persistent(kernel, at_once)
    if against is not None:
        return make_ruled_question("persistent grid", "the compiler", against, stays)
    blocks = " × ".join(str(e) if isinstance(e, int) else "?" for e in kernel.grid)
    option = f"--tile-scheduler {options.tile_scheduler if options.tile_scheduler != 'auto' else 'static'}"
    walks = Candidate(f"{at_once} blocks walk over {blocks}", lambda: True, option)
    if options.tile_scheduler != "auto":
        return make_ruled_question("persistent grid", "the command line", option, walks, stays)
    is_dealt = why_not_dynamically_scheduled(kernel, target) is None
    if not is_dealt and _may_data_skip_loops(kernel):
        skipped = (
            "only data know which blocks have work: the hardware gives a free multiprocessor the next one, while with "
            "a static stride some blocks would get much more of it"
        )
        return make_ruled_question("persistent grid", "the compiler", skipped, stays, walks)
    why = "a block loads its next tile while it computes and stores the last"
    tiles = estimate_blocks(assignment, target, MAX_TILES)
    if tiles is None:
        return make_ruled_question("persistent grid", "the compiler", why, walks, stays)
    # If blocks differ in duration, the hardware's scheduler absorbs errors of the estimate, a static stride does not:
    # causal attention whose two prices are alike is 2 to 6 % slower on an H200 with a persistent grid.
    is_even = len({each.cycles for each in tiles}) == 1
    order = (walks, stays) if is_even or is_dealt else (stays, walks)

    def count_cycles(are_walked: bool) -> int:
        """Return the predicted cycles of the grid, persistent or not."""
        return (
            simulate_persistent(tiles, at_once, is_dealt)
            if are_walked
            else simulate_dynamic([each.cycles for each in tiles], at_once)
        )

    def explain_outcome(outcome: Outcome) -> str:
        """Return why the grid is persistent or not, in words."""
        if outcome.chosen == walks.answer:
            return why
        return (
            f"its blocks differ in length: with a static stride some of {at_once} persistent blocks would get "
            "much more work"
        )

    return Question("persistent grid", order, price=count_cycles, explain=explain_outcome, least_gain=LEAST_GAIN)


def _may_data_skip_loops(kernel: Kernel) -> bool:
    """Return whether a block runs its pipelined loops only if elements of a tensor say so, as where sequences have
    lengths of their own."""
    values = {stmt.var: stmt.value for stmt in walk_statements(kernel.body) if isinstance(stmt, Bind)}

    def reads_elements(expr: Expr) -> bool:
        """Return whether an expression depends on an element of a tensor, also through definitions."""
        parts = list(walk_expr(expr))
        inside = (values[part] for part in parts if isinstance(part, Var) and part in values)
        return any(isinstance(part, Load) for part in parts) or any(map(reads_elements, inside))

    branches = (stmt for stmt in walk_statements(kernel.body) if isinstance(stmt, If))
    return any(find_pipelined_loops(branch.then) and reads_elements(branch.condition) for branch in branches)
