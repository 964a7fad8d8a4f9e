"""The terminal output of all commands, and the conversion of exceptions to messages and exit codes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from tilec import __version__
from tilec.support.diagnostics import CompileError, Diagnostic

if TYPE_CHECKING:
    import click
    from rich.console import Console, RenderableType

    from tilec.cli.diagnostics import Format, LocatedDiagnostic
    from tilec.driver.batch import CompileResult
    from tilec.ir.manifest import Manifest
    from tilec.ptx.assemble import EntryReport
    from tilec.support.source import SourceFile

OK, WRONG_KERNEL, USAGE, BUG, LIMIT = 0, 1, 2, 3, 4

_PLAIN_WIDTH = 160


class CommandExit(Exception):
    """Ends the command with this code; everything has been printed already."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def make_console(*, stderr: bool = False) -> Console:
    """Return a console: coloured on a terminal that allows it, else plain and wide enough for any table here."""
    from rich.console import Console

    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _PLAIN_WIDTH
    out = Console(stderr=stderr, highlight=False, width=width)
    # rich heeds NO_COLOR by itself, but keeps bold and dim.
    return Console(stderr=stderr, highlight=False, width=width, color_system=None) if out.no_color else out


def show_tables(tables: Iterable[RenderableType]) -> None:
    """Print tables on standard output; without a terminal, trailing spaces are removed."""
    out = make_console()
    with out.capture() as captured:
        for table in tables:
            out.print(table)
    text = captured.get()
    if not out.is_terminal:
        text = "\n".join(line.rstrip() for line in text.split("\n"))
    sys.stdout.write(text)


@contextmanager
def report_mistakes(source: SourceFile | None, code: int = WRONG_KERNEL) -> Iterator[None]:
    """Show a `CompileError` of the block, with text from `source`, and end the command with an exit code."""
    try:
        yield
    except CompileError as error:
        show_diagnostics(error.diagnostics, source)
        raise CommandExit(code) from error


def report_results(results: Iterable[CompileResult], *, counted: bool = False) -> list[CompileResult]:
    """Return the results of all jobs, and show each diagnostic once; end the command if a kernel is wrong.

    Several targets repeat many. If `counted`, a last line gives the number of diagnostics; on a terminal also if there
    are none.
    """
    collected: list[CompileResult] = []
    shown: set[tuple[str, Diagnostic]] = set()
    for result in results:
        collected.append(result)
        new = [d for d in result.diagnostics if (result.source.path, d) not in shown]
        show_diagnostics(new, result.source)
        shown.update((result.source.path, d) for d in new)
    if counted and get_format() == "text":
        if shown:
            print(_describe_counts(shown), file=sys.stderr)
        elif sys.stderr.isatty():
            paths = {each.source.path for each in collected}
            print(f"{_format_count(len(paths), 'file')}: no mistakes", file=sys.stderr)
    if any(result.failed for result in collected):
        raise CommandExit(WRONG_KERNEL)
    return collected


def _describe_counts(shown: Iterable[tuple[str, Diagnostic]]) -> str:
    """Return a count such as `3 errors and 1 warning in 2 files`."""
    found = [(path, diagnostic.severity) for path, diagnostic in shown]
    counts = [(kind, sum(severity == kind for _, severity in found)) for kind in ("error", "warning", "note")]
    counted = " and ".join(_format_count(count, kind) for kind, count in counts if count)
    return f"{counted} in {_format_count(len({path for path, _ in found}), 'file')}"


def _format_count(count: int, what: str) -> str:
    """Return a count and its noun, with a plural s unless the count is 1."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def show_diagnostics(diagnostics: Iterable[Diagnostic], source: SourceFile | None) -> None:
    """Write diagnostics to stderr in the wanted format; SARIF follows as one text at the end of the command."""
    listed = list(diagnostics)
    if not listed:
        return
    form, kept = _get_format_state()
    if form != "text":
        from tilec.cli.diagnostics import format_github, format_json

        found = [(diagnostic, source) for diagnostic in listed]
        kept += found
        if form != "sarif":
            sys.stderr.write(format_json(found) if form == "json" else format_github(found))
        return

    from tilec.support.render import render_diagnostic

    out = make_console(stderr=True)
    with out.capture() as captured:
        for diagnostic in listed:
            out.print(render_diagnostic(diagnostic, source), soft_wrap=True)
            out.print()
    sys.stderr.write(captured.get())


_META = "tilec.diagnostics"
"""The key of a command's diagnostics format and of the diagnostics that it has shown."""


def set_format(context: click.Context, _: click.Parameter, form: Format) -> None:
    """Set the format of the command's diagnostics; write SARIF, if that is it, when the command ends."""
    kept: list[LocatedDiagnostic] = []
    context.meta[_META] = (form, kept)
    if form == "sarif" and not context.resilient_parsing:
        from tilec.cli.diagnostics import format_sarif
        from tilec.support.options import documentation_url

        context.call_on_close(lambda: sys.stderr.write(format_sarif(kept, documentation_url())))


def get_format() -> Format:
    """Return the format in which the running command shows diagnostics; `text` outside a command."""
    return _get_format_state()[0]


def _get_format_state() -> tuple[Format, list[LocatedDiagnostic]]:
    """Return the running command's format of diagnostics, and those that it has shown in that format."""
    import click

    context = click.get_current_context(silent=True)
    meta: dict[str, tuple[Format, list[LocatedDiagnostic]]] = {} if context is None else context.meta
    return meta.get(_META, ("text", []))


def show_bug(error: BaseException, arguments: Sequence[str], *, traceback: bool) -> None:
    """Print on stderr that an exception is a bug in tilec, and how to report it; with `traceback`, that too."""
    if traceback:
        import traceback as tracebacks

        tracebacks.print_exception(error)
    kind = "" if type(error).__name__ == "InternalError" else f"{type(error).__name__}: "
    lines = [
        f"internal error: {kind}{error}",
        "",
        f"This is a bug in tilec {__version__}, not in your kernel. Please report it, with the kernel and the command:",
        f"  tilec {shlex.join(arguments)}",
    ]
    # `driver.batch` notes the folder with the evidence.
    for folder in getattr(error, "__notes__", ()):
        lines.append(f"and with the files in {folder}: the traceback, and every stage before it")
    if not traceback:
        lines.append("-v shows the traceback.")
    print("\n".join(lines), file=sys.stderr)


def show_times(seconds: Sequence[tuple[str, float]], total: float) -> None:
    """Print on stderr the milliseconds of each pass, and the total of the process."""
    for name, spent in (*seconds, ("total", total)):
        print(f"{name:26} {spent * 1000:9.1f} ms", file=sys.stderr)


def show_entries(entries: Iterable[EntryReport], manifests: Iterable[Manifest], names_target: bool = False) -> None:
    """Print on stderr the assembler's report of each kernel: registers, barriers, stack, spills and memory."""
    manifest_of = {manifest.entry: manifest for manifest in manifests}
    for entry in entries:
        manifest = manifest_of[entry.name]
        name = f"{entry.name} for {manifest.target}" if names_target else entry.name
        spills = f"{entry.spill_store_bytes} bytes spilled, {entry.spill_load_bytes} reloaded"
        print(
            f"{name}: {entry.registers} registers, {entry.barriers} barriers, {entry.stack_bytes} bytes stack, "
            f"{spills}, {entry.smem_bytes} bytes static and {manifest.dynamic_smem} dynamic shared memory",
            file=sys.stderr,
        )


def fail_usage(message: str) -> NoReturn:
    """Raise a usage error with this message."""
    import click

    raise click.UsageError(message)
