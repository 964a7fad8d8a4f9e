"""`--version`: the versions of tilec, and of all packages that its output depends on."""

from __future__ import annotations

from tilec import __version__
from tilec.support.installed import installed_versions

_DECIDE = ("ortools", "nvidia-nvjitlink", "nvidia-nvfatbin", "cuda-bindings", "lark")


def format_versions() -> str:
    """Return `tilec 0.1.0` on the first line, for programs, and the packages below."""
    found = installed_versions()
    return "\n".join([f"tilec {__version__}", *(f"  {name} {found.get(name, 'not found')}" for name in _DECIDE)])
