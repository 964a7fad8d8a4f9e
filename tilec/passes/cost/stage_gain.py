"""The gain of more stages: the predicted time of a scheduled kernel with more versions of its loaded tiles.

Nothing is solved again. A loop whose loads are too late gets a shorter interval, its lower bound with deeper rings, and
the memory levels get as many versions. All other decisions stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilec.ir.rewrite import rewrite_statements
from tilec.ir.tile import For, Stmt
from tilec.passes.cost.estimate import find_most_stages
from tilec.passes.cost.kernel import REREAD, BlockWalk, build_loop_nest, build_machine, find_innermost_loops
from tilec.passes.cost.launch_time import LaunchTimer, list_launch_forms
from tilec.passes.cost.model import PING_PONG_CYCLES
from tilec.passes.grid.persistent import replace_dynamic_by_static_stride
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import BARRIER_BYTES, MAX_VERSIONS, PlannedLoop, loops_to_schedule
from tilec.sched.lower_bounds.bounds import compute_bounds
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.target.table import Target

LEAST_GAIN = 0.1
"""The least share of the predicted time that more stages must save. On an H200 such a prediction is right in nine of
ten cases (docs/tuning.md)."""
NEXT_GAIN = 0.02
"""The least share of the time as written that each further stage must save."""
_FIXED_BOUNDS = ("slot", "role", "recurrence")
"""The lower bounds of an interval that do not depend on the number of versions, if there are several."""


@dataclass(frozen=True, slots=True)
class StageGain:
    """A larger number of `stages`, the `share` of the predicted time that it saves, and the shared memory of a block
    with it."""

    stages: int
    share: float
    smem_bytes: int


def find_stage_gain(assignment: LayoutAssignment, planned: Sequence[PlannedLoop], target: Target) -> StageGain | None:
    """Return the number of stages beyond which no further one pays, if it saves enough; else None.

    The kernel must have a producer warp, the same number of stages in all innermost loops, and a known grid. What
    stages do to blocks of other kernels, which hide each other's loads, is predicted less well; and a grid that leaves
    most multiprocessors idle says little about the sizes that a kernel is written for.
    """
    assignment = replace(assignment, kernel=replace_dynamic_by_static_stride(assignment.kernel, target))
    loops = find_innermost_loops(assignment)
    extents = [extent for extent in assignment.kernel.grid if isinstance(extent, int)]
    is_known = len(extents) == len(assignment.kernel.grid)
    if assignment.form != "warp_specialised" or not is_known or 2 * prod(extents) < target.limit("sms"):
        return None
    if len(counts := {loop.num_stages for loop in loops}) != 1:
        return None
    (now,) = counts
    if not now or not _may_pay(assignment, loops, planned, target):
        return None
    found, times = None, [0]
    for stages in range(now + 1, MAX_VERSIONS + 1):
        smem_bytes = max(_count_smem_bytes(one, stages) for one in planned)
        staged = _fit_stages(assignment, target, stages)
        if staged is None or smem_bytes > min(one.loop.problem.pools[0].capacity for one in planned):
            break
        if found is None:
            times = [_predict_cycles(assignment, planned, target, now)]
        times.append(_predict_cycles(staged, planned, target, stages))
        if times[-2] - times[-1] < NEXT_GAIN * times[0]:
            break
        found = StageGain(stages, 1 - times[-1] / times[0], smem_bytes)
    return found if found is not None and found.share >= LEAST_GAIN else None


def _may_pay(
    assignment: LayoutAssignment, loops: Sequence[For], planned: Sequence[PlannedLoop], target: Target
) -> bool:
    """Return whether only its rings hold up a loop, which would save `LEAST_GAIN` of an iteration if its loads were
    never late. This is much cheaper than a prediction."""
    waiting = {IdentityKey(one.loop.loop): one for one in planned if _is_held_by_rings(one)}
    walk, sms = BlockWalk(assignment, target, loops), target.limit("sms")
    for loop in loops:
        if (one := waiting.get(IdentityKey(loop))) is None:
            continue
        fixed = (bound.ii for bound in one.solution.bounds.each if bound.kind in _FIXED_BOUNDS)
        least = max(fixed, default=1) if find_most_stages(loop) > 1 else 1
        for bytes_read in (0, REREAD):  # of each byte of a tensor, perhaps often enough for the faster rate of L2
            nest = build_loop_nest(walk, loop, 1, 1, sms, build_machine(target, bytes_read))
            level = nest.levels[0]
            late = (level.latency + level.transfer + nest.own) // find_most_stages(loop)
            then, now = max(nest.use, level.transfer, least), max(late, one.solution.schedule.ii)
            if then <= (1 - LEAST_GAIN) * now:
                return True
    return False


def _is_held_by_rings(planned: PlannedLoop) -> bool:
    """Return whether only the number of versions keeps a loop from a shorter interval. With one version each iteration
    waits for its loads."""
    solution = planned.solution
    is_fixed = any(bound.kind in _FIXED_BOUNDS for bound in solution.bounds.binding)
    return planned.loop.loop.num_stages == 1 or (solution.schedule.ii == solution.bounds.mii and not is_fixed)


def _fit_stages(assignment: LayoutAssignment, target: Target, stages: int) -> LayoutAssignment | None:
    """Return the kernel with so many stages in each loop; None if they do not fit."""

    def set_stages(stmt: Stmt) -> Stmt:
        """Return a loop that has stages with this number of them; other statements unchanged."""
        return replace(stmt, num_stages=stages) if isinstance(stmt, For) and stmt.num_stages else stmt

    body = rewrite_statements(assignment.kernel.body, set_stages)
    staged = replace(assignment, kernel=replace(assignment.kernel, body=body))
    forms = list_launch_forms(staged, target)
    return staged if forms and forms[-1].stages >= stages else None


def _predict_cycles(assignment: LayoutAssignment, planned: Sequence[PlannedLoop], target: Target, stages: int) -> int:
    """Return the predicted cycles of a launch whose loops have this number of stages."""
    intervals = {one.loop.loop.var: _count_interval(one, stages) for one in planned}
    loops = (loop for loop in loops_to_schedule(assignment) if loop.var in intervals)
    by_loop = {IdentityKey(loop): intervals[loop.var] for loop in loops}
    form, _ = list_launch_forms(assignment, target)  # a persistent grid is part of the kernel already
    return LaunchTimer(assignment, target, by_loop).predict_cycles(form)


def _count_interval(planned: PlannedLoop, stages: int) -> int:
    """Return the cycles between iterations with rings of so many versions: less than now by as much as the lower bound
    is. Warpgroups that alternate take longer than their schedule."""
    now, more = planned.solution.schedule.ii, PING_PONG_CYCLES if planned.loop.groups > 1 else 0
    problem, most = planned.loop.problem, planned.loop.loop.num_stages
    if stages == most or not _is_held_by_rings(planned):
        return now + more
    rings = tuple(replace(ring, max_depth=stages) if ring.max_depth == most else ring for ring in problem.rings)
    saved = compute_bounds(problem).mii - compute_bounds(replace(problem, rings=rings)).mii
    return now - max(saved, 0) + more


def _count_smem_bytes(planned: PlannedLoop, stages: int) -> int:
    """Return the shared memory of a block whose rings have `stages` versions where they have as many as they may now,
    and the barriers of these."""
    problem, now = planned.loop.problem, planned.loop.loop.num_stages
    rings = sum(
        ring.bytes * (stages if versions == now else versions)
        for ring, versions in zip(problem.rings, planned.solution.schedule.depth, strict=True)
    )
    barriers = 2 * BARRIER_BYTES * len(problem.rings) * (stages - (now or stages))
    return problem.pools[0].reserved + rings + barriers
