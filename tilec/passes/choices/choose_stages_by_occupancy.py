"""Decision: fewer versions of tiles than loops may have, where that lets more blocks share a multiprocessor.

Within a block, versions let loads run early. Blocks of one multiprocessor hide each other's latencies, also at the
beginning and end of loops. Where no registers are moved between roles, which takes a multiprocessor whole, the model of
`cost.estimate` weighs one against the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from tilec.analysis.rings import is_pipelined
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.tile import For, Stmt
from tilec.passes.choices.question import Candidate, Outcome, Question, QuestionGenerator, ask_question
from tilec.passes.cost.estimate import DoesNotFit, StageOption, estimate_registers, predict_by_stages
from tilec.passes.cost.kernel import read_occupancy_limits
from tilec.passes.cost.model import count_ctas_by_resource
from tilec.passes.cost.report import Report, build_report, count_versions_under_way
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.passes.scheduling.solve_loops import plan_loops
from tilec.passes.state import Exploration, Explorer, KernelState
from tilec.support.diagnostics import CompileError
from tilec.support.display import show_share
from tilec.support.identity import IdentityKey
from tilec.target.table import Target

LEAST_GAIN = Fraction(1, 10)
"""The fraction of the predicted cycles to save: the model's numbers are not measured, and a smaller difference says
little."""
MIN_STAGES = 2


def choose_stages_by_occupancy(state: KernelState, explore: Explorer) -> QuestionGenerator[KernelState]:
    """Use fewer tile versions where more blocks then share a multiprocessor and that pays."""
    if state.assignment.form != "unspecialised" or state.search.explored is not None:
        return state
    planned = plan_loops(state, explore)
    question = _ask_for_stages(planned.assignment, [p.scheduled for p in planned.loops], planned.target)
    if question is not None:
        assignment = (yield from ask_question(question)).value
        if assignment is not planned.assignment:
            return plan_loops(replace(state, layouts=assignment), explore)
    closer = _ask_for_versions(state, planned, explore)
    return planned if closer is None else (yield from ask_question(closer)).value


def _ask_for_stages(
    assignment: LayoutAssignment, planned: Sequence[ScheduledLoop], target: Target
) -> Question[LayoutAssignment] | None:
    """Ask whether the kernel has fewer versions than these schedules take; None where a schedule is manual, or where
    the model has no price."""
    if assignment.form != "unspecialised" or not planned or any(one.loop.loop.stage is not None for one in planned):
        return None
    try:
        rooms = {room.stages: room for room in predict_by_stages(assignment, target)}
    except DoesNotFit:
        return None
    taken = max(map(count_versions_under_way, planned))
    fewer = [stages for stages in sorted(rooms) if MIN_STAGES <= stages < taken]
    if taken not in rooms or not fewer:
        return None
    cycles = {IdentityKey(assignment): rooms[taken].predicted.cycles}

    def limit_stages(stages: int) -> LayoutAssignment:
        """Return the kernel with at most this many stages a loop, and record its predicted cycles."""
        body = rewrite_statements(assignment.kernel.body, lambda stmt: _limit_loop_stages(stmt, stages))
        made = replace(assignment, kernel=replace(assignment.kernel, body=body))
        cycles[IdentityKey(made)] = rooms[stages].predicted.cycles
        return made

    def explain_outcome(outcome: Outcome) -> str:
        """Return why so many stages were chosen, in words."""
        best, now = rooms[int(outcome.chosen)], rooms[taken]
        if best is now:
            return "the model predicts less than a tenth saved with fewer stages"
        gain = 1 - best.predicted.cycles / now.predicted.cycles
        blocks = f"{best.together} blocks share a multiprocessor; {taken} stages leave room for {now.together}"
        return f"{blocks}: {show_share(gain)} less time by the model"

    return Question(
        "stages",
        (
            Candidate(str(taken), lambda: assignment, "--no-stages-by-occupancy"),
            *(Candidate(str(stages), partial(limit_stages, stages)) for stages in fewer),
        ),
        price=lambda made: cycles[IdentityKey(made)],
        explain=explain_outcome,
        least_gain=LEAST_GAIN,
    )


def _ask_for_versions(state: KernelState, planned: KernelState, explore: Explorer) -> Question[KernelState] | None:
    """Ask whether the loops get by with the shared memory that one more block of the multiprocessor leaves them: an
    asynchronous product keeps a version of its tiles beyond the loop's stages. None where something else than shared
    memory limits the blocks, or where the tiles do not fit into so little."""
    if not planned.loops or any(loop.loop.loop.stage is not None for loop in planned.loops):
        return None
    fits = count_fitting_blocks(planned)
    together = fits.pop("shared memory")
    if not 0 < together < min(fits.values()):
        return None
    limits = read_occupancy_limits(state.target)
    share = limits.smem_bytes // (together + 1) // limits.smem_allocation_bytes * limits.smem_allocation_bytes
    closer = state.target.with_limit("smem_bytes_per_cta", share - limits.smem_reserved_bytes_per_cta)
    roomier = Exploration(roomier=planned.loops)
    try:
        fewer = replace(plan_loops(replace(state, target=closer), explore, roomier), target=state.target)
    except CompileError:
        return None
    if count_fitting_blocks(fewer)["shared memory"] <= together:
        return None
    now = Candidate("as many as the schedule asks for", lambda: planned, "--no-stages-by-occupancy")
    room = Candidate(f"as many as leave room for {together + 1} blocks", lambda: fewer)

    def explain_outcome(outcome: Outcome) -> str:
        """Return why the loops have so many versions, in words."""
        if outcome.chosen == room.answer:
            return f"{together + 1} blocks share a multiprocessor instead of {together}"
        return f"room for {together + 1} blocks instead of {together} saves less than a tenth by the model"

    return Question("versions", (now, room), price=_predict_cycles, explain=explain_outcome, least_gain=LEAST_GAIN)


def _count_planned_bytes(planned: KernelState) -> int:
    """Return the bytes of shared memory of a block: its tiles, with the versions that the loops' schedules take."""
    tiles = {name: layout.bytes for name, layout in planned.assignment.shared.items()}
    for loop in planned.loops:
        for ring, depth in zip(loop.loop.problem.rings, loop.solution.schedule.depth, strict=True):
            if loop.loop.problem.pools[ring.pool].name == "smem":
                tiles[ring.name] = ring.bytes * depth
    return sum(tiles.values())


