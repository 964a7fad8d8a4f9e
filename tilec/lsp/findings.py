"""Diagnostics in the types of the protocol, and their fixes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from lsprotocol import types

from tilec.driver.explanations import build_explanation_url
from tilec.lsp.positions import CodeUnits
from tilec.support.diagnostics import Diagnostic, Label
from tilec.support.source import SourceFile, Span

_SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "note": types.DiagnosticSeverity.Information,
}

HARMLESS_CODES = frozenset({"no-kernel"})
"""Codes of errors of a compilation that are none of an imported file: an editor opens both."""


def convert_diagnostics(
    found: Iterable[Diagnostic], source: SourceFile, uri: str, units: CodeUnits, site: str | None
) -> list[types.Diagnostic]:
    """Convert diagnostics to the protocol's, without repeated ones, their codes linked to `site` (None: not linked).
    Scheduling a kernel finds again what checking it has found. Codes link to `site`.
    """
    return [_convert_diagnostic(one, source, uri, units, site) for one in dict.fromkeys(found)]


def _convert_diagnostic(
    found: Diagnostic, source: SourceFile, uri: str, units: CodeUnits, site: str | None
) -> types.Diagnostic:
    """Convert a diagnostic to the protocol's, linked to `site` if given; one of an imported file to the line of the
    import.
    """
    labels = [label for label in (found.primary, *found.secondary) if label is not None and label.span.line > 0]
    # An error in another file is shown at the line of this file through which it is reached.
    shown = next((label for label in labels if not label.span.file), None)
    whole = source.whole_line(_import_line(labels, source)) if shown is None else shown.span
    related = [
        types.DiagnosticRelatedInformation(_convert_location(label, source, uri, units), label.text or found.title)
        for label in labels
        if label is not shown
    ]
    severity = _SEVERITY["note" if found.code in HARMLESS_CODES else found.severity]
    return types.Diagnostic(
        range=units.range(whole or Span(1, 1, 1, 1), source.lines),
        message=_message_text(found, shown),
        severity=severity,
        code=found.code,
        code_description=None if site is None else types.CodeDescription(build_explanation_url(found.code, site)),
        source="tilec",
        related_information=related,
    )


def _import_line(labels: list[Label], source: SourceFile) -> int:
    """Return the number of the line that seems to import a file of these labels; 1 if there is none."""
    stems = {Path(label.span.file).stem for label in labels}
    for number, line in enumerate(source.lines, start=1):
        if "import" in line and any(re.search(rf"\b{re.escape(stem)}\b", line) for stem in stems):
            return number
    return 1


def _message_text(found: Diagnostic, shown: Label | None) -> str:
    """Return a diagnostic's message, a line each: title, text of the shown label (None: of the primary one), notes,
    help.
    """
    label = shown if shown is not None else found.primary
    lines = [found.title, *([label.text] if label is not None and label.text else [])]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join([*lines, *([f"help: {found.help}"] if found.help is not None else [])])


def _convert_location(label: Label, source: SourceFile, uri: str, units: CodeUnits) -> types.Location:
    """Return a label's place as the protocol's location, in this file or in the imported one that it names."""
    if not label.span.file:
        return types.Location(uri, units.range(label.span, source.lines))
    file = source.of(label.span)
    place = Path(file.path)
    return types.Location(place.as_uri() if place.is_absolute() else uri, units.range(label.span, file.lines))


def find_fixes(found: Iterable[Diagnostic], source: SourceFile) -> Iterator[tuple[Diagnostic, Span, str]]:
    """Yield each diagnostic of this file with a fix, the span of the wrong text, which occurs there once, and its
    replacement.
    """
    for one in found:
        if one.fix is None or one.primary is None or one.primary.span.file:
            continue
        if (span := _find_only_place(one.fix.wrong, one.primary.span, source)) is not None:
            yield one, span, one.fix.right


def _find_only_place(word: str, span: Span, source: SourceFile) -> Span | None:
    """Return the span of a word inside another span, or None unless it occurs there exactly once."""
    whole = rf"(?<![\w.]){re.escape(word)}(?!\w)"
    places = [
        (number, found.start() + 1)
        for number in range(span.line, min(span.end_line, len(source.lines)) + 1)
        for found in re.finditer(whole, source.lines[number - 1])
        if (span.line, span.column) <= (number, found.start() + 1)
        and (number, found.end() + 1) <= (span.end_line, span.end_column)
    ]
    if len(places) != 1:
        return None
    line, column = places[0]
    return Span(line, column, line, column + len(word))
