"""Source text and positions in it. Every node of every IR carries a `Span`, so each later stage can name its line."""

from __future__ import annotations

from dataclasses import field

from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters, as 1-based lines and columns (the last column is exclusive). `file` is the path
    of an imported file, relative to the compiled one, whose own `file` is ""."""

    line: int
    column: int
    end_line: int
    end_column: int
    file: str = ""

    @property
    def place(self) -> str:
        """Return the line as messages name it: `line 14`, or `line 3 of parts/scale.tl` in an imported file."""
        return f"line {self.line} of {self.file}" if self.file else f"line {self.line}"

    def to(self, other: Span) -> Span:
        """Return the span from the start of `self` to the end of `other`."""
        return Span(self.line, self.column, other.end_line, other.end_column, self.file)

    def first_line(self) -> Span:
        """Return the span itself, or only its first character if it has several lines."""
        if self.line == self.end_line:
            return self
        return Span(self.line, self.column, self.line, self.column + 1, self.file)


NOWHERE = Span(0, 0, 0, 0)
"""The span of generated code; it points at no text."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A kernel file: `path` as the user wrote it (for messages only), and its text. `imported` fills with the files
    that it imports, by the `file` of their spans, as they are read."""

    path: str
    text: str
    lines: tuple[str, ...] = field(init=False, repr=False, compare=False)
    imported: dict[str, SourceFile] = field(default_factory=dict, repr=False, compare=False)

    def of(self, span: Span) -> SourceFile:
        """Return the imported file that a span points into, or this file."""
        return self.imported.get(span.file, self)

    def digest(self) -> str:
        """Return a hash of this file's text and of the imported files read so far, wherever they lie."""
        from hashlib import sha256

        whole = sha256(self.text.encode())
        for path, file in sorted(self.imported.items()):
            whole.update(f"\0{path}\0{file.text}".encode())
        return whole.hexdigest()

    def whole_line(self, line: int, file: str = "") -> Span | None:
        """Return the span of a line without leading spaces, in an imported file or else this; None if it has none."""
        name = file if file in self.imported else ""
        lines = self.imported[name].lines if name else self.lines
        if not 0 < line <= len(lines):
            return None
        text = lines[line - 1].rstrip()
        return Span(line, len(text) - len(text.lstrip()) + 1, line, len(text) + 1, name)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.text.split("\n")))
