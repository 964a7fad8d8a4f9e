"""`tilec explain NAME`: explain a diagnostic, a unit of the machine or a name of the language. `tilec explain pipeline
FILE`: list which loads of a kernel are pipelined, and why others are not."""

from __future__ import annotations

import re
from typing import Any

import click

from tilec.cli.completion import complete_one, list_codes
from tilec.cli.console import report_mistakes, show_diagnostics, show_tables
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, make_compile_options
from tilec.support import files
from tilec.support.diagnostics import raise_error
from tilec.support.spelling import nearest_word


@click.command()
@click.argument("words", metavar="[CODE]", nargs=-1, shell_complete=complete_one(list_codes))
def explain(words: tuple[str, ...]) -> None:
    """Say more about an error or warning: explain CODE. Without a code, list them all.

    Knows units and pools of the machine (tp_gnic_rd), terms (II, reservation table) and the language (T.gemm) too.
    """
    from tilec.driver import terms
    from tilec.driver.explanations import EXPLANATIONS, FORMER_CODES

    if not words:
        for name in sorted(EXPLANATIONS):
            # Up to the end of the first sentence, which is not the full stop of `T.copy` or `from . import *`.
            first = re.split(r"(?<!\s)\.\s", " ".join(EXPLANATIONS[name].split()))[0]
            print(f"{name:24} {first.removesuffix('.')}")
        return
    code = " ".join(words).strip("[]")
    if code in FORMER_CODES:
        print(f"{code} is now called {FORMER_CODES[code]}:\n")
        code = FORMER_CODES[code]
    if code not in EXPLANATIONS and (text := terms.explain_term(code)) is not None:
        print(text)
        return
    if code not in EXPLANATIONS:
        near = nearest_word(code, (*EXPLANATIONS, *terms.list_terms()))
        with report_mistakes(None):
            raise_error("unknown-code", f"there is no error, warning or name '{code}'",
                 help=f"did you mean '{near}'?" if near else "'tilec explain' lists them")  # fmt: skip
    print(f"{code}\n\n{EXPLANATIONS[code]}")


@click.command(cls=GroupedCommand)
@click.argument("file", metavar="FILE.tl")
@add_kernel_options
def explain_pipeline(file: str, verbose: bool, **given: Any) -> None:
    """Say for each tile that a loop loads and uses whether it is pipelined, and why or why not."""
    from rich.text import Text

    from tilec.driver import build as driver
    from tilec.passes.loop.build_problem import ScheduledLoop
    from tilec.passes.loop.stages.pipelined_buffers import find_loaded_tiles
    from tilec.report.tables import create_table

    with report_mistakes(None):
        source = files.read_source(file)
        options = make_compile_options(given)
    observer = driver.Observer()
    with report_mistakes(source):
        plan = driver.plan_kernel(source, options, observer)
    show_diagnostics(observer.warnings, source)
    schedules = [ScheduledLoop(p.loop, p.solution.schedule) for p in plan.loops]
    table = create_table(
        f"{plan.kernel.name} on {plan.target.name}: tiles that are loaded and used",
        "line", "<tile", "<from", "<level", "loop", "versions", "<because",
    )  # fmt: skip
    for found in find_loaded_tiles(plan.assignment, schedules, plan.target):
        loop = "" if found.loop is None else str(found.loop)
        names = (Text(found.tile), Text(found.source), found.memory)
        table.add_row(str(found.line), *names, loop, str(found.versions), Text(found.why))
    if table.row_count:
        show_tables([table])
    else:
        print(f"{plan.kernel.name}: no tile is loaded to or from shared memory")
    for decision in plan.decisions:
        if decision.what.startswith(("loop at line", "register stages")):
            print(f"{decision.what}: {decision.chosen}, by {decision.by}: {decision.why}")
