"""Replaces measured rows in the text of a target file; every other byte stays."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tilec.calibrate.plan import Row, Value
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """A cell of the file, before and after."""

    table: str
    key: str
    before: str
    after: str


def rewrite_rows(text: str, rows: Sequence[Row], file: str) -> tuple[str, tuple[Change, ...]]:
    """Return a target file's text with the rows' cells replaced, and the changes; skip tables the file lacks.

    A machine lacks the instruction of a missing table. A table of another form than in the shipped files is refused as
    `bad-target-file`.
    """
    lines = text.split("\n")
    changes = []
    for row in rows:
        found = _find_section(lines, row.table)
        if found is None:
            continue
        source = f'{{ kind = "measured", where = {json.dumps(row.where, ensure_ascii=False)} }}'
        cells = {key: _toml_value(value) for key, value in row.cells.items()}
        if "timing." in row.table:
            cells["source"] = source
        for key, value in cells.items():
            entry = value if "timing." in row.table else f"{{ value = {value}, source = {source} }}"
            changes.append(_replace_value(lines, found, row.table, key, entry, file))
    return "\n".join(lines), tuple(changes)


def _toml_value(value: Value) -> str:
    return str(value) if isinstance(value, int) else json.dumps(value)


def _find_section(lines: Sequence[str], table: str) -> range | None:
    """Return the numbers of the lines between a table's header and the next header; None if there is no such table."""
    if f"[{table}]" not in lines:
        return None
    start = lines.index(f"[{table}]") + 1
    end = next((at for at in range(start, len(lines)) if lines[at].startswith("[")), len(lines))
    return range(start, end)


def _replace_value(lines: list[str], section: range, table: str, key: str, entry: str, file: str) -> Change:
    """Replace a key's value, or a slot's cycles, in `lines` and return the change; raise `bad-target-file` if it is
    missing.
    """
    slot = key.removeprefix("uses.")
    pattern = rf'^(\s*\{{ slot = "{re.escape(slot)}", cycles = )("[^"]*"|[\d.]+)(.*)$'
    if slot == key:
        pattern = rf'^({re.escape(key)} = )("[^"]*"|[\d.]+|\{{.*\}})(.*)$'
    found = next(((at, match) for at in section if (match := re.match(pattern, lines[at]))), None)
    if found is None:
        raise_error(
            "bad-target-file",
            f"{file}: [{table}] has no line of its own for {key}",
            help="write it as in the target files that ship with tilec",
        )
    at, match = found
    lines[at] = f"{match[1]}{entry}{match[3]}"
    return Change(table, key, match[2], entry)
