"""`tilec report FILE`: the model's prediction for a kernel, as tables on the terminal and as a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from tilec.cli.console import fail_usage, report_mistakes, show_diagnostics, show_tables
from tilec.cli.contents import contents_option, parse_contents
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, list_input_files, make_compile_options, parse_target_names
from tilec.cli.watch import run_and_watch, watch_option
from tilec.report.tables import create_table
from tilec.support import files
from tilec.support.display import show_share
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.support.resources import target_stem
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilec.driver.build import Library
    from tilec.driver.observer import Observer
    from tilec.passes.assembled.machine_code import LoopCode
    from tilec.passes.cost.report import Report
    from tilec.report.viewer import IndexRow


@click.command(cls=GroupedCommand)
@click.argument("kernels", metavar="FILE.tl…", nargs=-1, required=True)
@click.option(
    "--html",
    metavar="FILE",
    help="Also write one page with everything: drawings, lints, PTX beside the kernel. For several kernel files or "
    "targets, or with a / at its end, the folder of their pages and of an index.",
)
@click.option("--counters", is_flag=True, help="Also simulate, and print the figures under Nsight Compute's names.")
@click.option(
    "--tiles",
    is_flag=True,
    help="Also compile the most promising other tile edges, and warn [slow-tile] where one is predicted to be faster.",
)
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="The value of a T.dynamic size.")
@contents_option
@watch_option
@add_kernel_options
def report(
    kernels: tuple[str, ...],
    html: str | None,
    counters: bool,
    sizes: tuple[str, ...],
    contents: tuple[str, ...],
    watch: bool,
    **given: Any,
) -> None:
    """Say how long kernels are predicted to take and what bounds them; with --html, show all there is to see."""
    if given["opt_level"] < 2:
        fail_usage("a report needs a cubin: compile with -O2 or -O3")
    del given["verbose"]  # there is no assembler's report here
    if len(kernels) * len(parse_target_names(given)) > 1:
        for option in (name for name in ("schedule", "tuned") if given[name] is not None):
            fail_usage(f"--{option} needs a single kernel file and a single target")
    from tilec.cli.commands.emulate import parse_size

    wanted = _Wanted(
        html, counters, given.pop("tiles"), dict(map(parse_size, sizes)), dict(map(parse_contents, contents))
    )
    if watch:
        run_and_watch(lambda: _report_kernels(kernels, wanted, given))
    _report_kernels(kernels, wanted, given)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The place of pages, whether kernels are simulated too, whether other tiles are tried, the sizes that kernels are
    launched with, and the known contents of tensors."""

    html: str | None
    counters: bool
    tiles: bool
    sizes: dict[str, int]
    contents: dict[str, int | tuple[int, ...]]


def _report_kernels(kernels: Sequence[str], wanted: _Wanted, given: dict[str, Any]) -> None:
    """Compile each kernel for each target, print its predicted time, and write the HTML pages and index if asked."""
    targets, html = parse_target_names(given), wanted.html
    with report_mistakes(None):
        jobs: list[tuple[SourceFile, CompileOptions, str | None]] = []
        for kernel, target in product(kernels, targets):
            source, options = files.read_source(kernel), make_compile_options(given, target)
            several = len(kernels) > 1, len(targets) > 1
            jobs.append((source, options, None if html is None else _get_page_path(html, kernel, target, *several)))
        places = [place for _, _, place in jobs]
        files.check_outputs([place for place in places if place is not None], list_input_files(kernels, given))
        index = _get_index_path(html, places)
        files.check_outputs([index] if index is not None else [], list_input_files(kernels, given))
    written: dict[str, bytes] = {}
    rows: list[IndexRow] = []
    for source, options, place in jobs:
        with report_mistakes(source):
            written |= _report_page(source, options, place, wanted, rows)
    if index is not None:
        from tilec.report.viewer import build_index_page

        written[index] = build_index_page(rows).encode()
    with report_mistakes(None):
        files.write_all(written)


def _get_page_path(html: str, kernel: str, target: str, of_kernels: bool, of_targets: bool) -> str:
    """Return the path of a kernel's page: `html` itself, or in that folder, named by kernel file and target."""
    if not (of_kernels or of_targets or html.endswith("/")):
        return html
    return str(Path(html) / f"{Path(kernel).stem}{f'.{target_stem(target)}' if of_targets else ''}.html")


def _get_index_path(html: str | None, places: Sequence[str | None]) -> str | None:
    """Return the path of the index of several pages, which avoids a page called `index`; None for fewer pages."""
    if html is None or len(places) < 2:
        return None
    place = str(Path(html) / "index.html")
    return place if place not in places else str(Path(html) / "index-of-kernels.html")


