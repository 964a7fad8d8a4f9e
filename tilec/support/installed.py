"""Which packages are installed, in which versions."""

from __future__ import annotations

import os
import sys
from functools import cache


@cache
def installed() -> dict[str, str]:
    """Return the versions of all packages by their names, as their folders have them: `importlib.metadata` takes longer
    to import than `tilec --version` does everything else. The first folder in which one is found counts."""
    found: dict[str, str] = {}
    for folder in reversed(sys.path):
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []  # noqa: PTH112, PTH208 - pathlib is slow
        infos = (name.removesuffix(".dist-info") for name in names if name.endswith(".dist-info"))
        found |= {name.replace("_", "-").lower(): version for name, _, version in (i.partition("-") for i in infos)}
    return found
