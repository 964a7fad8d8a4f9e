"""`tilec diff OLD NEW`: the differences between two schedule traces, and their reasons."""

from __future__ import annotations

import json
from itertools import groupby

import click

from tilec.cli.console import CommandExit, report_mistakes
from tilec.sched.comparison import Comparison, compare_traces, read_trace_record
from tilec.sched.trace import TraceError
from tilec.support import files
from tilec.support.diagnostics import raise_error

DIFFERENT = 1
UNREADABLE = 2


@click.command()
@click.argument("old", metavar="OLD.trace.json")
@click.argument("new", metavar="NEW.trace.json")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="The output format.",
)
def diff(old: str, new: str, form: str) -> None:
    """Say what changed between two schedule traces (--schedule-trace-file), and why.

    Exit codes: 0 the schedules are the same, 1 they differ, 2 a trace cannot be read.
    """
    with report_mistakes(None, UNREADABLE):
        found = compare_traces(_read_record(old), _read_record(new))
    print(_format_json(found) if form == "json" else _format_text(found))
    if found.changes:
        raise CommandExit(DIFFERENT)


def _read_record(path: str) -> dict[str, object]:
    """Return the schedule trace in a file as a JSON object; raise `bad-trace` for a file that is none."""
    try:
        return read_trace_record(files.read_text(path))
    except TraceError as error:
        raise_error("bad-trace", f"{path} is not a schedule trace that can be compared: {error}",
             help="write one with tilec FILE.tl --schedule-trace-file")  # fmt: skip


def _format_json(found: Comparison) -> str:
    """Return two traces' comparison as JSON: whether they are equal, the changes, and the reasons by loop."""
    changes = [
        {"kind": c.kind, "loop": c.loop, "subject": c.subject, "old": c.old, "new": c.new, "text": str(c)}
        for c in found.changes
    ]
    why = [{"loop": loop, "steps": list(steps)} for loop, steps in found.why]
    return json.dumps({"equal": not changes, "changes": changes, "why": why}, indent=1, ensure_ascii=False)


def _format_text(found: Comparison) -> str:
    """Return the changes between two traces as text, loop by loop, each with its reasons."""
    if not found.changes:
        return "the schedules are the same"
    steps = dict(found.why)
    parts: list[str] = []
    for loop, changes in groupby(found.changes, key=lambda change: change.loop):
        lines = [f"{loop or 'the kernel'}:", *(f"  {change}" for change in changes)]
        if loop in steps:
            lines += ["  because:", *(f"    {step}" for step in steps[loop])]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
