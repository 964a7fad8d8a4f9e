"""Decision: programmatic dependent launch, that is whether a kernel may begin while the one before it in the stream
still runs (`lower.insert_programmatic_launch`). It is a rule: what the kernel does before it waits would otherwise be
done later."""

from __future__ import annotations

from tilec.ir.tile import TileOp, walk_statements
from tilec.ops.synchronisation.barriers import AllocBarrier
from tilec.ops.synchronisation.rendezvous import Rendezvous
from tilec.passes.choices.question import Candidate, Question, make_ruled_question
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import is_bulk_load
from tilec.sched.decision import Decider
from tilec.support.options import DECIDING_LEVEL, CompileOptions
from tilec.target.table import Target


def choose_programmatic_launch(
    assignment: LayoutAssignment, target: Target, options: CompileOptions
) -> Question[LayoutAssignment]:
    """Decide whether the kernel starts while the kernel before it ends.

    A pass over the warp program carries the answer out.
    """
    operations = [s for one in assignment.kernels for s in walk_statements(one.kernel.body) if isinstance(s, TileOp)]
    rendezvous = {s.what for s in operations if isinstance(s, Rendezvous)}
    has_barriers = any(isinstance(s, AllocBarrier) or is_bulk_load(s) for s in operations)
    yes, no = (Candidate(word, lambda: assignment, option) for word, option in (("yes", "--pdl"), ("no", "--no-pdl")))

    def rule_out(why: str, by: Decider = "the compiler") -> Question[LayoutAssignment]:
        return make_ruled_question("programmatic dependent launch", by, why, no)

    if rendezvous & {"pdl_sync", "pdl_trigger"}:
        return make_ruled_question("programmatic dependent launch", "the kernel", "T.pdl_sync, T.pdl_trigger", yes)
    if not options.pdl:
        return rule_out("--no-pdl", "the command line")
    if not target.has("dependent_launch"):
        return rule_out(f"{target.name} has no dependent launch")
    if "sync_grid" in rendezvous:
        return rule_out("all blocks of its grid must run at the same time")
    if not has_barriers:
        return rule_out("it has no barriers or tensor maps to set up before its first loads")
    if options.opt_level < DECIDING_LEVEL:
        return rule_out(f"not at -O{options.opt_level}")
    why = "its barriers and tensor maps are set up while the previous kernel ends"
    return make_ruled_question("programmatic dependent launch", "the compiler", why, yes, no)
