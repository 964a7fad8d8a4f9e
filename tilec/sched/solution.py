"""The result of solving a problem: the schedule, and the record of why no better one exists.

Nothing here depends on the machine's speed or load: the same problem gives the same bytes.
"""

from __future__ import annotations

from itertools import groupby
from typing import Literal

from tilec.sched.lower_bounds.bounds import Bounds
from tilec.sched.schedule import Schedule
from tilec.support.records import dataclass

LEVELS = (
    "stages", "pipe-slot pressure", "ring bytes", "pressure in the iteration", "pressure across iterations",
    "bank collisions", "inversions", "start times",
)  # fmt: skip
"""The levels minimised once the II is fixed, in this order. `objective` defines them."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one initiation interval. `how` is "bound" (no solver was needed; in the first attempt, every
    smaller II falls to the same argument), "solver", "heuristic" or "serial". `why` is the reason in words. `effort` is
    the solver's deterministic time in millionths of its unit, 0 without the solver. `families` are the constraints that
    together refute the II, where known."""

    ii: int
    outcome: Literal["found", "refuted", "unknown"]
    how: Literal["bound", "solver", "heuristic", "serial"]
    why: str
    effort: int = 0
    families: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Objective:
    """One level of the objective. `proven`: no schedule that is equal on the levels before is better."""

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
    """A schedule with its bounds and proofs. `attempts` are in the order of rising II; `objectives` in the order in
    which they were settled. `trials` are what heuristics would have found; like the families of attempts they are only
    filled in on request (see `sched.explain`). `ii_by_rule` is the smallest interval with roles by rule, where other
    roles were compared with them. `work` is what the search spent of its budget, and `is_cut` that the budget ended it
    (see `sched.budget`). Unless `is_settled`, only the interval and the number of stages have been optimised."""

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
    def most_excess(self) -> int:
        """Return by how many percent the II may be too large, rounded up; 0 if it is proven."""
        low = self._find_lowest_open()
        return -(-100 * (self.schedule.ii - low) // low)

    def _find_lowest_open(self) -> int:
        """Return the smallest II that may have a schedule: this one's if it is proven."""
        unknown = next((first for first, _ in self.ranges if first.outcome == "unknown"), None)
        if unknown is not None:
            return unknown.ii
        return self.bounds.mii if self.schedule.status == "feasible" else self.schedule.ii

    @property
    def warning(self) -> str | None:
        """Return the warning that the schedule may not be optimal, and by how much; None if nothing is open."""
        unknown = [(first, last) for first, last in self.ranges if last.outcome == "unknown"]
        ii, low = self.schedule.ii, self._find_lowest_open()
        if self.schedule.status != "feasible" and not unknown:
            return None
        doubt = (
            f"II {ii} is feasible but not proven optimal: none below {low} is possible, "
            f"so at most {self.most_excess}% too large"
        )
        if not unknown:
            return f"{doubt}; no search was made in between"
        shown = ", ".join(format_interval_range(*attempt_range) for attempt_range in unknown[:3])
        shown += " …" if len(unknown) > 3 else ""
        return f"{doubt}; the search ran out of {'its budget' if self.is_cut else 'effort'} at {shown}"

    @property
    def ranges(self) -> tuple[tuple[Attempt, Attempt], ...]:
        """Return (first, last) of each run of adjacent attempts with the same outcome and reason."""
        runs = groupby(self.attempts, lambda attempt: (attempt.outcome, attempt.how, attempt.why))
        return tuple((run[0], run[-1]) for run in (list(run) for _, run in runs))


def format_interval_range(first: Attempt, last: Attempt) -> str:
    """Return the IIs of consecutive attempts as text, such as `96` or `96…99`."""
    return str(first.ii) if first.ii == last.ii else f"{first.ii}…{last.ii}"
