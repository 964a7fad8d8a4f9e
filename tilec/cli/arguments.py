"""`@FILE` on the command line: the words in that file stand in its place, as with gcc, clang and nvcc."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from tilec.support import files
from tilec.support.diagnostics import fail


def expanded(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The arguments, with the words of every `@FILE` in its place, and the names of these files. The words are quoted
    as in a shell, may stand in several lines and have `#` comments. Such a file may name others."""
    read: list[str] = []
    words = _expanded(arguments, (), read)
    return words, tuple(dict.fromkeys(read))


def _expanded(arguments: Sequence[str], within: tuple[Path, ...], read: list[str]) -> list[str]:
    """`within` are the files that are being read."""
    words: list[str] = []
    for word in arguments:
        if len(word) < 2 or not word.startswith("@"):
            words.append(word)
            continue
        path = word[1:]
        place = Path(path).resolve()
        if place in within:
            fail("bad-response-file", f"{path} names itself", help="take its @ word out of it")
        try:
            inner = shlex.split(files.read_text(path), comments=True)
        except ValueError as error:
            fail("bad-response-file", f"{path} cannot be read: {str(error).lower()}", help="close the quotation")
        read.append(path)
        words += _expanded(inner, (*within, place), read)
    return words


class AnotherCommandLine(Exception):
    """A file with words of the command line was saved: it is to be read anew, and what it says to be done."""


_META = "tilec.response-files"


def remember(context: click.Context, read: tuple[str, ...]) -> None:
    """That the command has words from these files."""
    context.meta[_META] = read


def response_files() -> tuple[str, ...]:
    """The files that words of the command in hand come from."""
    context = click.get_current_context(silent=True)
    found: tuple[str, ...] = () if context is None else context.meta.get(_META, ())
    return found
