"""Conversion of places in a text: tilec counts lines and characters from 1, an editor lines and code units from 0."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types

from tilec.support.records import dataclass
from tilec.support.source import Span

_CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


@dataclass(frozen=True, slots=True)
class CodeUnits:
    """The editor's code units: of UTF-16, unless both sides agreed on others."""

    encoding: str = "utf-16"

    def length(self, text: str) -> int:
        """Return how many of the editor's code units a text takes."""
        codec, width = _CODECS[self.encoding]
        return len(text.encode(codec, "surrogatepass")) // width

    def range(self, span: Span, lines: Sequence[str]) -> types.Range:
        """Convert a span to the editor's range, clipped to the text; its end is never before its start."""
        start = self._position(span.line, span.column, lines)
        end = self._position(span.end_line, span.end_column, lines)
        return types.Range(start, max(start, end, key=lambda at: (at.line, at.character)))

    def _position(self, line: int, column: int, lines: Sequence[str]) -> types.Position:
        """Convert a line and column to the editor's position; outside the lines, the beginning or end of the text."""
        if not 1 <= line <= len(lines):
            return types.Position(0, 0) if line < 1 else types.Position(len(lines), 0)
        return types.Position(line - 1, self.length(lines[line - 1].rstrip("\r")[: max(column - 1, 0)]))

    def place(self, position: types.Position, lines: Sequence[str]) -> tuple[int, int]:
        """Convert the editor's position to a line and column that count from 1, the nearest inside the text."""
        if position.line >= len(lines):
            return len(lines), len(lines[-1]) + 1
        text, left = lines[position.line].rstrip("\r"), position.character
        for column, character in enumerate(text, start=1):
            if left <= 0:
                return position.line + 1, column
            left -= self.length(character)
        return position.line + 1, len(text) + 1
