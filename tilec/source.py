"""Source text and positions in it. Every node of every IR carries a `Span`, so each later stage can name its line."""

from __future__ import annotations

from dataclasses import field

from tilec.records import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters, as 1-based lines and columns (the last column is exclusive)."""

    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, other: Span) -> Span:
        """The smallest span from the start of `self` to the end of `other`."""
        return Span(self.line, self.column, other.end_line, other.end_column)


NOWHERE = Span(0, 0, 0, 0)
"""The span of what the compiler made up; it points at no text."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A kernel file: `path` as the user wrote it (it appears in messages only), and its text."""

    path: str
    text: str
    lines: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.text.split("\n")))
