"""Says what a process is at, to another one that listens: the one that ends it where it takes too long."""

from __future__ import annotations

import os
from contextlib import suppress

_listener: int | None = None
"""A pipe. Processes that are forked have it too."""

_LONGEST = 400
"""Bytes of a message: so few are written at once, whoever else writes."""


def listen(pipe: int) -> None:
    """From now on this process, and those that it forks, say in `pipe` what they are at."""
    global _listener
    _listener = pipe


def say(what: str) -> None:
    """`what` this process is at; nothing, where it is at nothing more."""
    if _listener is None:
        return
    line = what.replace("\n", " ").encode(errors="replace")[:_LONGEST]
    with suppress(OSError):
        os.write(_listener, b"%d %b\n" % (os.getpid(), line))


def heard(text: bytes, said: dict[int, str]) -> None:
    """Adds whole lines of a pipe to what each process said last."""
    for line in text.decode(errors="replace").splitlines():
        process, _, what = line.partition(" ")
        said.pop(int(process), None)
        if what:
            said[int(process)] = what
