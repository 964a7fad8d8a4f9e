"""schedule-not-used: a person's schedule for a loop that runs serially."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import LAYOUT, register_warning
from tilec.ir.tile import For, walk_statements
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, make_warning


@register_warning(LAYOUT)
def find_unused_schedules(work: KernelState) -> Iterator[Diagnostic]:
    for loop in walk_statements(work.source_kernel.body) if work.assignment.form == "serial" else ():
        if isinstance(loop, For) and loop.stage is not None:
            yield make_warning(
                "schedule-not-used",
                "stage= and order= change nothing here",
                loop.span,
                "loops run serially at this optimisation level or with this strategy",
                help="compile with -O2 or -O3, and without --pipeline-strategy none",
            )
