"""What the model says of a kernel, as tables for the terminal: `tilec FILE --report`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from tilec.cli_tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilec.tune.report import Report


def report_tables(report: Report) -> Iterator[RenderableType]:
    time = report.microseconds(report.by_levels.cycles)
    what = "a full wave" if report.is_one_wave else f"{report.ctas:,} block{'s' * (report.ctas != 1)}"
    yield Text(f"{report.kernel} on {report.target}: {time:,.1f} µs predicted for {what}", "bold")
    table = plain_table("", "<what", "<predicted")
    table.show_header = False
    table.add_row("bound by", report.bound)
    least = report.microseconds(report.roofline)
    table.add_row("roofline", f"{least:,.1f} µs by {report.limit}; {report.achieved:.0%} of it achieved")
    if any(loop.ii is not None for loop in report.loops):
        by_schedule = report.microseconds(report.by_schedule.cycles)
        table.add_row("by schedules", f"{by_schedule:,.1f} µs")
    table.add_row("waves", f"{report.by_levels.waves:,}")
    fits = ", ".join(f"{count:,} by {name}" for name, count in report.fits)
    table.add_row("blocks of an SM", f"{report.together} ({fits})")
    yield table
    yield Text()
    levels = plain_table(
        "levels, in a full wave",
        "line",
        "<level",
        "latency",
        "transfer",
        "use",
        "trips",
        "stages",
        "cycles",
        "<bound by",
    )
    for loop in report.loops:
        for time_of in loop.levels:
            level = time_of.level
            numbers = (level.latency, level.transfer, time_of.use, level.trips, level.stages, time_of.cycles)
            levels.add_row(str(loop.line), level.name, *(f"{n:,}" for n in numbers), time_of.bound)
    if report.loops:
        yield levels
        yield Text()
