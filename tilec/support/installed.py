"""The installed packages and their versions."""

from __future__ import annotations

import os
import sys
from functools import cache

from tilec import __version__

_DECIDE = ("ortools", "nvidia-nvjitlink", "nvidia-nvfatbin", "cuda-bindings", "lark")
"""The packages whose versions decide outputs."""


@cache
def installed_versions() -> dict[str, str]:
    """Return the versions of all installed packages by name, read from the names of their folders.

    Importing `importlib.metadata` takes longer than the rest of `tilec --version`. The first folder that has a package
    counts.
    """
    found: dict[str, str] = {}
    for folder in reversed(sys.path):
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []  # noqa: PTH112, PTH208 - pathlib is slow
        infos = (name.removesuffix(".dist-info") for name in names if name.endswith(".dist-info"))
        found |= {name.replace("_", "-").lower(): version for name, _, version in (i.partition("-") for i in infos)}
    return found


def format_versions() -> str:
    """Return `tilec 0.1.0` on the first line, for programs, and the packages that outputs depend on below."""
    found = installed_versions()
    return "\n".join([f"tilec {__version__}", *(f"  {name} {found.get(name, 'not found')}" for name in _DECIDE)])
