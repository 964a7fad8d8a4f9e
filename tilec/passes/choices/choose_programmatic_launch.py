"""Decision: programmatic dependent launch, that is whether a kernel may begin while the one before it in the stream
still runs (`lower.insert_programmatic_launch`).

What the kernel does before it waits is done earlier then. But its threads load tensors coherently, since the kernel
before may have written them a moment ago, and the assembler moves no such load over a barrier. Where threads load in
each iteration of a loop, the wait shows; so both are priced. Without such loads it is a rule."""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.rings import find_pipelined_loops
from tilec.analysis.trip_count import estimate_trip_count, get_static_trip_count
from tilec.ir.tile import Parallel, Stmt, TileOp, walk_statements
from tilec.ops.synchronisation.barriers import AllocBarrier
from tilec.ops.synchronisation.rendezvous import Rendezvous
from tilec.passes.choices.question import Candidate, Question, make_ruled_question
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import is_bulk_load
from tilec.passes.loop.price.statement_price import count_demands, is_asynchronous
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
    waiting = _count_waiting_cycles(assignment, target)
    if not waiting:
        return make_ruled_question("programmatic dependent launch", "the compiler", why, yes, no)
    reasons = {"yes": why, "no": "in a loop threads load tensors, which could not be done ahead of its barriers"}
    return Question(
        "programmatic dependent launch",
        (yes, replace(no, make=lambda: replace(assignment, begins_early=False))),
        price=lambda made: waiting if made.begins_early else target.find_limit("launch_cycles"),
        explain=lambda outcome: reasons[outcome.chosen],
    )


def _count_waiting_cycles(assignment: LayoutAssignment, target: Target) -> int:
    """Return for how many cycles a block waits for what its threads load in pipelined loops, if no load begins before
    its iteration."""
    kernels = [one.kernel for one in assignment.kernels]
    loops = (loop for kernel in kernels for loop in find_pipelined_loops(kernel.body))
    return sum(
        (get_static_trip_count(loop) or estimate_trip_count(loop))
        * max((_count_load_latency(stmt, assignment, target) for stmt in loop.body), default=0)
        for loop in loops
    )


def _count_load_latency(stmt: Stmt, assignment: LayoutAssignment, target: Target) -> int:
    """Return the longest latency of what the threads load from tensors in a statement; 0 without such loads."""
    if not isinstance(stmt, TileOp | Parallel) or is_asynchronous(stmt):
        return 0
    if isinstance(stmt, Parallel) and stmt.asynchronous:
        return 0
    demands = (d for d in count_demands(stmt, assignment) if d.kind == "ld.global")
    return max((target.price(d.kind, **dict(d.parameters)).latency for d in demands), default=0)
