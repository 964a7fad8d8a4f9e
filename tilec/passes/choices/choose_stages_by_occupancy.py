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
from tilec.passes.cost.estimate import DoesNotFit, StageOption, predict_by_stages
from tilec.passes.cost.report import count_versions_under_way
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.passes.scheduling.solve_loops import plan_loops
from tilec.passes.state import Explorer, KernelState
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
    if question is None:
        return planned
    assignment = (yield from ask_question(question)).value
    return planned if assignment is planned.assignment else plan_loops(replace(state, layouts=assignment), explore)


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
