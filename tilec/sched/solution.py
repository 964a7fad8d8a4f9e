"""What solving a problem yields: the schedule, and the record of why there is no better one.

Nothing in here depends on the machine's speed or load: the same problem gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tilec.sched.bounds import Bounds
from tilec.sched.schedule import Schedule
from tilec.support.records import dataclass

LEVELS = (
    "stages",
    "pipe-slot pressure",
    "ring bytes",
    "pressure in the iteration",
    "pressure across iterations",
    "inversions",
    "start times",
)
"""What is minimised once the II is fixed, in this order. `objective` says what each one means."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of an initiation interval. `how` is "bound" (no solver was needed; in the first attempt, every
    smaller II falls to the same argument), "solver", "heuristic" or "serial"; `why` names what refused it, in words.
    `effort` is the solver's deterministic time in millionths of its unit, 0 where it was not asked. `families` are the
    constraints that together leave a refuted II no room, where they were told apart."""

    ii: int
    outcome: Literal["found", "refuted", "unknown"]
    how: Literal["bound", "solver", "heuristic", "serial"]
    why: str
    effort: int = 0
    families: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Objective:
    """One level of the objective at the schedule's II. `proven`: no schedule that is equal on the levels before does
    better on this one."""

    name: str
    value: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """The II that one arm of the heuristic scheduler reaches, None where it gave up."""

    arm: str
    ii: int | None


@dataclass(frozen=True, slots=True)
class Solution:
    """`attempts` in the order of rising II; `objectives` in the order in which they were settled. `trials` say what
    heuristics would have found, to compare; like the families of attempts they are only told to who asks (see
    `sched.explain`). `ii_by_rule`: where other roles were weighed against those by
    rule, these allow no smaller interval. `work` is what the search spent of its budget, and `is_cut` says that the
    budget ended it (see `sched.budget`). Where it is not yet `is_settled`, only the interval and the number of stages
    have been looked at (`solve.smallest`)."""

    schedule: Schedule
    bounds: Bounds
    attempts: tuple[Attempt, ...]
    objectives: tuple[Objective, ...]
    trials: tuple[Trial, ...] = ()
    ii_by_rule: int | None = None
    work: int = 0
    is_cut: bool = False
    is_settled: bool = True

    @property
    def warning(self) -> str | None:
        """What a user must be told about this schedule, if anything."""
        unknown = [(first, last) for first, last in self.ranges if last.outcome == "unknown"]
        ii = self.schedule.ii
        if self.schedule.status != "feasible" and not unknown:
            return None
        low = unknown[0][0].ii if unknown else self.bounds.mii
        percent = -(-100 * (ii - low) // low)
        doubt = (
            f"II {ii} is feasible but not proven optimal: none below {low} is possible, so at most {percent}% too large"
        )
        if not unknown:
            return f"{doubt}; no search was made in between"
        shown = ", ".join(span(*of) for of in unknown[:3]) + (" …" if len(unknown) > 3 else "")
        return f"{doubt}; the search ran out of {'its budget' if self.is_cut else 'effort'} at {shown}"

    @property
    def ranges(self) -> tuple[tuple[Attempt, Attempt], ...]:
        """The attempts with neighbours that met the same fate for the same reason put together: (first, last)."""
        return tuple((run[0], run[-1]) for run in _runs(self.attempts))


def span(first: Attempt, last: Attempt) -> str:
    """The intervals of a range in words."""
    return str(first.ii) if first.ii == last.ii else f"{first.ii}…{last.ii}"


def _runs(attempts: Sequence[Attempt]) -> Iterator[list[Attempt]]:
    run: list[Attempt] = []
    for attempt in attempts:
        if run and (run[-1].outcome, run[-1].how, run[-1].why) != (attempt.outcome, attempt.how, attempt.why):
            yield run
            run = []
        run.append(attempt)
    if run:
        yield run
