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

from tilec.ir.rewrite import rewrite
from tilec.ir.tile import For, Stmt
from tilec.passes.analysis.rings import is_pipelined
from tilec.passes.choices.question import Candidate, Outcome, Question
from tilec.passes.cost.estimate import Refused, Room, by_stages
from tilec.passes.cost.report import versions
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.build_problem import Scheduled
from tilec.support.identity import Same
from tilec.support.shares import show_share
from tilec.target.table import Target

LEAST_GAIN = Fraction(1, 10)
"""The fraction of the predicted cycles to save: the model's numbers are not measured, and a smaller difference says
little."""
LEAST_STAGES = 2


def question(
    assignment: LayoutAssignment, planned: Sequence[Scheduled], target: Target
) -> Question[LayoutAssignment] | None:
    """Ask whether the kernel has fewer versions than these schedules take; None where a schedule is manual, or where
    the model has no price."""
    if assignment.form != "unspecialised" or not planned or any(one.loop.loop.stage is not None for one in planned):
        return None
    try:
        rooms = {room.stages: room for room in by_stages(assignment, target)}
    except Refused:
        return None
    taken = max(map(versions, planned))
    fewer = [stages for stages in sorted(rooms) if LEAST_STAGES <= stages < taken]
    if taken not in rooms or not fewer:
        return None
    cycles = {Same(assignment): rooms[taken].predicted.cycles}

    def at_most(stages: int) -> LayoutAssignment:
        body = rewrite(assignment.kernel.body, lambda stmt: _at_most(stmt, stages))
        made = replace(assignment, kernel=replace(assignment.kernel, body=body))
        cycles[Same(made)] = rooms[stages].predicted.cycles
        return made

    def explain(outcome: Outcome) -> str:
        best, now = rooms[int(outcome.chosen)], rooms[taken]
        if best is now:
            return "by the model no fewer would save a tenth of the time"
        gain = 1 - best.predicted.cycles / now.predicted.cycles
        blocks = f"{best.together} blocks share a multiprocessor, where {taken} stages leave room for {now.together}"
        return f"{blocks}: {show_share(gain)} less time by the model"

    return Question(
        "stages",
        (
            Candidate(str(taken), lambda: assignment, "--no-stages-by-occupancy"),
            *(Candidate(str(stages), partial(at_most, stages)) for stages in fewer),
        ),
        price=lambda made: cycles[Same(made)],
        explain=explain,
        least_gain=LEAST_GAIN,
    )


def expected(rooms: Sequence[Room]) -> Room:
    """Return the option that a loop is expected to be built with, before it is solved: the most stages, or fewer where
    that pays."""
    return _preferred(rooms, max(rooms, key=lambda room: room.stages))


def _preferred(rooms: Iterable[Room], now: Room) -> Room:
    """Return the cheapest option with fewer stages than `now` if it pays, else `now`."""
    fewer = (room for room in rooms if LEAST_STAGES <= room.stages < now.stages)
    best = min(fewer, key=lambda room: room.predicted.cycles, default=now)
    return best if best.predicted.cycles <= (1 - LEAST_GAIN) * now.predicted.cycles else now


def _at_most(stmt: Stmt, stages: int) -> Stmt:
    if not isinstance(stmt, For) or not is_pipelined(stmt):
        return stmt
    return replace(stmt, num_stages=min(stmt.num_stages or stages, stages))
