"""The kernel files that a command line names: files, folders, patterns, and - for standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tilec.support import files
from tilec.support.diagnostics import raise_error
from tilec.support.source import SourceFile

STDIN = "-"
_STDIN_NAME = "<stdin>"


def kernel_files(names: Sequence[str]) -> dict[str, bool]:
    """Every file once, in the order of the names, and whether a folder or a pattern has brought it: of a folder, all
    kernel files in it and below. A file is taken as it is, whatever its name looks like."""
    found: dict[str, bool] = {}
    for name in names:
        if name == STDIN or Path(name).is_file():
            found[name] = False
            continue
        below = _below(name)
        if below is None:
            found.setdefault(name, False)  # whoever reads it says that it is missing
            continue
        if not below:
            raise_error("no-such-file", f"there is no kernel file in {name}", help="kernel files end in .tl")
        for path in below:
            found.setdefault(path, True)
    return found


def _below(name: str) -> list[str] | None:
    """The kernel files of a folder or a pattern; None of a name that is neither."""
    if Path(name).is_dir():
        return sorted(str(path) for path in Path(name).rglob("*.tl") if path.is_file())
    if any(sign in name for sign in "*?["):
        root = Path(name).anchor
        found = Path(root).glob(name.removeprefix(root)) if root else Path().glob(name)
        return sorted(str(path) for path in found if path.is_file())
    return None


def read(name: str) -> SourceFile:
    """A kernel file, or what standard input holds."""
    return files.read_source(name) if name != STDIN else SourceFile(_STDIN_NAME, standard_input().decode())


def standard_input() -> bytes:
    """All of it, which has to be text."""
    data = sys.stdin.buffer.read()
    files.decode_text(_STDIN_NAME, data)
    return data
