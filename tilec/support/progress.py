"""Reports the current activity of a process to listeners: a supervisor with a time limit, and the status line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_listeners: tuple[int, ...] = ()
"""Pipes, inherited by forked processes."""

_doing = ""
"""The last reported activity."""

_LONGEST = 400
"""The largest message in bytes: small enough for an atomic write."""


@contextmanager
def listening(pipe: int, *, only: bool = False) -> Iterator[None]:
    """Report activities of this process and its forks to `pipe` in the block; with `only`, to no other listener."""
    global _listeners
    before = _listeners
    _listeners = (pipe,) if only else (*before, pipe)
    try:
        yield
    finally:
        _listeners = before


def say(what: str) -> None:
    """Report the current activity; an empty text for none."""
    global _doing
    _doing = what
    _write(what)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Report an activity for the duration of the block."""
    say(what)
    try:
        yield
    finally:
        say("")


def refine(what: str) -> None:
    """Report a detail of the current activity: a candidate of a choice, an interval of a loop."""
    if _listeners and _doing:
        _write(f"{_doing}, {what}")


def _write(what: str) -> None:
    if not _listeners:
        return
    text = b"%d %b" % (os.getpid(), what.replace("\n", " ").encode(errors="replace"))
    for pipe in _listeners:
        with suppress(OSError):
            os.write(pipe, text[:_LONGEST] + b"\n")


def heard(text: bytes, activities: dict[int, str]) -> None:
    """Update the last activity of each process from whole lines of a pipe."""
    for line in text.decode(errors="replace").splitlines():
        process, _, what = line.partition(" ")
        activities.pop(int(process), None)
        if what:
            activities[int(process)] = what
