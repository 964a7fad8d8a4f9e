"""Forms for people of what the compiler computes or was given: shares, and untrusted text."""

from __future__ import annotations

import math


def make_printable(text: str, keep: str = "\n\t") -> str:
    """Return the text with a replacement mark for each character that is not printable, except those to keep."""
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def whole_percent(share: float) -> int:
    """Return a share (0 to 1) in whole percent, rounded half up.

    `percent` of templates/report.js rounds it the same way.
    """
    return math.floor(100 * share + 0.5)


def show_share(share: float) -> str:
    """Return a share as text: `87%`."""
    return f"{whole_percent(share)}%"
