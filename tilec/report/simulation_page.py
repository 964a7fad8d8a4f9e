"""Builds the page of `tilec simulate --html`: a kernel's time, the picture of its replay, and where the time goes.

It loads nothing and runs no script; the picture is that of `tilec.simulate.picture`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from tilec.report.viewer import read_template
from tilec.simulate import text
from tilec.simulate.counters import compute_counters, format_amount
from tilec.simulate.grid import Simulation
from tilec.simulate.picture import draw_picture
from tilec.support.display import show_share

_MIN_SHARE = 0.01
"""Fraction of a warp's time below which a cause has no row."""


def build_simulation_page(
    found: Simulation, name: str, target: str, scheduled: Sequence[int], predicted: float | None = None
) -> str:
    """Return the HTML page of a simulation whose replay was drawn: summary, picture, intervals, waits, units and
    counters. `scheduled` are the solved initiation intervals, `predicted` the microseconds that the cost model
    predicts."""
    units = ((unit, show_share(part)) for unit, part in text.measure_busy_units(found))
    counters = ((each.name, format_amount(each.value), each.unit) for each in compute_counters(found))
    sections = {
        "The replay": f'<div class="scroll">{draw_picture(found, name)}</div>',
        "Intervals": _build_paragraphs(text.format_intervals(found, scheduled)),
        "Where the time of warps goes": _build_waits(found),
        "Units of a multiprocessor": _build_table(("unit", ">of the time"), units),
        "Under the names of Nsight Compute": _build_table(("metric", ">value", "unit"), counters),
    }
    return Template(read_template("simulation.html")).substitute(
        title=escape(f"{name} on {target}"),
        style=read_template("report.css"),
        summary=_build_paragraphs(line.strip() for line in text.format_summary(found, name, target, predicted)),
        sections="\n".join(f"<section>\n<h2>{escape(h)}</h2>\n{body}\n</section>" for h, body in sections.items()),
    )


def _build_paragraphs(lines: Iterable[str]) -> str:
    """Return HTML with a paragraph for each line."""
    return "\n".join(f"<p>{escape(line)}</p>" for line in lines)


def _build_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table; columns whose heads begin with `>` are numeric."""
    attributes = [' class="n"' if head.startswith(">") else "" for head in heads]

    def build_row(tag: str, cells: Sequence[str]) -> str:
        """Return a row of the table, with cells of this tag."""
        pairs = zip(attributes, cells, strict=True)
        return "<tr>" + "".join(f"<{tag}{attribute}>{escape(cell)}</{tag}>" for attribute, cell in pairs) + "</tr>"

    lines = [build_row("th", [head.lstrip(">") for head in heads]), *(build_row("td", cells) for cells in rows)]
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _build_waits(found: Simulation) -> str:
    """Return an HTML table of what each role does with its time: issue, or wait and for what, from 1 percent on."""
    rows: list[Sequence[str]] = []
    for role, warps in text.group_warps_by_work(found):
        rows.append((role, show_share(text.measure_issuing_fraction(found, warps)), "issues", ""))
        shown = [each for each in text.rank_stall_causes(found, warps) if each[2] >= _MIN_SHARE]
        rows += ((role, show_share(part), f"waits for {cause}", place) for cause, place, part in shown)
    return _build_table(("role", ">of its time", "what it does", "at"), rows)
