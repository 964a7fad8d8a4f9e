"""The dispatch of commands: options in, one call, results out. Their work is done in `driver` and below."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from tilec.cli.arguments import MOST_WORDS, AnotherCommandLine, expanded, remember
from tilec.cli.console import (
    BUG,
    LIMIT,
    OK,
    USAGE,
    WRONG_KERNEL,
    Exit,
    console,
    reported,
    show,
    show_bug,
    show_tables,
    usage,
)
from tilec.cli.habits import refusal, translated
from tilec.cli.help import HELP_NAMES, Grouped, briefly
from tilec.cli.kernel_options import compile_options, input_files, kernel_options
from tilec.cli.limits import Limits, bounded
from tilec.cli.names import command_of
from tilec.cli.terminal import attended
from tilec.driver.build import Observer
from tilec.support import files
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.exhaustion import exhausted

NO_READER = (errno.EPIPE, errno.EIO)
"""Errors of the consumer of standard output."""


@click.command(cls=Grouped)
@click.argument("file", metavar="FILE.tl", required=False)
@click.option("--html", metavar="FILE", help="Also write the drawing as a page of its own.")
@click.option("--problem", metavar="FILE.json", help="Solve a scheduling problem instead of a kernel's.")
@click.option("--json", "as_json", is_flag=True, help="With --problem: print one line of JSON.")
@click.option("--output", "-o", metavar="FILE", help="With --problem: where the schedule goes (JSON).")
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="With --problem: answer after so many seconds with what is known then.",
)
@kernel_options
def schedule(
    file: str | None,
    html: str | None,
    problem: str | None,
    as_json: bool,
    output: str | None,
    time_limit: float | None,
    verbose: bool,
    **given: Any,
) -> None:
    """Show the solved pipeline of each loop: II and what bounds it, stages, order, rings, reservation table."""
    if problem is not None:
        from tilec.cli.problem import Wanted, solve_file

        if file is not None:
            usage("give either a kernel or --problem")
        with reported(None):
            solve_file(problem, Wanted(as_json, output, html), time_limit, given["scheduler"])
        return
    if file is None or as_json or output is not None or time_limit is not None:
        usage("a kernel is missing" if file is None else "--json, --output and --time-limit go with --problem")
    from rich.text import Text

    from tilec.driver import build as driver
    from tilec.ir.tile import For, walk
    from tilec.passes.analysis.rings import is_pipelined
    from tilec.passes.memory.staged_stores import stagings
    from tilec.report.tables import decision_table, role_tables, schedule_tables, stores_table

    with reported(None):
        source = files.read_source(file)
        options = compile_options(given)
        if html is not None:
            files.check_outputs([html], input_files([file], given))
    observer = Observer()
    with reported(source):
        plan = driver.plan(source, options, observer).explained()
        show(observer.warnings, source)
        if html is not None:
            import json

            from tilec.report.viewer import page

            files.write_all({html: page([json.loads(plan.trace)["tilec"]]).encode()})
    show_tables([decision_table(plan.kernel.name, plan.decisions)])
    print()
    if not plan.loops:
        loops = [s for s in walk(plan.kernel.body) if isinstance(s, For) and is_pipelined(s)]
        reason = f"pipelined loops run serially with strategy {options.pipeline_strategy}"
        print(f"{plan.kernel.name}: {reason if loops else 'no pipelined loop'}")
    import json

    show_tables(role_tables(json.loads(plan.trace)["tilec"]))
    width = console().width
    for planned in plan.loops:
        line = planned.loop.loop.span.line
        show_tables(schedule_tables(planned.loop.problem, planned.solution, width, line, planned.loop.kept))
    if stores := [store for one in plan.assignment.kernels for store in stagings(one)]:
        show_tables((Text(), stores_table(stores)))


def run(arguments: Sequence[str]) -> int:
    """Run one command line. A first word that is no command is a kernel file or an option of the compiler proper."""
    while True:
        try:
            words, read = expanded(arguments)
            with attended():
                return _run(words, read)
        except CompileError as error:
            show(error.diagnostics, None)
            return WRONG_KERNEL
        except AnotherCommandLine:
            continue


def _run(arguments: Sequence[str], response_files: tuple[str, ...]) -> int:
    if not arguments:
        return briefly()
    command, rest = command_of(arguments)
    name = " ".join(arguments[: len(arguments) - len(rest)])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # do not fail on a terminal without →

    def work() -> int:
        if len(arguments) > MOST_WORDS:
            usage(
                f"the command line has {len(arguments):,} words, with those of its @FILEs,"
                f" and {MOST_WORDS:,} are the most: compile fewer kernels at a time"
            )
        # Not click's `main`, which takes every EOFError and broken pipe for the terminal's.
        path = f"tilec {name}".rstrip()
        try:
            words = translated(command, rest)
            context = command.make_context(path, words, help_option_names=[*HELP_NAMES])
        except click.UsageError as error:
            error.ctx = error.ctx or click.Context(command, info_name=path)
            raise
        remember(context, response_files)
        return _invoked(command, context, arguments)

    return _exit_code(work, arguments)


def _invoked(command: click.Command, context: click.Context, arguments: Sequence[str]) -> int:

    def work() -> int:
        with context, reported(None):
            command.invoke(context)
        return OK

    limits = Limits.of(context.params)
    if limits is None:
        return work()
    ended = bounded(lambda: _exit_code(work, arguments), limits)
    if isinstance(ended, int):
        return ended
    with context:
        show([ended], None)
        return LIMIT


def _exit_code(work: Callable[[], int], arguments: Sequence[str]) -> int:
    """Return the result of `work`, or the exit code for its exception, which is shown."""
    try:
        return work()
    except AnotherCommandLine:
        raise
    except Exit as ended:
        return ended.code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        show([refusal(error)], None)
        return USAGE
    except Exception as error:
        if (what := exhausted(error)) is not None:
            show([_reached(error, what)], None)
            return LIMIT
        if isinstance(error, OSError) and error.errno in NO_READER:
            raise  # `main` handles failures of our own output
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            # The first access to the file fails, wherever it is: the system refuses the name.
            show([Diagnostic("unreadable-file", f"cannot read {error.filename}: file name too long")], None)
            return WRONG_KERNEL
        show_bug(error, arguments, traceback=any(a in ("-v", "--verbose") for a in arguments))
        return BUG


def _reached(error: Exception, what: str) -> Diagnostic:
    """Report the exhausted resource, and the file that needed it if known."""
    path = getattr(error, "filename", None)
    notes = () if path is None else (f"it was needed for {path}",)
    help_text = None if "disk" in what or "in a file" in what else "compile fewer at a time: a smaller -j"
    return Diagnostic("limit-reached", f"there is no more {what}", notes=notes, help=help_text)
