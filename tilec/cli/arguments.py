"""The meaning of words on a command line: `@FILE`, as in gcc, clang and nvcc; and the kernel files of files, folders,
patterns, and - for standard input."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tilec.support import files
from tilec.support.diagnostics import raise_error
from tilec.support.source import SourceFile

MAX_DEPTH, MAX_FILES, MAX_WORDS = 16, 256, 20_000
MAX_CHARACTERS = 1 << 20
"""Limits on the nesting of `@FILE`s, on reads, on words (of any command line too), and on characters in all."""


class _ResponseFileReader:
    """The files read so far, with limits on all of them together: small files that name each other may never end."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._bytes = self._words = 0

    def read_words(self, path: str, depth: int) -> list[str]:
        """Return the words of one @FILE, split as in a shell; raise `bad-response-file` beyond a limit on all files
        read.
        """
        text = files.read_text(path, MAX_CHARACTERS)
        self.names.append(path)
        self._bytes += len(text)
        too_much = {
            f"nested more than {MAX_DEPTH} files deep": depth > MAX_DEPTH,
            f"one of more than {MAX_FILES:,} @ words": len(self.names) > MAX_FILES,
            f"beyond the limit of {MAX_CHARACTERS:,} characters": self._bytes > MAX_CHARACTERS,
        }
        if reasons := [reason for reason, is_so in too_much.items() if is_so]:
            title = f"{path} is not read: it is {reasons[0]}"
            raise_error("bad-response-file", title, help="remove @ words from such files")
        try:
            words = shlex.split(text, comments=True)
        except ValueError as error:
            raise_error("bad-response-file", f"{path} cannot be read: {str(error).lower()}", help="close the quotation")
        self._words += len(words)
        if self._words > MAX_WORDS:
            title = f"{path} is not read: it is beyond the limit of {MAX_WORDS:,} words"
            raise_error("bad-response-file", title, help="compile fewer kernels at a time")
        return words


def expand_response_files(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the arguments with every `@FILE` replaced by the words in it, and the names of these files.

    Words are quoted as in a shell, on any number of lines, with `#` comments. Such a file may name others.
    """
    reading = _ResponseFileReader()
    words = _expand_words(arguments, (), reading)
    return words, tuple(dict.fromkeys(reading.names))


def _expand_words(arguments: Sequence[str], within: tuple[Path, ...], reading: _ResponseFileReader) -> list[str]:
    """Return the arguments with every `@FILE` replaced by its words; raise an error if a file names itself.

    `within` are the files that are being read.
    """
    words: list[str] = []
    for word in arguments:
        if len(word) < 2 or not word.startswith("@"):
            words.append(word)
            continue
        path = word[1:]
        place = Path(path).resolve()
        if place in within:
            raise_error("bad-response-file", f"{path} names itself", help="remove that @ word from it")
        words += _expand_words(reading.read_words(path, len(within) + 1), (*within, place), reading)
    return words


class CommandLineChanged(Exception):
    """Raised when a file with words of the command line was saved: the command line is then read again."""


_META = "tilec.response-files"


def remember_response_files(context: click.Context, read: tuple[str, ...]) -> None:
    """Store in the click context the names of the @FILEs that words of the command came from."""
    context.meta[_META] = read


def get_response_files() -> tuple[str, ...]:
    """Return the names of the @FILEs that the running command's words came from; none outside a command."""
    context = click.get_current_context(silent=True)
    found: tuple[str, ...] = () if context is None else context.meta.get(_META, ())
    return found


STDIN = "-"
_STDIN_NAME = "<stdin>"


def find_kernel_files(names: Sequence[str]) -> dict[str, bool]:
    """Map each kernel file to whether a folder or pattern named it; raise an error for a folder or pattern without any.

    A folder stands for all kernel files in it and below. An existing file is taken as it is, even if its name has the
    form of a pattern.
    """
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
    """Return the sorted kernel files of a folder or glob pattern; None if the name is neither."""
    if Path(name).is_dir():
        return sorted(str(path) for path in Path(name).rglob("*.tl") if path.is_file())
    if any(sign in name for sign in "*?["):
        root = Path(name).anchor
        found = Path(root).glob(name.removeprefix(root)) if root else Path().glob(name)
        return sorted(str(path) for path in found if path.is_file())
    return None


def read_kernel_file(name: str) -> SourceFile:
    """Read a kernel file, or standard input if the name is `-`."""
    return files.read_source(name) if name != STDIN else SourceFile(_STDIN_NAME, read_standard_input().decode())


def read_standard_input() -> bytes:
    """Return all bytes of standard input; raise an error unless they decode as text."""
    data = sys.stdin.buffer.read()
    files.decode_text(_STDIN_NAME, data)
    return data
