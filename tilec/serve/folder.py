"""The kernels of one folder: listed files can be read and saved, and nothing else is accessible."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tilec.support import files

_NEW = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\.tl")
_CONSTANT = re.compile(r"[A-Za-z_]\w*=\S+")
_TIME_LIMIT_SECONDS = 120
"""The time limit of one compilation: an error in a kernel must not keep the machine busy."""


Outcome = tuple[str, bytes | None]
"""The output of a compilation, and the report page if there is one."""


class KernelFolder:
    """Kernel files of a folder and of the folders in it; links that lead out of it are not followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def names(self) -> list[str]:
        """Return the sorted paths of the kernels in the folder and the folders in it, relative to it, with slashes."""
        found = (path for pattern in ("*.tl", "*/*.tl") for path in self.folder.glob(pattern) if self._is_ours(path))
        return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def _is_ours(self, path: Path) -> bool:
        """Return whether a path is a file that lies in the folder after links are followed."""
        return path.is_file() and path.resolve().is_relative_to(self.folder)

    def read(self, name: str) -> str | None:
        """Return the text of a kernel; None if the folder has none of this name, `CompileError` raised if it cannot be
        read."""
        if name not in self.names():
            return None
        return files.read_source(str(self.folder / name)).text

    def may_save(self, name: str) -> bool:
        """Return whether a name is an existing kernel, or a valid new one, not yet a file, in the folder itself."""
        return name in self.names() or (_NEW.fullmatch(name) is not None and not os.path.lexists(self.folder / name))

    def save(self, name: str, text: str) -> None:
        """Write a kernel's text to its file atomically, with the line endings that it had; raises `CompileError` on
        failure. An unchanged text is not written."""
        assert self.may_save(name)
        before = self.read(name)
        if before is not None and "\r\n" in before:
            text = text.replace("\n", "\r\n")
        if text != before:
            files.write_all({str(self.folder / name): text.encode()})

    def compile(self, name: str, target: str, constants: Sequence[str]) -> Outcome:
        """Run `tilec report` on a kernel in a process of its own; return its output, and the HTML page if it made one.
        The page is None for a wrong constant, and after two minutes."""
        assert name in self.names()
        if strange := [word for word in constants if not _CONSTANT.fullmatch(word)]:
            return f"{strange[0]} is not a constant: write NAME=VALUE\n", None
        with tempfile.TemporaryDirectory() as scratch:
            page = Path(scratch, "report.html")
            given = [word for constant in constants for word in ("-D", constant)]
            command = ["report", f"./{name}", "--target", target, *given, "--html", str(page)]
            try:
                done = subprocess.run(
                    [sys.executable, "-P", "-m", "tilec", *command],
                    cwd=self.folder,
                    env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=_TIME_LIMIT_SECONDS,
                )
            except subprocess.TimeoutExpired:
                advice = f"run `tilec {name} --time` to see where"
                return f"compilation took more than {_TIME_LIMIT_SECONDS} s; {advice}\n", None
            # A page contains the tables of the report.
            if page.exists():
                return done.stderr, page.read_bytes()
            return done.stdout + done.stderr, None
