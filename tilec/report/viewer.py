"""Builds the viewer, an HTML page that draws schedule traces and, if there is one, the report of the compiled kernels;
and the index of several such pages, a table of kernels that is sorted by its headings.

Each page is a template with style, script and data filled in; the viewer's script draws two blocks of JSON. A page
loads nothing, and its own script is the only one that may run, by its digest.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from tilec.support.display import show_share
from tilec.support.records import dataclass

_FOLDER = Path(__file__).parent / "templates"


def build_viewer_page(traces: Sequence[Mapping[str, Any]], report: Mapping[str, Any] | None = None) -> str:
    """Return the HTML page that draws the `tilec` members of traces, one a kernel, and the compiled kernels' report, if
    given. `report` is the result of `build_page_data` for the same kernels, in the same order."""
    return _fill_template("report", traces=_embed_json(traces), report=_embed_json(report))


def _fill_template(name: str, **parts: str) -> str:
    """Return the HTML page of this name with its script, the style of all pages, and further parts filled in."""
    script = read_template(f"{name}.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    page = Template(read_template(f"{name}.html"))
    return page.substitute(parts, digest=digest, style=read_template("report.css"), script=script)


def _embed_json(value: object) -> str:
    """Return a value as JSON in which `<`, `>` and `&` are escaped, so that it neither ends nor begins an HTML
    element."""
    text = json.dumps(value, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def read_template(name: str) -> str:
    """Return the text of a file in the folder of templates."""
    return (_FOLDER / name).read_text(encoding="utf-8")


# ---- the index -------------------------------------------------------------------------------------------------------


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
    """Return the HTML page with a table of kernels, the slowest first. Headings that begin with `>` are numeric."""
    heads = "".join(
        f'<th scope="col"{" class=n" if head.startswith(">") else ""} aria-sort="none">'
        f'<button type="button">{escape(head.removeprefix(">"))}</button></th>'
        for head in _HEADINGS
    )
    body = "\n".join(_build_row(row) for row in sorted(rows, key=lambda row: (-row.microseconds, row.file, row.kernel)))
    return _fill_template("index", heads=heads, rows=body)


def _build_row(row: IndexRow) -> str:
    """Return a kernel's row of the index table in HTML."""
    share = ("–", -1.0) if row.share is None else (show_share(row.share), row.share)
    numbers = ((f"{row.microseconds:,.1f}", row.microseconds), share)
    cells = [f'<td><a href="{quote(row.page)}">{escape(row.kernel)}</a></td>']
    cells += [f"<td>{escape(text)}</td>" for text in (row.file, row.target)]
    cells += [f'<td class="n" data-value="{value}">{text}</td>' for text, value in numbers]
    cells += [f"<td>{escape(row.bound)}</td>", f'<td class="n" data-value="{row.warnings}">{row.warnings}</td>']
    return f"<tr>{''.join(cells)}</tr>"
