"""All that can be wrong with the pipelined loops of a kernel before they are solved, found in one run.

What is wrong is left out, and the rest is looked at as if it had not been there: a mistake is reported once, and so is
each other one that does not follow from it.
"""

from __future__ import annotations

from tilec.driver.refusals import footprint, over_ceiling
from tilec.ir.tile import TileOp, walk_statements
from tilec.ops.refused import is_refused
from tilec.passes.analysis.usage import find_writes
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.annotate import given_schedule
from tilec.passes.loop.build_problem import LoopProblem, Scheduled, loops_to_schedule, problems
from tilec.passes.memory.shared_limits import check_without_loops
from tilec.sched.bounds import Unschedulable, compute_bounds
from tilec.sched.schedule import Schedule
from tilec.support.diagnostics import RAISE_FIRST, ErrorCollector, Label, raise_error
from tilec.support.options import EnvironmentSwitches
from tilec.target.table import Target


def check_loops(
    assignment: LayoutAssignment, target: Target, switches: EnvironmentSwitches, mistakes: ErrorCollector
) -> None:
    """What pipelined loops ask for, inner ones first."""
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
        # Those around them have a problem once these are decided; anyhow, for what is asked of them by hand.
        try:
            decided += [Scheduled(loop, _any_schedule(loop)) for loop in ready]
        except Unschedulable:
            return


def _has_lost_a_tile(loop: LoopProblem) -> bool:
    """Whether something wrong fills a shared tile in it: how many versions that has is not known then."""
    lost = (s for s in walk_statements(loop.loop.body) if isinstance(s, TileOp) and is_refused(s))
    return any(b.scope == "shared" for s in lost for b in find_writes(s))


def _any_schedule(loop: LoopProblem) -> Schedule:
    from tilec.sched.heuristic import schedule_serially  # of no use to most kernels
    from tilec.sched.objective import make_schedule

    ii, start = schedule_serially(loop.problem, compute_bounds(loop.problem).mii)
    return make_schedule(loop.problem, ii, start, "feasible")


def check_ceilings(loop: LoopProblem, target: Target, mistakes: ErrorCollector = RAISE_FIRST) -> None:
    """Before anything is solved: a chain of dependences that takes longer than the calibration lets it."""
    refusal = over_ceiling(loop.problem, target.ceilings)
    if refusal is None:
        return
    ops = loop.problem.ops
    notes = tuple(f"{ops[op].place}: {ops[op].name} holds {footprint(loop.problem, ops[op])}" for op in refusal.ops)
    involved = tuple(Label(loop.statements[op].span) for op in refusal.ops)
    title = f"no schedule exists: {refusal.text}"
    with mistakes.caught():
        raise_error("unschedulable", title, loop.loop.span, secondary=involved, notes=notes)
