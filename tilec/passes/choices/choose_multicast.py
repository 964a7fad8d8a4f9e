"""Decision: the loads that the blocks of a cluster share (`memory.multicast`). It is a rule: in a given cluster blocks
load less, and do nothing more."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.tile import walk_statements
from tilec.passes.choices.question import Candidate, QuestionGenerator, ask_question, make_ruled_question
from tilec.passes.grid.cta_pair_products import is_paired
from tilec.passes.memory.load_footprints import find_load_footprints
from tilec.passes.memory.multicast import mark_multicast
from tilec.passes.state import KernelState


def choose_multicast(state: KernelState) -> QuestionGenerator[KernelState]:
    """Let the blocks of a cluster share loads, unless their tensor cores multiply together."""
    if any(map(is_paired, walk_statements(state.assignment.kernel.body))):
        return state
    assignment = mark_multicast(state.assignment, enabled=state.options.multicast)
    if assignment.kernel.cluster.blocks == 1:
        return replace(state, layouts=assignment)
    each = Candidate("none", lambda: replace(state, layouts=assignment), "--no-multicast")
    if not state.options.multicast:
        return (
            yield from ask_question(make_ruled_question("multicast", "the command line", "--no-multicast", each))
        ).value
    found = dict.fromkeys((load.tile, load.shared) for load in find_load_footprints(assignment.kernel) if load.shared)
    if not found:
        why = "no blocks of a cluster load the same tile at the same time"
        return (yield from ask_question(make_ruled_question("multicast", "the compiler", why, each))).value
    chosen = ", ".join(f"{name} along {' and '.join(axes)}" for name, axes in found)
    slices = Candidate(chosen, lambda: replace(state, layouts=assignment), "--multicast")
    why = "each block loads a slice, for all that need the tile"
    return (yield from ask_question(make_ruled_question("multicast", "the compiler", why, slices, each))).value
