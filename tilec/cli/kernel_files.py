"""The kernel files of a command line: files, folders, patterns, and - for standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tilec.support import files
from tilec.support.diagnostics import raise_error
from tilec.support.source import SourceFile

STDIN = "-"
_STDIN_NAME = "<stdin>"


def find_kernel_files(names: Sequence[str]) -> dict[str, bool]:
    """Return every file once, in the order of the names, and whether it comes from a folder or a pattern. A folder
    stands for all kernel files in it and below. An existing file is taken as it is, even if its name has the form of a
    pattern."""
    found: dict[str, bool] = {}
    for name in names:
        if name == STDIN or Path(name).is_file():
            found[name] = False
            continue
        below = _find_files_below(name)
        if below is None:
            found.setdefault(name, False)  # reading it reports that it is missing
            continue
        if not below:
            raise_error("no-such-file", f"there is no kernel file in {name}", help="kernel files end in .tl")
        for path in below:
            found.setdefault(path, True)
    return found


def _find_files_below(name: str) -> list[str] | None:
    """Return the kernel files of a folder or a pattern; None if the name is neither."""
    if Path(name).is_dir():
        return sorted(str(path) for path in Path(name).rglob("*.tl") if path.is_file())
    if any(sign in name for sign in "*?["):
        root = Path(name).anchor
        found = Path(root).glob(name.removeprefix(root)) if root else Path().glob(name)
        return sorted(str(path) for path in found if path.is_file())
    return None


def read_kernel_file(name: str) -> SourceFile:
    """Read a kernel file, or standard input."""
    return files.read_source(name) if name != STDIN else SourceFile(_STDIN_NAME, read_standard_input().decode())


def read_standard_input() -> bytes:
    """Return all of standard input. Raises unless it is text."""
    data = sys.stdin.buffer.read()
    files.decode_text(_STDIN_NAME, data)
    return data
