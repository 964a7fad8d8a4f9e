"""Builds the viewer: an HTML page that draws schedule traces and, if there is one, the report of the compiled kernels.

The page is always `templates/report.html`, with style, script and two blocks of JSON filled in; its script draws the
JSON. It loads nothing, and its own script is the only one that may run, by its digest.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import Any

_FOLDER = Path(__file__).parent / "templates"


def build_viewer_page(traces: Sequence[Mapping[str, Any]], report: Mapping[str, Any] | None = None) -> str:
    """Return the page of the `tilec` members of traces, one a kernel. `report` is the result of `build_page_data` for
    the same kernels, in the same order."""
    script = read_template("report.js")
    return Template(read_template("report.html")).substitute(
        digest=b64encode(sha256(script.encode()).digest()).decode(),
        style=read_template("report.css"),
        traces=_embed_json(traces),
        report=_embed_json(report),
        script=script,
    )


def _embed_json(value: object) -> str:
    """Return JSON that can neither end nor begin an HTML element: `<`, `>` and `&`, which only strings can contain, are
    written as \\u003c and so on."""
    text = json.dumps(value, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def read_template(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
