"""Decision: whether iterations of a role overlap. It is a rule: a role that may begin an iteration early has no longer
interval."""

from __future__ import annotations

from tilec.passes.analysis.rings import find_pipelined_loops
from tilec.passes.choices.question import Candidate, Question, QuestionGenerator, ask_question, make_ruled_question
from tilec.passes.state import KernelState


def choose_overlap(state: KernelState) -> QuestionGenerator[KernelState]:
    """Decide whether statements of two iterations may interleave within a role."""
    question = _ask_for_overlap(state)
    return state if question is None else (yield from ask_question(question)).value


def _ask_for_overlap(state: KernelState) -> Question[KernelState] | None:
    """Ask whether a role begins an iteration before it has ended the last one; None where there are no roles. The
    solver carries the answer out."""
    assignment, options = state.assignment, state.options
    if assignment.form != "warp_specialised" or assignment.roles or not find_pipelined_loops(assignment.kernel.body):
        return None
    in_order = Candidate("no", lambda: state, "--no-overlap")
    if not options.overlap:
        return make_ruled_question("overlap", "the command line", "--no-overlap", in_order)
    mixed = Candidate("yes", lambda: state, "--overlap")
    why = "a role may compute in an iteration before it is done with the last one"
    return make_ruled_question("overlap", "the compiler", why, mixed, in_order)
