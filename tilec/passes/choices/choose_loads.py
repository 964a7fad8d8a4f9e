"""Decision: which threads load the tiles of loops without a producer.

One thread that loads by TMA spends no instructions of the others, but its boxes are swizzled tiles of a tensor's rows,
and it waits for a free version before each. All threads by cp.async load in the order in which their loop runs, beside
its other instructions. Where a loop computes what it multiplies, as rows of a picture or weights of few bits, either
may be faster: both are assembled, and the model weighs their machine code.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import partial

from tilec.analysis.rings import find_pipelined_loops
from tilec.ir.tile import walk_statements
from tilec.ops.products.gemm import Gemm
from tilec.passes.choices.choose_iterations import lay_out_as_asked, predict_by_machine_code
from tilec.passes.choices.question import Candidate, Outcome, Question, make_ruled_question
from tilec.passes.state import Explorer, KernelState
from tilec.support.options import DECIDING_LEVEL

LEAST_GAIN = Fraction(1, 50)
"""The fraction of the predicted cycles to save. Of the three such kernels whose loads an H200 timed both ways
(benchmarks/results/h200-2026-11-28), the model has the sign right in all."""
_BY_THREADS = "by all threads"
_RECORDED = re.compile(rf'"what": "loads",\s*"chosen": "{_BY_THREADS}"')
"""The decision in the text of a trace."""
_WHY_BY_TMA = "one thread issues all loads of wgmma operands"


def choose_loads(state: KernelState, explore: Explorer) -> Question[KernelState] | None:
    """Ask which threads load in loops without a producer. None where no loads could be by TMA, unless the command line
    says so."""
    assignment, options, before = state.assignment, state.options, state.search.before_layouts
    if assignment.form != "warp_specialised" and not options.tma_loads:
        as_told = Candidate(_BY_THREADS, lambda: state)
        return make_ruled_question("loads", "the command line", "--no-tma-loads", as_told)
    if not assignment.has_one_loader or before is None:
        return None
    by_tma = Candidate("by TMA", lambda: state, "--tma-loads")
    lay_out_anew = partial(lay_out_as_asked, before, "thread-loads", explore, "choose-iterations")
    by_threads = Candidate(_BY_THREADS, lay_out_anew, "--no-tma-loads")
    if options.schedule is not None and _RECORDED.search(options.schedule) and (made := lay_out_anew()) is not None:
        as_recorded = Candidate(_BY_THREADS, lambda: made)
        return make_ruled_question("loads", "the command line", "--schedule", as_recorded)
    if options.schedule is not None or options.opt_level < DECIDING_LEVEL or not _is_worth_asking(state):
        return make_ruled_question("loads", "the compiler", _WHY_BY_TMA, by_tma)

    def explain_outcome(outcome: Outcome) -> str:
        """Return why these threads load, in words."""
        return _WHY_BY_TMA if outcome.chosen == by_tma.answer else "less time by the model than one thread by TMA"

    price = partial(predict_by_machine_code, explore)
    return Question("loads", (by_tma, by_threads), price=price, explain=explain_outcome, least_gain=LEAST_GAIN)


def _is_worth_asking(state: KernelState) -> bool:
    """Return whether the compiler chose the kernel's form, whose iterations overlap, its grid is known, and each loop
    multiplies once: one more search for the schedules of others takes seconds."""
    is_asked_for = state.options.pipeline_strategy != "auto" or "unspecialised" in state.source_kernel.asks
    if is_asked_for or state.assignment.form != "unspecialised":
        return False
    if not all(isinstance(extent, int) for extent in state.kernel.grid):
        return False
    loops = find_pipelined_loops(state.assignment.kernel.body)
    return all(sum(isinstance(stmt, Gemm) for stmt in walk_statements(loop.body)) == 1 for loop in loops)
