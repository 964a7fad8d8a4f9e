"""Source text and positions in it. Every node of every IR carries a `Span`, so each later stage can name its line."""

from __future__ import annotations

from dataclasses import field

from tilec.records import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters, as 1-based lines and columns (the last column is exclusive). `file` is the path
    of an imported file; the kernel file itself has none."""

    line: int
    column: int
    end_line: int
    end_column: int
    file: str = ""

    def to(self, other: Span) -> Span:
        """The smallest span from the start of `self` to the end of `other`."""
        return Span(self.line, self.column, other.end_line, other.end_column, self.file)


NOWHERE = Span(0, 0, 0, 0)
"""The span of what the compiler made up; it points at no text."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A kernel file: `path` as the user wrote it (it appears in messages only), and its text. `imported` are the files
    that it imports, by their paths: the front end notes them here, so that a message can show their lines."""

    path: str
    text: str
    imported: dict[str, SourceFile] = field(default_factory=dict, repr=False, compare=False)
    lines: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.text.split("\n")))

    def of(self, span: Span) -> SourceFile:
        """The file that a span lies in."""
        return self.imported.get(span.file, self)
