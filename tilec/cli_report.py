"""`tilec report FILE`: what the model says of a kernel, as tables for the terminal; and everything, as a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from tilec import files
from tilec.cli_commands import compile_options, input_files, kernel_options, target_names
from tilec.cli_console import reported, show, show_tables, usage
from tilec.cli_tables import plain_table
from tilec.cli_watch import watch_option, watched

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilec.tune.report import Report


@click.command()
@click.argument("file", metavar="FILE.tl")
@click.option(
    "--html", metavar="FILE", help="Also write everything as one page: drawings, lints, PTX beside the kernel."
)
@watch_option
@kernel_options
def report(file: str, html: str | None, watch: bool, verbose: bool, **given: Any) -> None:
    """Say how long kernels are predicted to take and what bounds them; with --html, show all there is to see."""
    if given["opt_level"] < 2:
        usage("a report is about a cubin: compile with -O2 or -O3")
    if watch:
        watched(lambda: _report(file, html, given))
    _report(file, html, given)


def _report(file: str, html: str | None, given: dict[str, Any]) -> None:
    targets = target_names(given)
    if html is not None and len(targets) > 1:
        usage(f"--html is a page about one machine: name one of {', '.join(targets)}")
    for target in targets:
        _report_target(file, html, {**given, "target": target})


def _report_target(file: str, html: str | None, given: dict[str, Any]) -> None:
    from tilec import driver

    with reported(None):
        source = files.read_source(file)
        asked = compile_options(given)
        files.check_outputs([] if html is None else [html], input_files([file], given))
    observer = driver.Observer()
    with reported(source):
        library = driver.build_all(source, asked, observer)
        said = driver.reports(library)
        show(observer.warnings, source)
        if html is not None:
            from tilec.cli_html_report import report_page

            imported = [one.path for one in source.imported.values()]
            files.check_outputs([html], imported)
            files.write_all({html: report_page(source, asked, library, said, observer.warnings).encode()})
    for one in said:
        show_tables(report_tables(one))


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
