"""What solving a problem yields: the schedule, and the record of why there is no better one.

Nothing in here depends on the machine's speed or load: the same problem gives the same bytes.
"""

from __future__ import annotations

from typing import Literal

from tilec.records import dataclass
from tilec.sched.bounds import Bounds
from tilec.sched.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of an initiation interval. `how` is "bound" (no solver was needed, and every smaller II falls to the
    same argument) or "solver"; `why` names what refused it, in words."""

    ii: int
    outcome: Literal["found", "refuted", "unknown"]
    how: Literal["bound", "solver", "serial"]
    why: str


@dataclass(frozen=True, slots=True)
class Objective:
    """One level of the objective at the schedule's II. `proven`: no schedule that is equal on the levels before does
    better on this one."""

    name: Literal["stages", "length", "ring bytes", "inversions", "start times"]
    value: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Solution:
    """`attempts` in the order of rising II; `objectives` in the order in which they were settled."""

    schedule: Schedule
    bounds: Bounds
    attempts: tuple[Attempt, ...]
    objectives: tuple[Objective, ...]

    @property
    def warning(self) -> str | None:
        """What a user must be told about this schedule, if anything."""
        unknown = [str(attempt.ii) for attempt in self.attempts if attempt.outcome == "unknown"]
        if not unknown:
            return None
        shown = ", ".join(unknown[:8]) + (" …" if len(unknown) > 8 else "")
        return f"II {self.schedule.ii} is feasible but not proven optimal: the search ran out of effort at II {shown}"
