"""Decision: whether iterations of a role overlap. It is a rule: a role that may begin an iteration early has no longer
interval."""

from __future__ import annotations

from tilec.analysis.rings import find_pipelined_loops
from tilec.passes.choices.question import Candidate, Question, make_ruled_question
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.options import CompileOptions


def choose_overlap(assignment: LayoutAssignment, options: CompileOptions) -> Question[LayoutAssignment] | None:
    """Decide whether statements of two iterations may interleave within a role.

    There is no question without roles. The solver carries the answer out.
    """
    if assignment.form != "warp_specialised" or assignment.roles or not find_pipelined_loops(assignment.kernel.body):
        return None
    in_order = Candidate("no", lambda: assignment, "--no-overlap")
    if not options.overlap:
        return make_ruled_question("overlap", "the command line", "--no-overlap", in_order)
    mixed = Candidate("yes", lambda: assignment, "--overlap")
    why = "a role may start an iteration before it has finished the previous one"
    return make_ruled_question("overlap", "the compiler", why, mixed, in_order)
