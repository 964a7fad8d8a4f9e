"""Decision: the loads that the blocks of a cluster share (`memory.multicast`). It is a rule: in a given cluster blocks
load less, and do nothing more."""

from __future__ import annotations

from tilec.ir.tile import walk_statements
from tilec.passes.choices.question import Candidate, Question, make_ruled_question
from tilec.passes.grid.cta_pair_products import is_paired
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.load_footprints import find_load_footprints
from tilec.passes.memory.multicast import mark_multicast
from tilec.support.options import CompileOptions


def choose_multicast(assignment: LayoutAssignment, options: CompileOptions) -> Question[LayoutAssignment] | None:
    """Let the blocks of a cluster share loads, unless their tensor cores multiply together."""
    if assignment.kernel.cluster.blocks == 1 or any(map(is_paired, walk_statements(assignment.kernel.body))):
        return None
    marked = mark_multicast(assignment, enabled=options.multicast)
    each = Candidate("none", lambda: marked, "--no-multicast")
    if not options.multicast:
        return make_ruled_question("multicast", "the command line", "--no-multicast", each)
    found = dict.fromkeys((load.tile, load.shared) for load in find_load_footprints(marked.kernel) if load.shared)
    if not found:
        why = "no blocks of a cluster load the same tile at the same time"
        return make_ruled_question("multicast", "the compiler", why, each)
    chosen = ", ".join(f"{name} along {' and '.join(axes)}" for name, axes in found)
    slices = Candidate(chosen, lambda: marked, "--multicast")
    why = "each block loads one slice of the tile and multicasts it"
    return make_ruled_question("multicast", "the compiler", why, slices, each)
