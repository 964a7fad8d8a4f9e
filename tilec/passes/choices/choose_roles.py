"""Decision: which warps load and which compute. It is a rule: a warp that only loads never delays those that
compute."""

from __future__ import annotations

from tilec.passes.analysis.rings import find_pipelined_loops
from tilec.passes.choices.question import Candidate, Question, make_ruled_question
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.options import CompileOptions


def choose_roles(assignment: LayoutAssignment, options: CompileOptions) -> Question[LayoutAssignment]:
    """Choose which warps load and which compute, within what layouts and mechanisms allow."""

    def keep_layouts() -> LayoutAssignment:
        return assignment

    if assignment.roles:
        names = ", ".join(part.name for part in assignment.roles)
        return make_ruled_question(
            "roles", "the kernel", "it says which threads run which statements", Candidate(names, keep_layouts)
        )
    if assignment.form == "warp_specialised":
        by_role = Candidate("producer, consumer", keep_layouts, "--pipeline-strategy warp-specialize")
        alike = Candidate("all warps alike", keep_layouts, "--pipeline-strategy unspecialize")
        return make_ruled_question("roles", "the compiler", "a warp of its own loads ahead by TMA", by_role, alike)
    loops = find_pipelined_loops(assignment.kernel.body)
    in_order = ", loops one iteration after the other" if loops and assignment.form == "serial" else ""
    alike = Candidate(f"all warps alike{in_order}", keep_layouts)
    if assignment.why_alike is not None:
        return make_ruled_question("roles", "the compiler", assignment.why_alike, alike)
    if options.pipeline_strategy == "auto":
        return make_ruled_question("roles", "the kernel", "its pass configuration", alike)
    return make_ruled_question("roles", "the command line", f"--pipeline-strategy {options.pipeline_strategy}", alike)
