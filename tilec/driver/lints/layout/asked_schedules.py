"""schedule-not-used: schedules that a person gave to loops that are to run serially."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import LAYOUT, AfterLayout, warns
from tilec.ir.tile import For, walk
from tilec.support.diagnostics import Diagnostic, warning
from tilec.support.options import CompileOptions


@warns(LAYOUT)
def unused(seen: AfterLayout, _: CompileOptions) -> Iterator[Diagnostic]:
    for loop in walk(seen.kernel.body) if seen.laid.form == "serial" else ():
        if isinstance(loop, For) and loop.stage is not None:
            yield warning(
                "schedule-not-used",
                "stage= and order= change nothing here",
                loop.span,
                "loops run serially at this optimisation level or with this strategy",
                help="compile with -O2 or -O3, and without --pipeline-strategy none",
            )
