"""Makes untrusted text safe for a terminal or a log, which obey control characters and text direction marks."""

from __future__ import annotations


def make_printable(text: str, keep: str = "\n\t") -> str:
    """Return the text with a mark in place of each character that is not printable, except those to keep."""
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)