def count_fitting_blocks(planned: KernelState) -> dict[str, int]:
    """Return how many blocks each resource of a multiprocessor has room for."""
    assignment, target = planned.assignment, planned.target
    return count_ctas_by_resource(
        _count_planned_bytes(planned),
        estimate_registers(assignment, target),
        assignment.block_threads,
        read_occupancy_limits(target),
    )


def report_planned_kernel(planned: KernelState) -> Report:
    """Predict the time of a kernel with scheduled loops that is not emitted yet."""
    assignment, target = planned.assignment, planned.target
    extents = [extent for extent in assignment.kernel.grid if isinstance(extent, int)]
    x, y, z = (*extents, 1, 1, 1)[:3]
    return build_report(
        assignment,
        [loop.scheduled for loop in planned.loops],
        target,
        (x, y, z) if len(extents) == len(assignment.kernel.grid) else None,
        assignment.block_threads,
        _count_planned_bytes(planned),
        estimate_registers(assignment, target),
    )


def _predict_cycles(planned: KernelState) -> int:
    """Return the predicted cycles of a kernel with scheduled loops."""
    report = report_planned_kernel(planned)
    return report.scale_to_clock(report.predicted)


def choose_expected_stages(rooms: Sequence[StageOption]) -> StageOption:
    """Return the option that a loop is expected to be built with, before it is solved: the most stages, or fewer where
    that pays."""
    return _choose_fewer_stages(rooms, max(rooms, key=lambda room: room.stages))


def _choose_fewer_stages(rooms: Iterable[StageOption], now: StageOption) -> StageOption:
    """Return the cheapest option with fewer stages than `now` if it pays, else `now`."""
    fewer = (room for room in rooms if MIN_STAGES <= room.stages < now.stages)
    best = min(fewer, key=lambda room: room.predicted.cycles, default=now)
    return best if best.predicted.cycles <= (1 - LEAST_GAIN) * now.predicted.cycles else now


def _limit_loop_stages(stmt: Stmt, stages: int) -> Stmt:
    """Return a pipelined loop with at most this many stages; any other statement as it is."""
    if not isinstance(stmt, For) or not is_pipelined(stmt):
        return stmt
    return replace(stmt, num_stages=min(stmt.num_stages or stages, stages))
