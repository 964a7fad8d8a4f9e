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
    """Send the activities of this process and its forks to `pipe` during the block; with `only`, to no other pipe."""
    global _listeners
    before = _listeners
    _listeners = (pipe,) if only else (*before, pipe)
    try:
        yield
    finally:
        _listeners = before


def report_activity(what: str) -> None:
    """Set the current activity and send it to all listeners; an empty text means none."""
    global _activity
    _activity = what
    _send_message(what)


@contextmanager
def report_during(what: str) -> Iterator[None]:
    """Report an activity for the duration of the block, then none."""
    report_activity(what)
    try:
        yield
    finally:
        report_activity("")


def report_detail(what: str) -> None:
    """Send the current activity with a detail, such as an interval being tried; nothing if there is no activity."""
    if _listeners and _activity:
        _send_message(f"{_activity}, {what}")


def _send_message(what: str) -> None:
    """Write a line with this process's number and the text to all listeners, shortened to 400 bytes."""
    if not _listeners:
        return
    text = b"%d %b" % (os.getpid(), what.replace("\n", " ").encode(errors="replace"))
    for pipe in _listeners:
        with suppress(OSError):
            os.write(pipe, text[:_LONGEST] + b"\n")


def parse_messages(text: bytes, activities: dict[int, str]) -> None:
    """Update each process's last activity from whole lines of a pipe; an empty one removes the process."""
    for line in text.decode(errors="replace").splitlines():
        process, _, what = line.partition(" ")
        activities.pop(int(process), None)
        if what:
            activities[int(process)] = what
