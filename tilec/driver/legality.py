"""Find all errors of a kernel's pipelined loops in one run, before anything is solved.

An erroneous statement is left out, and the rest is checked without it: each error is reported once, and errors that
follow from another are not reported.
"""

from __future__ import annotations

from tilec.driver.refusals import footprint, over_ceiling
from tilec.ir.tile import TileOp, walk
from tilec.ops.refused import is_refused
from tilec.passes.analysis.usage import writes
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.annotate import given_schedule
from tilec.passes.loop.build_problem import LoopProblem, Scheduled, loops_to_schedule, problems
from tilec.passes.memory.shared_limits import check_without_loops
from tilec.sched.bounds import Unschedulable, bounds
from tilec.sched.schedule import Schedule
from tilec.support.diagnostics import AT_ONCE, Label, Mistakes, fail
from tilec.support.options import Switches
from tilec.target.table import Target


def check_loops(assignment: LayoutAssignment, target: Target, switches: Switches, mistakes: Mistakes) -> None:
    """Check the pipelined loops, inner ones first."""
    decided: list[Scheduled] = []
    loops = loops_to_schedule(assignment)
    if not loops and not assignment.roles and not switches.unlimited_smem:
        with mistakes.caught():
            check_without_loops(assignment, target)
    while ready := problems(assignment, target, decided, unlimited_smem=switches.unlimited_smem, mistakes=mistakes):
        for loop in ready:
            check_ceilings(loop, target, mistakes)
            if not _has_lost_a_tile(loop):
                given_schedule(loop, mistakes)
        if len(decided) + len(ready) == len(loops):
            return
        # Outer loops have a problem only once inner ones are scheduled; any schedule will do to check their hints.
        try:
            decided += [Scheduled(loop, _any_schedule(loop)) for loop in ready]
        except Unschedulable:
            return


def _has_lost_a_tile(loop: LoopProblem) -> bool:
    """Return whether a refused statement fills a shared tile of the loop: its number of versions is then unknown."""
    lost = (s for s in walk(loop.loop.body) if isinstance(s, TileOp) and is_refused(s))
    return any(b.scope == "shared" for s in lost for b in writes(s))


def _any_schedule(loop: LoopProblem) -> Schedule:
    from tilec.sched.heuristic import serial  # most kernels do not need it
    from tilec.sched.objective import make

    ii, start = serial(loop.problem, bounds(loop.problem).mii)
    return make(loop.problem, ii, start, "feasible")


def check_ceilings(loop: LoopProblem, target: Target, mistakes: Mistakes = AT_ONCE) -> None:
    """Raise if a chain of dependences takes longer than the target's calibration allows."""
    refusal = over_ceiling(loop.problem, target.ceilings)
    if refusal is None:
        return
    ops = loop.problem.ops
    notes = tuple(f"{ops[op].place}: {ops[op].name} holds {footprint(loop.problem, ops[op])}" for op in refusal.ops)
    involved = tuple(Label(loop.statements[op].span) for op in refusal.ops)
    title = f"no schedule exists: {refusal.text}"
    with mistakes.caught():
        fail("unschedulable", title, loop.loop.span, secondary=involved, notes=notes)
