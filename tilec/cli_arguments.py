"""`@FILE` on the command line: the words in that file stand in its place, as with gcc, clang and nvcc."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from tilec import files
from tilec.diag import fail


def expanded(arguments: Sequence[str], within: tuple[Path, ...] = ()) -> list[str]:
    """The arguments, with the words of every `@FILE` in its place. They are quoted as in a shell, may stand in several
    lines and have `#` comments. Such a file may name others; `within` are those that are being read."""
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
        words += expanded(inner, (*within, place))
    return words
