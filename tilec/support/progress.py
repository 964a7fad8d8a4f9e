"""Reports the current activity of a process to listeners: a supervisor with a time limit, and the status line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_listeners: tuple[int, ...] = ()
"""Pipes, inherited by forked processes."""

_activity = ""
"""The last reported activity."""

_LONGEST = 400
"""The largest message in bytes: small enough for an atomic write."""


@contextmanager
def report_to(pipe: int, *, only: bool = False) -> Iterator[None]:
    """Report activities of this process and its forks to `pipe` in the block; with `only`, to no other listener."""
    global _listeners
    before = _listeners
    _listeners = (pipe,) if only else (*before, pipe)
    try:
        yield
    finally:
        _listeners = before


def report_activity(what: str) -> None:
    """Report the current activity; an empty text for none."""
    global _activity
    _activity = what
    _send_message(what)


@contextmanager
def report_during(what: str) -> Iterator[None]:
    """Report an activity for the duration of the block."""
    report_activity(what)
    try:
        yield
    finally:
        report_activity("")


def report_detail(what: str) -> None:
    """Report a detail of the current activity: a candidate of a choice, an interval of a loop."""
    if _listeners and _activity:
        _send_message(f"{_activity}, {what}")


def _send_message(what: str) -> None:
    """Write a message to all listeners, with this process's number."""
    if not _listeners:
        return
    text = b"%d %b" % (os.getpid(), what.replace("\n", " ").encode(errors="replace"))
    for pipe in _listeners:
        with suppress(OSError):
            os.write(pipe, text[:_LONGEST] + b"\n")


def parse_messages(text: bytes, activities: dict[int, str]) -> None:
    """Update the last activity of each process from whole lines of a pipe."""
    for line in text.decode(errors="replace").splitlines():
        process, _, what = line.partition(" ")
        activities.pop(int(process), None)
        if what:
            activities[int(process)] = what