def _report_page(
    source: SourceFile, options: CompileOptions, page: str | None, wanted: _Wanted, rows: list[IndexRow]
) -> dict[str, bytes]:
    """Compile and print the report; for a `page`, append to `rows`, and return the page's bytes by its path."""
    from tilec.driver import build as driver

    observer = driver.Observer()
    library = driver.build_library(source, options, observer)
    codes = driver.find_library_loop_codes(library)
    reports = driver.build_reports(library, wanted.sizes, wanted.contents, codes)
    if wanted.tiles and len(reports) == 1:
        _warn_of_tile(source, options, reports[0], wanted, observer)
    show_diagnostics(observer.warnings, source)
    for each in reports:
        show_tables([*make_report_tables(each), *make_loop_code_tables(each.kernel, codes)])
    if wanted.counters:
        show_tables(list(_make_counter_tables(library, wanted)))
    if page is None:
        return {}
    from tilec.report.page_data import build_page_data
    from tilec.report.viewer import IndexRow, build_viewer_page

    files.check_outputs([page], [each.path for each in source.imported.values()])
    for each in reports:
        share = each.achieved if each.roofline else None
        time, name, place = each.at(each.predicted), Path(source.path).name, Path(page).name
        rows.append(IndexRow(place, name, each.kernel, each.machine, time, share, each.bound, len(observer.warnings)))
    traces = [json.loads(plan.trace)["tilec"] for plan in library.plans]
    data = build_page_data(source, options, library, reports, codes, observer.warnings)
    return {page: build_viewer_page(traces, data).encode()}


def _warn_of_tile(
    source: SourceFile, options: CompileOptions, written: Report, wanted: _Wanted, observer: Observer
) -> None:
    """Give the observer a warning if the kernel as `written` is predicted to be slower than with another tile edge."""
    from tilec.driver import build as driver
    from tilec.tune.tiles import find_faster_tile

    def report_library(library: Library) -> Report:
        """Predict a variant for the sizes and contents that the kernel is reported for."""
        return driver.build_reports(library, wanted.sizes, wanted.contents)[0]

    if (warning := find_faster_tile(source, options, written, report_library)) is not None:
        observer.warn(warning, options)


def make_report_tables(report: Report) -> Iterator[RenderableType]:
    """Yield tables of a kernel's predicted time, what bounds it, its roofline, and the levels of its loops."""
    time = report.at(report.predicted)
    yield Text(
        f"{report.kernel} on {report.machine}: {time:,.1f} µs predicted for {report.counted_blocks}{report.assumption}",
        "bold",
    )
    table = create_table("", "<what", "<predicted")
    table.show_header = False
    table.add_row("bound by", report.bound)
    if report.gap:
        table.add_row("gap", report.gap)
    least = report.at(report.limits)
    near = f", a bound; the prediction is {show_share(report.achieved)} of its rate"
    if report.is_a_bound:
        near = ": the prediction is this bound, a run takes longer"
    table.add_row("roofline", f"{least:,.1f} µs by {report.limit}{near}")
    if report.loaded_clock_mhz != report.clock_mhz:
        busy = f"tensor cores busy {show_share(report.tensor_share)} of the time"
        table.add_row("clock", f"{report.loaded_clock_mhz:,} MHz: {busy}")
    table.add_row("waves", f"{report.predicted.waves:,}")
    fits = ", ".join(f"{count:,} by {name}" for name, count in report.fits)
    table.add_row("blocks of an SM", f"{report.together} ({fits})")
    yield from (table, Text())
    levels = create_table(
        "levels, in a full wave",
        "line", "<level", "latency", "transfer", "use", "iterations", "stages", "cycles", "<bound by",
    )  # fmt: skip
    for loop in report.loops:
        for time_of in loop.levels:
            level = time_of.level
            numbers = (level.latency, level.transfer, time_of.use, level.trip_count, level.stages, time_of.cycles)
            levels.add_row(str(loop.line), level.name, *(f"{n:,}" for n in numbers), time_of.bound)
    if report.loops:
        yield from (levels, Text())


def _make_counter_tables(library: Library, wanted: _Wanted) -> Iterator[RenderableType]:
    """Simulate each kernel and yield a table of its counters under Nsight Compute's names, or why there is none."""
    from tilec.driver.simulate import simulate_library
    from tilec.simulate.counters import compute_counters, format_amount

    for name, found in simulate_library(library, library.plans[0].target, wanted.sizes, wanted.contents):
        if isinstance(found, str):
            yield Text(f"{name}: not simulated, as {found}")
            continue
        table = create_table(f"{name}, simulated, under the names of Nsight Compute", "value", "<unit", "<metric")
        for each in compute_counters(found):
            table.add_row(format_amount(each.value), each.unit, each.name)
        yield from (table, Text())


def make_loop_code_tables(kernel: str, codes: Sequence[LoopCode]) -> Iterator[RenderableType]:
    """Yield a table of a kernel's loops in machine code, by role, beside the solved interval; nothing without loops."""
    from tilec.passes.assembled.machine_code import describe_wait, merge_waits_by_line

    table = create_table(
        "machine code, an iteration of one warp",
        "line", "<role", "<at", "unrolled", "stall counts", "with waits", "solved", "<waits most",
    )  # fmt: skip
    own = [one for one in codes if one.kernel == kernel]
    for one in own:
        found, place = one.interval, f"{one.code.first:#06x} to {one.code.last:#06x}"
        numbers = (f"{each:,.0f}" for each in (one.code.unrolled, found.issue, found.cycles, one.ii))
        longest = next(map(describe_wait, merge_waits_by_line(found)), "")
        table.add_row(str(one.place.line), one.role, place, *numbers, longest)
    if own:
        yield from (table, Text())
