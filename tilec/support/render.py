"""Draws diagnostics for a terminal: title, source lines with underlined text, notes and help.

The user's text is printed as plain text: no markup, no control characters, tabs as spaces.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from tilec.support.diagnostics import Diagnostic, Label, Severity
from tilec.support.display import make_printable
from tilec.support.source import SourceFile

_COLOUR: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_FRAME = "blue"
_SECONDARY = "cyan"
_TAB = "    "
_WIDEST = 160
"""The longest line shown; a longer one is cropped around its label."""
_BEFORE = 60


def render_diagnostic(diagnostic: Diagnostic, source: SourceFile | None = None) -> Text:
    """Return a diagnostic as styled text: title, labelled source lines by file, notes and help.

    Source lines need `source` and a place in it. Each file is headed by its name, the primary label's first.
    """
    colour = _COLOUR[diagnostic.severity]
    out = Text()
    out.append(f"{diagnostic.severity}[{diagnostic.code}]", colour)
    out.append(f": {_make_printable(diagnostic.title)}", "bold")
    labels = _visible_labels(diagnostic, source)
    width = max((len(str(label.span.line)) for label, _ in labels), default=0)
    for name in dict.fromkeys(label.span.file for label, _ in labels):
        here = [(label, is_primary) for label, is_primary in labels if label.span.file == name]
        assert source is not None
        _draw_file(out, source.of(here[0][0].span), here, width, colour)
    for kind, text in (*(("note", n) for n in diagnostic.notes), ("help", diagnostic.help)):
        if text is not None:
            out.append(f"\n{' ' * width} = ", _FRAME)
            out.append(f"{kind}: ", "bold")
            out.append(_make_printable(text))
    return out


def _visible_labels(diagnostic: Diagnostic, source: SourceFile | None) -> list[tuple[Label, bool]]:
    """Return the labels at existing lines of the source, each with whether it is the primary; none without a source."""
    if source is None:
        return []
    primary = [] if diagnostic.primary is None else [(diagnostic.primary, True)]
    labels = [*primary, *((label, False) for label in dict.fromkeys(diagnostic.secondary))]
    return [(label, p) for label, p in labels if 1 <= label.span.line <= len(source.of(label.span).lines)]


def _draw_file(out: Text, file: SourceFile, labels: list[tuple[Label, bool]], width: int, colour: str) -> None:
    """Append to `out` a file's name with the place of its first label, and its lines with labels."""
    first = labels[0][0].span
    out.append(f"\n{' ' * width}--> ", _FRAME)
    out.append(f"{_make_printable(file.path)}:{first.line}:{first.column}")
    out.append(f"\n{' ' * width} |", _FRAME)
    for line in sorted({label.span.line for label, _ in labels}):
        here = [(label, is_primary) for label, is_primary in labels if label.span.line == line]
        _draw_line(out, file.lines[line - 1], line, here, width, colour)


def _draw_line(out: Text, line: str, number: int, labels: list[tuple[Label, bool]], width: int, colour: str) -> None:
    """Append to `out` a source line, cropped if long, and under it each label with its marks and text."""
    line = line.rstrip("\r")
    left = max(labels[0][0].span.column - 1 - _BEFORE, 0) if len(line) > _WIDEST else 0
    first = _cell_offset(line, left)
    out.append(f"\n{number:>{width}} | ", _FRAME)
    out.append(_make_printable(line)[first : first + _WIDEST].rstrip())
    # From left to right, in the order of the text; the primary label comes last in a tie.
    for label, is_primary in sorted(labels, key=lambda item: (item[0].span.column, item[1])):
        span = label.span
        end = span.end_column if span.end_line == span.line else len(line) + 1
        start = _cell_offset(line, span.column - 1)
        length = max(_cell_offset(line, end - 1) - start, 1)
        indent = max(start - first, 0)
        style = colour if is_primary else _SECONDARY
        out.append(f"\n{' ' * width} | ", _FRAME)
        out.append(" " * indent + ("^" if is_primary else "-") * min(length, _WIDEST), style)
        if label.text:
            out.append(f" {_make_printable(label.text)}", style)


def _cell_offset(line: str, characters: int) -> int:
    """Return the terminal column after so many characters of a line, counting tabs and wide characters."""
    return cell_len(_make_printable(line[: max(characters, 0)]))


def _make_printable(text: str) -> str:
    return make_printable(text.replace("\t", _TAB), keep="")
