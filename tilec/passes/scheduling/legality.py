"""Find all errors of a kernel's pipelined loops in one run, before anything is solved.

An erroneous statement is left out, and the rest is checked without it: each error is reported once, and errors that
follow from another are not reported.
"""

from __future__ import annotations

from tilec.analysis.usage import find_writes
from tilec.ir.tile import TileOp, walk_statements
from tilec.ops.placeholder import is_refused
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.annotate import build_manual_schedule
from tilec.passes.loop.build_problem import LoopProblem, ScheduledLoop, build_ready_problems, loops_to_schedule
from tilec.passes.memory.shared_limits import check_kernel_without_loops
from tilec.passes.scheduling.refusals import describe_footprint, find_exceeded_ceiling
from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds
from tilec.sched.schedule import Schedule
from tilec.support.diagnostics import RAISE_FIRST, ErrorCollector, Label, raise_error
from tilec.support.options import EnvironmentSwitches
from tilec.target.table import Target


def check_loops(
    assignment: LayoutAssignment, target: Target, switches: EnvironmentSwitches, mistakes: ErrorCollector
) -> None:
    """Record the errors of all pipelined loops, inner ones first, without solving their problems. In a kernel
    without loops, record tiles that do not fit into shared memory."""
    decided: list[ScheduledLoop] = []
    loops = loops_to_schedule(assignment)
    if not loops and not assignment.roles and not switches.unlimited_smem:
        with mistakes.caught():
            check_kernel_without_loops(assignment, target)
    while ready := build_ready_problems(
        assignment, target, decided, unlimited_smem=switches.unlimited_smem, mistakes=mistakes
    ):
        for loop in ready:
            check_ceilings(loop, target, mistakes)
            if not _has_refused_tile(loop):
                build_manual_schedule(loop, mistakes)
        if len(decided) + len(ready) == len(loops):
            return
        # Outer loops have a problem only once inner ones are scheduled; any schedule will do to check their hints.
        try:
            decided += [ScheduledLoop(loop, _make_serial_schedule(loop)) for loop in ready]
        except Unschedulable:
            return


def _has_refused_tile(loop: LoopProblem) -> bool:
    """Return whether a refused statement fills a shared tile of the loop: its number of versions is then unknown."""
    lost = (s for s in walk_statements(loop.loop.body) if isinstance(s, TileOp) and is_refused(s))
    return any(b.scope == "shared" for s in lost for b in find_writes(s))


def _make_serial_schedule(loop: LoopProblem) -> Schedule:
    """Return a legal schedule without overlap; raise `Unschedulable` if there is none."""
    from tilec.sched.heuristics.heuristic import schedule_serially  # most kernels do not need it
    from tilec.sched.objective import make_schedule

    ii, start = schedule_serially(loop.problem, compute_bounds(loop.problem).mii)
    return make_schedule(loop.problem, ii, start, "feasible")


def check_ceilings(loop: LoopProblem, target: Target, mistakes: ErrorCollector = RAISE_FIRST) -> None:
    """Record an error if a loop's longest chain of dependences takes more cycles than the target's ceilings allow."""
    refusal = find_exceeded_ceiling(loop.problem, target.ceilings)
    if refusal is None:
        return
    ops = loop.problem.ops
    notes = tuple(
        f"{ops[op].place}: {ops[op].name} holds {describe_footprint(loop.problem, ops[op])}" for op in refusal.ops
    )
    involved = tuple(Label(loop.statements[op].span) for op in refusal.ops)
    title = f"no schedule exists: {refusal.text}"
    with mistakes.caught():
        raise_error("unschedulable", title, loop.loop.span, secondary=involved, notes=notes)
