"""schedule-not-proven: the solver ended with a schedule that may not be optimal."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import SCHEDULE, register_warning
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, Label


@register_warning(SCHEDULE)
def find_unproven_schedules(work: KernelState) -> Iterator[Diagnostic]:
    for planned in work.loops:
        if planned.solution.warning is not None:
            label = Label(planned.loop.loop.span)
            helped = "search longer, with a larger --search-budget" if planned.solution.is_cut else None
            yield Diagnostic("schedule-not-proven", planned.solution.warning, label, help=helped, severity="warning")
