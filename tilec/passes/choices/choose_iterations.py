"""Decision: one iteration after the other, where versions of tiles keep a block out of a multiprocessor.

Iterations that overlap hide latencies within a block, blocks of one multiprocessor hide each other's. Which of the two
is worth more, where a loop has few iterations, depends on the code around it: so both forms are assembled, unless the
one in order is clearly worse, and compared by their machine code. In long loops overlap is taken to be better: the
model finds products in order up to half as slow as an H200 does.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import partial

from tilec.analysis.rings import find_pipelined_loops
from tilec.ir.tile import KernelOption, walk_statements
from tilec.ops.products.gemm import Gemm
from tilec.passes.choices.choose_roles import MIN_ROUNDS
from tilec.passes.choices.choose_stages_by_occupancy import count_fitting_blocks, report_planned_kernel
from tilec.passes.choices.question import Candidate, Outcome, Question, make_ruled_question
from tilec.passes.state import Explorer, KernelState
from tilec.support.diagnostics import CompileError

LEAST_GAIN = Fraction(1, 10)
"""The fraction of the predicted cycles to save: the mean error of the model."""
MOST_LOSS = Fraction(1, 10)
"""By how much one iteration after the other may be slower before anything is assembled. For the H200's mamba chunk scan
the model says 3 % slower then, and 19 % faster by its machine code; measured are 15 %."""
_LAST_ROW = "choose-subtile"
_ONE_BY_ONE = "one after the other"
_RECORDED = re.compile(rf'"what": "iterations",\s*"chosen": "{_ONE_BY_ONE}"')
"""The decision in the text of a trace."""


def choose_iterations(state: KernelState, explore: Explorer) -> Question[KernelState] | None:
    """Ask whether the iterations of a kernel's loops overlap. None where shared memory keeps no block out, where loops
    only move tiles, or where one iteration after the other is clearly slower."""
    if state.options.pipeline_strategy != "auto" or state.search.before_layouts is None:
        return None
    if state.options.schedule is not None:
        return _follow_trace(state, state.search.before_layouts, state.options.schedule, explore)
    if not _may_be_faster(state):
        return None
    serial = lay_out_as_asked(state.search.before_layouts, "serial", explore, _LAST_ROW)
    if serial is None:
        return None
    blocks, room = (count_fitting_blocks(each)["shared memory"] for each in (state, serial))
    now, then = (report_planned_kernel(each) for each in (state, serial))
    if room <= blocks or then.at(then.predicted) > (1 + MOST_LOSS) * now.at(now.predicted):
        return None

    def explain_outcome(outcome: Outcome) -> str:
        """Return why iterations overlap or not, in words."""
        rooms = f"{blocks} blocks share a multiprocessor; without versions of tiles {room} would"
        return rooms if outcome.chosen == overlapped.answer else f"{room} blocks share a multiprocessor, not {blocks}"

    overlapped = Candidate("overlapped", lambda: state, "--pipeline-strategy unspecialize")
    one_by_one = Candidate(_ONE_BY_ONE, lambda: serial, "--pipeline-strategy none")
    price = partial(predict_by_machine_code, explore)
    return Question("iterations", (overlapped, one_by_one), price=price, explain=explain_outcome, least_gain=LEAST_GAIN)


def _follow_trace(
    state: KernelState, before: KernelState, trace: str, explore: Explorer
) -> Question[KernelState] | None:
    """Ask for one iteration after the other if a trace's text records that decision; None if it does not."""
    if state.assignment.form != "unspecialised" or _RECORDED.search(trace) is None:
        return None
    serial = lay_out_as_asked(before, "serial", explore, _LAST_ROW)
    if serial is None:
        return None
    one_by_one = Candidate(_ONE_BY_ONE, lambda: serial)
    return make_ruled_question("iterations", "the command line", "--schedule", one_by_one)


def _may_be_faster(state: KernelState) -> bool:
    """Return whether shared memory keeps a block out of a multiprocessor, of a grid with more blocks than that, loops
    are short, and products and not memory take the time."""
    loops = find_pipelined_loops(state.assignment.kernel.body)
    if not state.loops or any(loop.stage is not None for loop in loops):
        return False
    if not any(isinstance(stmt, Gemm) for loop in loops for stmt in walk_statements(loop.body)):
        return False
    fits = count_fitting_blocks(state)
    blocks = fits.pop("shared memory")
    if not 0 < blocks < min(fits.values()):
        return False
    report = report_planned_kernel(state)
    if report.is_one_wave or report.ctas <= blocks * state.target.limit("sms"):
        return False
    if any(loop.levels[0].level.trip_count >= MIN_ROUNDS * loop.levels[0].level.stages for loop in report.loops):
        return False
    return report.at(report.limits) < (1 - LEAST_GAIN) * report.at(report.predicted)


def predict_by_machine_code(explore: Explorer, considered: KernelState) -> int | None:
    """Return the cycles of a kernel by its machine code; None if it cannot be assembled."""
    from tilec.passes.assembled.predict_assembled_kernel import predict_emitted_kernel  # which few kernels need

    try:
        return predict_emitted_kernel(explore(considered, "emit-ptx"))
    except CompileError:
        return None


def lay_out_as_asked(before: KernelState, ask: KernelOption, explore: Explorer, last: str) -> KernelState | None:
    """Return the kernel that asks for one option more, from its layouts to the row `last`, with the decisions on the
    way; None if there is no such kernel. It is the state `before` its layouts."""
    kernel = replace(before.kernel, asks=tuple(sorted({*before.kernel.asks, ask})))
    try:
        made = explore(replace(before, kernel=kernel, layouts=None), last)
    except CompileError:
        return None
    decisions = {decision.what: decision for decision in made.decisions}  # those of rows that ran again count once
    return replace(made, decisions=tuple(decisions.values()))
