"""Forms for people of what the compiler computes or was given: shares, and untrusted text."""

from __future__ import annotations

import math


def make_printable(text: str, keep: str = "\n\t") -> str:
    """Return the text with a mark in place of each character that is not printable, except those to keep."""
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def whole_percent(share: float) -> int:
    """Return a share in percent, rounded half up, as `percent` of templates/report.js rounds it."""
    return math.floor(100 * share + 0.5)


def show_share(share: float) -> str:
    """Return a share as text: `87%`."""
    return f"{whole_percent(share)}%"
