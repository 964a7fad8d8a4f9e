"""Says what a process is at, to who listens: the one that ends it where it takes too long, and the status line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_listeners: tuple[int, ...] = ()
"""Pipes. Processes that are forked have them too."""

_doing = ""
"""What was said last."""

_LONGEST = 400
"""Bytes of a message: so few are written at once, whoever else writes."""


@contextmanager
def listening(pipe: int, *, only: bool = False) -> Iterator[None]:
    """Inside, this process, and those that it forks, say in `pipe` what they are at; to nobody else, if it is `only`
    this one who listens."""
    global _listeners
    before = _listeners
    _listeners = (pipe,) if only else (*before, pipe)
    try:
        yield
    finally:
        _listeners = before


def say(what: str) -> None:
    """`what` this process is at; nothing, where it is at nothing more."""
    global _doing
    _doing = what
    _write(what)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Says so inside; and nothing more afterwards."""
    say(what)
    try:
        yield
    finally:
        say("")


def refine(what: str) -> None:
    """More exactly, until something else is said: which candidate of a choice, which interval of a loop."""
    if _listeners and _doing:
        _write(f"{_doing}, {what}")


def _write(what: str) -> None:
    if not _listeners:
        return
    text = b"%d %b" % (os.getpid(), what.replace("\n", " ").encode(errors="replace"))
    for pipe in _listeners:
        with suppress(OSError):
            os.write(pipe, text[:_LONGEST] + b"\n")


def heard(text: bytes, said: dict[int, str]) -> None:
    """Adds whole lines of a pipe to what each process said last."""
    for line in text.decode(errors="replace").splitlines():
        process, _, what = line.partition(" ")
        said.pop(int(process), None)
        if what:
            said[int(process)] = what
