"""The viewer: one page of HTML that draws schedule traces, and a report of what was compiled where there is one.

The page is the same file every time, `templates/report.html`; its script draws what stands in two blocks of JSON, and
all that is done here is to put those into it, with style and script. It loads nothing, and runs no other script: it
names its own by its digest.
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


def page(traces: Sequence[Mapping[str, Any]], report: Mapping[str, Any] | None = None) -> str:
    """The page about the `tilec` members of traces, one a kernel. `report` is what `page_data` knows of the same
    kernels as they were compiled, in the same order."""
    script = template("report.js")
    return Template(template("report.html")).substitute(
        digest=b64encode(sha256(script.encode()).digest()).decode(),
        style=template("report.css"),
        traces=_embedded(traces),
        report=_embedded(report),
        script=script,
    )


def _embedded(value: object) -> str:
    """JSON that ends no element and begins none, whatever a person wrote in it: `<`, `>` and `&` as \\u003c and so on,
    which only strings can hold."""
    text = json.dumps(value, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def template(name: str) -> str:
    """The text of a file that pages are made of."""
    return (_FOLDER / name).read_text(encoding="utf-8")
