"""Decisions: which warps load and which compute, and whether iterations of a role overlap. Both are rules: a warp that
only loads never delays those that compute, and a role that may begin an iteration early has no longer interval."""

from __future__ import annotations

from typing import TypeVar

from tilec.passes.analysis.rings import find_pipelined_loops
from tilec.passes.choices.question import Candidate, Question, make_ruled_question
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.options import CompileOptions

T = TypeVar("T")


def choose_roles(assignment: LayoutAssignment, options: CompileOptions, kept: T) -> Question[T]:
    """Ask which warps do what, as the layouts have it; `kept` is the value of the answer."""

    def keep_state() -> T:
        return kept

    if assignment.roles:
        names = ", ".join(part.name for part in assignment.roles)
        return make_ruled_question("roles", "the kernel", "it has explicit roles", Candidate(names, keep_state))
    if assignment.form == "warp_specialised":
        by_role = Candidate("producer, consumer", keep_state, "--pipeline-strategy warp-specialize")
        alike = Candidate("all warps alike", keep_state, "--pipeline-strategy unspecialize")
        return make_ruled_question("roles", "the compiler", "a producer warp prefetches tiles by TMA", by_role, alike)
    loops = find_pipelined_loops(assignment.kernel.body)
    in_order = ", loops one iteration after the other" if loops and assignment.form == "serial" else ""
    alike = Candidate(f"all warps alike{in_order}", keep_state)
    if assignment.why_alike is not None:
        return make_ruled_question("roles", "the compiler", assignment.why_alike, alike)
    if options.pipeline_strategy == "auto":
        return make_ruled_question("roles", "the kernel", "its pass configuration", alike)
    return make_ruled_question("roles", "the command line", f"--pipeline-strategy {options.pipeline_strategy}", alike)


def choose_overlap(assignment: LayoutAssignment, options: CompileOptions, kept: T) -> Question[T] | None:
    """Ask whether a role begins an iteration before it has ended the last one; None where there are no roles."""
    if assignment.form != "warp_specialised" or assignment.roles or not find_pipelined_loops(assignment.kernel.body):
        return None
    in_order = Candidate("no", lambda: kept, "--no-overlap")
    if not options.overlap:
        return make_ruled_question("overlap", "the command line", "--no-overlap", in_order)
    mixed = Candidate("yes", lambda: kept, "--overlap")
    why = "a role may start an iteration before it has finished the previous one"
    return make_ruled_question("overlap", "the compiler", why, mixed, in_order)
