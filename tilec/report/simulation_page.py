"""Builds the page of `tilec simulate --html`: a kernel's time, the picture of its replay, and where the time goes.

It loads nothing and runs no script; the picture is that of `tilec.simulate.picture`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from tilec.report.viewer import template
from tilec.simulate import text
from tilec.simulate.counters import amount, counters
from tilec.simulate.grid import Simulation
from tilec.simulate.picture import picture
from tilec.support.shares import show_share

_LEAST_SHARE = 0.01
"""Fraction of a warp's time below which a cause has no row."""


def page(found: Simulation, name: str, target: str, scheduled: Sequence[int], predicted: float | None = None) -> str:
    """Return the page of a simulation whose replay was drawn. `scheduled` are the solved initiation intervals,
    `predicted` the microseconds that the cost model predicts."""
    first, *lines = text.summary(found, name, target, predicted)
    return Template(template("simulation.html")).substitute(
        title=escape(f"{name} on {target}"),
        style=template("report.css"),
        summary="\n".join(f"<p>{escape(line.strip())}</p>" for line in (first, *lines)),
        sections="\n".join(
            [
                _section("The replay", f'<div class="scroll">{picture(found, name)}</div>'),
                _section("Intervals", _list(text.reached(found, scheduled))),
                _section("Where the time of warps goes", _waits(found)),
                _section("Units of a multiprocessor", _busy(found)),
                _section("Under the names of Nsight Compute", _counters(found)),
            ]
        ),
    )


def _section(heading: str, body: str) -> str:
    return f"<section>\n<h2>{escape(heading)}</h2>\n{body}\n</section>"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"<p>{escape(line)}</p>" for line in lines)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; columns whose heads begin with `>` are numeric."""
    attributes = [' class="n"' if head.startswith(">") else "" for head in heads]

    def row(tag: str, cells: Sequence[str]) -> str:
        pairs = zip(attributes, cells, strict=True)
        return "<tr>" + "".join(f"<{tag}{attribute}>{escape(cell)}</{tag}>" for attribute, cell in pairs) + "</tr>"

    lines = [row("th", [head.lstrip(">") for head in heads]), *(row("td", cells) for cells in rows)]
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _waits(found: Simulation) -> str:
    rows: list[Sequence[str]] = []
    for role, warps in text.roles(found):
        rows.append((role, show_share(text.issuing(found, warps)), "issues", ""))
        shown = [each for each in text.causes(found, warps) if each[2] >= _LEAST_SHARE]
        rows += ((role, show_share(part), f"waits for {cause}", place) for cause, place, part in shown)
    return _table(("role", ">of its time", "what it does", "at"), rows)


def _busy(found: Simulation) -> str:
    return _table(("unit", ">of the time"), ((unit, show_share(part)) for unit, part in text.busy(found)))


def _counters(found: Simulation) -> str:
    rows = ((each.name, amount(each.value), each.unit) for each in counters(found))
    return _table(("metric", ">value", "unit"), rows)
