"""Diagnostics in formats for programs: JSON lines, SARIF 2.1.0, and GitHub's workflow commands.

They are written to standard error, as the text format is. Lines and columns count from 1, columns in characters, and
the end of a range is exclusive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from tilec import __version__
from tilec.support.diagnostics import Diagnostic, Label
from tilec.support.display import make_printable
from tilec.support.source import SourceFile

Format = Literal["text", "json", "sarif", "github"]
FORMATS: tuple[Format, ...] = ("text", "json", "sarif", "github")

LocatedDiagnostic = tuple[Diagnostic, SourceFile | None]
"""A diagnostic, and its source file if it has one."""


def format_json(found: Iterable[LocatedDiagnostic]) -> str:
    """Return the diagnostics as one JSON object a line."""
    return "".join(_dump_json(_make_record(*one)) + "\n" for one in found)


def _dump_json(value: object, indent: int | None = None) -> str:
    """Return the JSON of a value, with letters unescaped and invisible characters escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _make_record(diagnostic: Diagnostic, source: SourceFile | None) -> dict[str, Any]:
    """Return a diagnostic as a JSON object: severity, code, texts, and places in the source, null without one."""
    return {
        "severity": diagnostic.severity,
        "code": diagnostic.code,
        "title": diagnostic.title,
        "primary": _locate_label(diagnostic.primary, source),
        "secondary": [_locate_label(label, source) for label in diagnostic.secondary],
        "notes": diagnostic.notes,
        "help": diagnostic.help,
    }


def _locate_label(label: Label | None, source: SourceFile | None) -> dict[str, Any] | None:
    """Return a label's file, lines, columns and text; None if it has no source text."""
    if label is None or source is None or label.span.line < 1:
        return None
    span = label.span
    place = {name: getattr(span, name) for name in ("line", "column", "end_line", "end_column")}
    return {"file": source.of(span).path, **place, "text": label.text}


# ---- GitHub ----------------------------------------------------------------------------------------------------------

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def format_github(found: Iterable[LocatedDiagnostic]) -> str:
    """Return the diagnostics as GitHub workflow commands, one a line, shown beside the lines of a change."""
    return "".join(_format_command(*one) + "\n" for one in found)


def _format_command(diagnostic: Diagnostic, source: SourceFile | None) -> str:
    """Return the workflow command of a diagnostic, with its place if it has one."""
    place = _locate_label(diagnostic.primary, source)
    properties = {"title": f"tilec[{diagnostic.code}]"}
    if place is not None:
        keys = {"file": "file", "line": "line", "endLine": "end_line", "col": "column"}
        properties = {name: str(place[key]) for name, key in keys.items()} | properties
    written = ",".join(f"{name}={_escape_property(value)}" for name, value in properties.items())
    return f"::{_COMMANDS[diagnostic.severity]} {written}::{_escape_message(_format_text(diagnostic, source))}"


def _format_text(diagnostic: Diagnostic, source: SourceFile | None) -> str:
    """Return all texts of a diagnostic on lines of their own, without source lines."""
    lines = [diagnostic.title]
    if diagnostic.primary is not None and diagnostic.primary.text:
        lines.append(diagnostic.primary.text)
    for place in (_locate_label(label, source) for label in diagnostic.secondary):
        if place is not None:
            lines.append(f"{place['file']}:{place['line']}:{place['column']}: {place['text']}")
    lines += [f"note: {note}" for note in diagnostic.notes]
    return "\n".join([*lines, *([f"help: {diagnostic.help}"] if diagnostic.help is not None else [])])


def _escape_message(text: str) -> str:
    return make_printable(text, keep="\r\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_message(text).replace(":", "%3A").replace(",", "%2C")


# ---- SARIF -----------------------------------------------------------------------------------------------------------


def format_sarif(found: Sequence[LocatedDiagnostic], site: str | None = None) -> str:
    """Return the diagnostics as one SARIF log with one run.

    The rules are the codes that occur, with the texts of `tilec explain`, and with their addresses if the documents are
    on a `site`.
    """
    codes = list(dict.fromkeys(diagnostic.code for diagnostic, _ in found))
    rules = [_make_rule(code, site) for code in codes]
    run = {
        "tool": {"driver": {"name": "tilec", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_make_result(diagnostic, source, codes.index(diagnostic.code)) for diagnostic, source in found],
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return _dump_json(log, indent=1) + "\n"


def _make_rule(code: str, site: str | None) -> dict[str, Any]:
    """Return the SARIF rule of a code: its explanation, and its address on the documents' site unless that is None."""
    from tilec.driver.explanations import EXPLANATIONS, build_explanation_url

    rule = {"id": code, "fullDescription": {"text": " ".join(EXPLANATIONS[code].split())}}
    return rule if site is None else rule | {"helpUri": build_explanation_url(code, site)}


def _make_result(diagnostic: Diagnostic, source: SourceFile | None, rule: int) -> dict[str, Any]:
    """Return the SARIF result of a diagnostic; `rule` is the index of its code among the rules."""
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity,
        "message": {"text": _format_text(diagnostic, source)},
    }
    if (primary := _locate_label(diagnostic.primary, source)) is not None:
        result["locations"] = [_make_location(primary)]
    related = [place for label in diagnostic.secondary if (place := _locate_label(label, source)) is not None]
    if related:
        result["relatedLocations"] = [_make_location(place) | {"message": {"text": place["text"]}} for place in related]
    return result


def _make_location(place: dict[str, Any]) -> dict[str, Any]:
    """Return a label's place as a SARIF location, with a file URI for an absolute path."""
    keys = {"startLine": "line", "startColumn": "column", "endLine": "end_line", "endColumn": "end_column"}
    region = {name: place[key] for name, key in keys.items()}
    path = Path(place["file"])
    # The reader resolves a relative one, which must not begin with a slash.
    uri = path.as_uri() if path.is_absolute() else quote(place["file"])
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
