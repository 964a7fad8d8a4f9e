"""Decision: programmatic dependent launch, that is whether a kernel may begin while the one before it in the stream
still runs (`lower.programmatic_launch`). It is a rule: what the kernel does before it waits would otherwise be done
later."""

from __future__ import annotations

from typing import TypeVar

from tilec.ir.tile import TileOp, walk
from tilec.ops.barriers import AllocBarrier
from tilec.ops.rendezvous import Rendezvous
from tilec.passes.choices.question import Candidate, Question, ruled
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import is_bulk_load
from tilec.sched.decision import Decider
from tilec.support.options import MAY_DECIDE, CompileOptions
from tilec.target.table import Target

T = TypeVar("T")


def question(assignment: LayoutAssignment, target: Target, options: CompileOptions, kept: T) -> Question[T]:
    """Ask for dependent launch. `kept` is the value of either answer: a pass over the warp program carries it out."""
    operations = [s for one in assignment.kernels for s in walk(one.kernel.body) if isinstance(s, TileOp)]
    rendezvous = {s.what for s in operations if isinstance(s, Rendezvous)}
    has_barriers = any(isinstance(s, AllocBarrier) or is_bulk_load(s) for s in operations)
    yes, no = (Candidate(word, lambda: kept, option) for word, option in (("yes", "--pdl"), ("no", "--no-pdl")))

    def never(why: str, by: Decider = "the compiler") -> Question[T]:
        return ruled("programmatic dependent launch", by, why, no)

    if rendezvous & {"pdl_sync", "pdl_trigger"}:
        return ruled("programmatic dependent launch", "the kernel", "T.pdl_sync, T.pdl_trigger", yes)
    if not options.pdl:
        return never("--no-pdl", "the command line")
    if not target.has("dependent_launch"):
        return never(f"{target.name} has no dependent launch")
    if "sync_grid" in rendezvous:
        return never("all blocks of its grid must run at the same time")
    if not has_barriers:
        return never("it begins with its loads, and has nothing to do before them")
    if options.opt_level < MAY_DECIDE:
        return never(f"not at -O{options.opt_level}")
    why = "its barriers and tensor maps are made ready while the kernel before it ends"
    return ruled("programmatic dependent launch", "the compiler", why, yes, no)
