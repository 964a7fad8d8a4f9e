"""Text of strangers for a terminal or a log, which would obey control characters and turn around what it shows."""

from __future__ import annotations


def printable(text: str, keep: str = "\n\t") -> str:
    """Return the text with a mark in place of each character that cannot be seen, but for those to keep."""
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)
