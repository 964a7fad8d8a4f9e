"""Shows shares: in text, in the schedule trace and on pages, one quantity has one number."""

from __future__ import annotations

import math


def whole_percent(share: float) -> int:
    """Return a share in percent, rounded half up, as `percent` of templates/report.js rounds it."""
    return math.floor(100 * share + 0.5)


def show_share(share: float) -> str:
    """Return a share as text: `87%`."""
    return f"{whole_percent(share)}%"
