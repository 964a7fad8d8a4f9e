"""`--version`: tilec's own, and those of what its output depends on, byte for byte."""

from __future__ import annotations

import os
import sys

from tilec import __version__

_DECIDE = ("ortools", "nvidia-nvjitlink", "nvidia-nvfatbin", "cuda-python", "lark")


def versions() -> str:
    """`tilec 0.1.0` on the first line, for programs; what it stands on behind that."""
    installed = dict(_installed())
    return "\n".join([f"tilec {__version__}", *(f"  {name} {installed.get(name, 'not found')}" for name in _DECIDE)])


def _installed() -> list[tuple[str, str]]:
    """Names and versions of all packages, as their folders have them: `importlib.metadata` takes longer to import than
    all the rest of this command. The first folder in which one is found counts, and stands last."""
    found: list[tuple[str, str]] = []
    for folder in reversed(sys.path):
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []  # noqa: PTH112, PTH208 - pathlib is slow
        infos = (name.removesuffix(".dist-info") for name in names if name.endswith(".dist-info"))
        found += [(name.replace("_", "-").lower(), version) for name, _, version in (i.partition("-") for i in infos)]
    return found
