"""`--version`: tilec's own, and those of what its output depends on, byte for byte."""

from __future__ import annotations

from tilec import __version__
from tilec.support.installed import installed_versions

_DECIDE = ("ortools", "nvidia-nvjitlink", "nvidia-nvfatbin", "cuda-bindings", "lark")


def versions() -> str:
    """`tilec 0.1.0` on the first line, for programs; what it stands on behind that."""
    found = installed_versions()
    return "\n".join([f"tilec {__version__}", *(f"  {name} {found.get(name, 'not found')}" for name in _DECIDE)])
