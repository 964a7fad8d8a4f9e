"""What pages of HTML are made of: the document around everything, tables, and drawings as SVG.

A page holds everything: no script, no font and no picture from elsewhere, and colours for light and dark. Whatever a
person wrote passes through `escaped`; a page with a script names it by its digest, so that no other would run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_FOLDER = Path(__file__).parent / "templates"

STAGES = 6
"""So many colours there are: the stages of a schedule take turns at them."""


def escaped(text: str) -> str:
    """As the content of an element, or of an attribute in quotation marks; no control characters."""
    return escape("".join(c if c.isprintable() or c in "\n\t" else "�" for c in text))


def document(title: str, about: str, body: Iterable[str], sections: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page. With `sections`, the id and the name of each, it begins with links to them, and has the script
    that links lines of code."""
    style = _template("report.css") + "\n".join(
        f".s{i} {{ fill: var(--s{i}); background: var(--s{i}); }}" for i in range(STAGES)
    )
    script = _template("report.js") if sections else ""
    allowed = f"'sha256-{_digest(script)}'" if script else "'none'"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
    lines = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>{escaped(title)}</title>\n<style>\n{style}\n</style>\n</head>\n<body>",
    ]
    if sections:
        links = "".join(f'<li><a href="#{name}">{escaped(text)}</a></li>' for name, text in sections)
        lines.append(
            '<a class="skip" href="#main">Skip to the content</a>\n'
            f"<header><h1>{escaped(title)}</h1>\n"
            '<button id="theme" type="button" hidden="hidden" aria-label="Switch between light and dark"></button>\n'
            f'<p class="dim">{escaped(about)}</p>\n<nav aria-label="Sections"><ul>{links}</ul></nav></header>'
        )
    else:
        lines.append(f'<header><h1>{escaped(title)}</h1>\n<p class="dim">{escaped(about)}</p></header>')
    lines += ['<main id="main">', *body, "</main>"]
    if script:
        lines.append(f"<script>{script}</script>")
    return "\n".join([*lines, "</body>\n</html>\n"])


def section(name: str, heading: str, body: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{escaped(heading)}</h2>',
            *body,
            "</section>",
        ]
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]], marked: Sequence[bool] = ()) -> str:
    """Columns of whole numbers stand to the right; None is a dash. Rows that are `marked` stand out."""
    listed = list(rows)
    numeric = [all(isinstance(row[i], int) or row[i] is None for row in listed) for i in range(len(head))]
    kinds = [' class="n"' if is_number else "" for is_number in numeric]
    cells = "".join(
        f'<th scope="col"{k}>{escaped(name.replace("_", " "))}</th>' for k, name in zip(kinds, head, strict=True)
    )
    lines = [f'<div class="scroll" tabindex="0" role="region" aria-label="Table"><table><tr>{cells}</tr>']
    for index, row in enumerate(listed):
        mark = ' class="binds"' if index < len(marked) and marked[index] else ""
        texts = ("–" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        cells = "".join(f"<td{k}>{escaped(text)}</td>" for k, text in zip(kinds, texts, strict=True))
        lines.append(f"<tr{mark}>{cells}</tr>")
    return "\n".join([*lines, "</table></div>"])


def svg(parts: Iterable[str], width: int, height: int, name: str, kind: str = "") -> str:
    """A drawing; where there is no room for it, it scrolls."""
    box = f'viewBox="0 0 {width} {height}"' + (f' class="{kind}"' if kind else "")
    drawing = f'<svg {box} role="img" aria-label="{name}">\n' + "\n".join(parts) + "\n</svg>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Drawing: {name}">{drawing}</div>'


def _template(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    from base64 import b64encode
    from hashlib import sha256

    return b64encode(sha256(script.encode()).digest()).decode()
