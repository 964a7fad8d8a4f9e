"""The dispatch of commands: options in, one call, results out. Their work is done in `driver` and below."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from tilec.cli import console
from tilec.cli.arguments import MAX_WORDS, CommandLineChanged, expand_response_files, remember_response_files
from tilec.cli.help import HELP_NAMES, GroupedCommand, show_introduction
from tilec.cli.kernel_options import add_kernel_options, list_input_files, make_compile_options
from tilec.cli.limits import ResourceLimits, run_bounded
from tilec.cli.names import find_command
from tilec.cli.other_spellings import build_usage_diagnostic, translate_words
from tilec.cli.terminal import attend_terminal
from tilec.driver.build import Observer
from tilec.support import files
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.exhaustion import find_exhausted_resource

NO_READER_ERRORS = (errno.EPIPE, errno.EIO)
"""Errors of the consumer of standard output."""


@click.command(cls=GroupedCommand)
@click.argument("file", metavar="FILE.tl", required=False)
@click.option("--html", metavar="FILE", help="Also write the drawing as an HTML page.")
@click.option("--problem", metavar="FILE.json", help="Solve a scheduling problem instead of a kernel's.")
@click.option("--json", "as_json", is_flag=True, help="With --problem: print one line of JSON.")
@click.option("--output", "-o", metavar="FILE", help="With --problem: the file of the schedule (JSON).")
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="With --problem: stop after so many seconds with the best schedule found.",
)
@add_kernel_options
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
        from tilec.cli.commands.problem import ProblemOutputs, solve_problem_file

        if file is not None:
            console.fail_usage("give either a kernel or --problem")
        with console.report_mistakes(None):
            solve_problem_file(problem, ProblemOutputs(as_json, output, html), time_limit, given["scheduler"])
        return
    if file is None or as_json or output is not None or time_limit is not None:
        console.fail_usage(
            "a kernel is missing" if file is None else "--json, --output and --time-limit need --problem"
        )
    from rich.text import Text

    from tilec.analysis.rings import is_pipelined
    from tilec.driver import build as driver
    from tilec.ir.tile import For, walk_statements
    from tilec.passes.memory.split_staged_stores import find_staged_stores
    from tilec.report.tables import build_decision_table, build_role_tables, build_schedule_tables, build_stores_table

    with console.report_mistakes(None):
        source = files.read_source(file)
        options = make_compile_options(given)
        if html is not None:
            files.check_outputs([html], list_input_files([file], given))
    observer = Observer()
    with console.report_mistakes(source):
        plan = driver.plan_kernel(source, options, observer).explain_schedules()
        console.show_diagnostics(observer.warnings, source)
        trace = json.loads(plan.trace)["tilec"]
        if html is not None:
            from tilec.report.viewer import build_viewer_page

            files.write_all({html: build_viewer_page([trace]).encode()})
    console.show_tables([build_decision_table(plan.kernel.name, plan.decisions)])
    print()
    if not plan.loops:
        loops = [s for s in walk_statements(plan.kernel.body) if isinstance(s, For) and is_pipelined(s)]
        reason = f"pipelined loops run serially with strategy {options.pipeline_strategy}"
        print(f"{plan.kernel.name}: {reason if loops else 'no pipelined loop'}")
    console.show_tables(build_role_tables(trace))
    width = console.make_console().width
    for planned in plan.loops:
        line = planned.loop.loop.span.line
        console.show_tables(
            build_schedule_tables(planned.loop.problem, planned.solution, width, line, planned.loop.kept)
        )
    if stores := [store for one in plan.assignment.kernels for store in find_staged_stores(one)]:
        console.show_tables((Text(), build_stores_table(stores)))


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command line, its @FILEs expanded, and return its exit code; again whenever an @FILE was saved.

    A first word that is no command is a kernel file or an option of the compiler proper.
    """
    while True:
        try:
            words, read = expand_response_files(arguments)
            with attend_terminal():
                return _run_words(words, read)
        except CompileError as error:
            console.show_diagnostics(error.diagnostics, None)
            return console.WRONG_KERNEL
        except CommandLineChanged:
            continue


def _run_words(arguments: Sequence[str], response_files: tuple[str, ...]) -> int:
    """Run the command that the words name, and return its exit code; without words print an introduction."""
    if not arguments:
        return show_introduction()
    command, rest = find_command(arguments)
    name = " ".join(arguments[: len(arguments) - len(rest)])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # do not fail on a terminal without →

    def invoke_command() -> int:
        """Parse the command's options and run it within its limits; raise a usage error for too many or wrong words."""
        if len(arguments) > MAX_WORDS:
            found = f"the command line has {len(arguments):,} words, with those of its @FILEs"
            console.fail_usage(f"{found}; the limit is {MAX_WORDS:,}: compile fewer kernels at a time")
        # Not click's `main`, which takes every EOFError and broken pipe for the terminal's.
        path = f"tilec {name}".rstrip()
        try:
            words = translate_words(command, rest)
            context = command.make_context(path, words, help_option_names=[*HELP_NAMES])
        except click.UsageError as error:
            error.ctx = error.ctx or click.Context(command, info_name=path)
            raise
        remember_response_files(context, response_files)
        return _invoke_limited(command, context, arguments)

    return _run_for_exit_code(invoke_command, arguments)


def _invoke_limited(command: click.Command, context: click.Context, arguments: Sequence[str]) -> int:
    """Run a command, in a child process if its options set limits, and return its exit code."""

    def invoke_reported() -> int:
        """Run the command, show its mistakes, and return 0."""
        with context, console.report_mistakes(None):
            command.invoke(context)
        return console.OK

    limits = ResourceLimits.of(context.params)
    if limits is None:
        return invoke_reported()
    ended = run_bounded(lambda: _run_for_exit_code(invoke_reported, arguments), limits)
    if isinstance(ended, int):
        return ended
    with context:
        console.show_diagnostics([ended], None)
        return console.LIMIT


def _run_for_exit_code(work: Callable[[], int], arguments: Sequence[str]) -> int:
    """Return the result of `work`, or show its exception and return the exit code for it.

    A changed command line and errors of our own output are raised.
    """
    try:
        return work()
    except CommandLineChanged:
        raise
    except console.CommandExit as ended:
        return ended.code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        console.show_diagnostics([build_usage_diagnostic(error)], None)
        return console.USAGE
    except Exception as error:
        if (what := find_exhausted_resource(error)) is not None:
            console.show_diagnostics([_build_exhausted_diagnostic(error, what)], None)
            return console.LIMIT
        if isinstance(error, OSError) and error.errno in NO_READER_ERRORS:
            raise  # `main` handles failures of our own output
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            # The first access to the file fails, wherever it is: the system refuses the name.
            console.show_diagnostics(
                [Diagnostic("unreadable-file", f"cannot read {error.filename}: file name too long")], None
            )
            return console.WRONG_KERNEL
        console.show_bug(error, arguments, traceback=any(a in ("-v", "--verbose") for a in arguments))
        return console.BUG


def _build_exhausted_diagnostic(error: Exception, what: str) -> Diagnostic:
    """Return the error that a resource ran out, with the file that needed it if known."""
    path = getattr(error, "filename", None)
    notes = () if path is None else (f"it was needed for {path}",)
    help_text = None if "disk" in what or "in a file" in what else "compile fewer files at a time, with a smaller -j"
    return Diagnostic("limit-reached", f"out of {what}", notes=notes, help=help_text)
