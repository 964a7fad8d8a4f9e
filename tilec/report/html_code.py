"""A kernel's text, its PTX and its machine code side by side, each line linked to what became of it in the others.

`.loc` lines in PTX and the comments of the disassembler say where instructions come from. A place is a file, counted
from 1 as `.file` lines do, and a line: `1:28`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from tilec.ptx.disassemble import PACKAGE
from tilec.report.html_parts import escaped
from tilec.support.source import SourceFile

_LOC = re.compile(r"\s*\.loc (\d+) (\d+) \d+")
_LINE_INFO = re.compile(r'\s*//## File "(.*)", line (\d+)')
_MANIFEST = re.compile(r"(\.visible \.global .* __tilec_manifest_\w+\[\d+\] = )\{.*\};")

Placed = tuple[str | None, str]
"""A line of code with the place that it comes from."""


def code_parts(source: SourceFile, ptx: str, sass: str | None) -> Iterator[str]:
    """The kernel at the left, what it became at the right."""
    files = {Path(source.path).name: source, **source.imported}
    from_ptx = list(ptx_lines(ptx))
    from_sass = list(sass_lines(sass, list(files))) if sass is not None else []
    linked = {place for place, _ in (*from_ptx, *from_sass) if place is not None}
    yield "<p>A line of the kernel lights up with the instructions it became; a click brings them into view.</p>"
    yield '<div class="code">'
    kernel = _pre("Kernel", _source(files, linked))
    yield f'<section><div class="beside"><h3>Kernel</h3>{kernel}</div></section>'
    yield "<section><h3>PTX</h3>" + _pre("PTX", _runs(from_ptx, "ptx"))
    yield "<h3>SASS</h3>"
    if sass is None:
        yield f'<p class="dim">No disassembler here: pip install {PACKAGE}, or put nvdisasm on the path.</p>'
    else:
        yield _pre("SASS", _runs(from_sass, "sass"))
    yield "</section></div>"


def ptx_lines(ptx: str) -> Iterator[Placed]:
    """Its lines but `.loc`, whose word each has instead. The manifest, data for programs, is left out."""
    place: str | None = None
    for line in ptx.splitlines():
        if found := _LOC.match(line):
            place = f"{found[1]}:{found[2]}" if found[2] != "0" else None
            continue
        if line.startswith((".visible", "}")):
            place = None
        yield place, _MANIFEST.sub(r"\1{…};", line)


def sass_lines(sass: str, files: Sequence[str]) -> Iterator[Placed]:
    """The instructions and labels of its functions."""
    place: str | None = None
    for line in sass.splitlines():
        if found := _LINE_INFO.match(line):
            place = f"{files.index(found[1]) + 1}:{found[2]}" if found[1] in files else None
            continue
        if line.lstrip().startswith((".section", "//---")):
            place = None
        if line.strip():
            yield place, line.expandtabs().rstrip()


def _pre(name: str, lines: Iterable[str]) -> str:
    return f'<pre tabindex="0" role="region" aria-label="{name}"><code>{"".join(lines)}</code></pre>'


def _source(files: dict[str, SourceFile], linked: set[str]) -> Iterator[str]:
    for number, (name, file) in enumerate(files.items(), 1):
        if len(files) > 1:
            yield f'<span class="file">{escaped(name)}</span>'
        for line, text in enumerate(file.lines, 1):
            place = f"{number}:{line}"
            if place in linked:
                target = f"to-{number}-{line}"
                at, shown = f' data-at="{place}"', f'<a class="number" href="#{target}">{line}</a>'
            else:
                at, shown = "", f'<span class="number">{line}</span>'
            yield f'<span class="line"{at}>{shown}{escaped(text)}\n</span>'


def _runs(lines: Iterable[Placed], kind: str) -> Iterator[str]:
    """Lines that stand together and come from one place are one element. The first of a place in the PTX is what the
    kernel's line number leads to."""
    seen: set[str] = set()
    for place, run in groupby(lines, key=lambda line: line[0]):
        text = "".join(f"{escaped(line)}\n" for _, line in run)
        if place is None:
            yield f'<span class="line">{text}</span>'
            continue
        anchor = f' id="to-{place.replace(":", "-")}"' if kind == "ptx" and place not in seen else ""
        seen.add(place)
        yield f'<span class="line" data-at="{place}"{anchor}>{text}</span>'
