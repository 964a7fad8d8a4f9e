"""Builds the index of several reports: a table of kernels, sortable by its headings. It loads nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from string import Template
from urllib.parse import quote

from tilec.report.viewer import read_template
from tilec.support.display import show_share
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One kernel's page: its predicted time, and its share of the roofline's rate, None if unknown."""

    page: str
    file: str
    kernel: str
    target: str
    microseconds: float
    share: float | None
    bound: str
    warnings: int


_HEADINGS = ("kernel", "file", "target", ">µs predicted", ">of the roofline", "bound by", ">warnings")


def build_index_page(rows: Iterable[IndexRow]) -> str:
    """Return the page, the slowest kernel first. Headings that begin with `>` are numeric."""
    script = read_template("index.js")
    heads = "".join(
        f'<th scope="col"{" class=n" if head.startswith(">") else ""} aria-sort="none">'
        f'<button type="button">{escape(head.removeprefix(">"))}</button></th>'
        for head in _HEADINGS
    )
    body = "\n".join(_build_row(row) for row in sorted(rows, key=lambda row: (-row.microseconds, row.file, row.kernel)))
    return Template(read_template("index.html")).substitute(
        digest=b64encode(sha256(script.encode()).digest()).decode(),
        style=read_template("report.css"),
        heads=heads,
        rows=body,
        script=script,
    )


def _build_row(row: IndexRow) -> str:
    """Return a kernel's row of the table in HTML."""
    share = ("–", -1.0) if row.share is None else (show_share(row.share), row.share)
    numbers = ((f"{row.microseconds:,.1f}", row.microseconds), share)
    cells = [f'<td><a href="{quote(row.page)}">{escape(row.kernel)}</a></td>']
    cells += [f"<td>{escape(text)}</td>" for text in (row.file, row.target)]
    cells += [f'<td class="n" data-value="{value}">{text}</td>' for text, value in numbers]
    cells += [f"<td>{escape(row.bound)}</td>", f'<td class="n" data-value="{row.warnings}">{row.warnings}</td>']
    return f"<tr>{''.join(cells)}</tr>"
