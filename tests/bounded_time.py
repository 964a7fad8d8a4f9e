"""A bound on the processor's time that a piece of work may take: other processes may keep the processor busy."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Hang(BaseException):
    """It took too long. Not an `Exception`: nothing may take it for a mistake."""


@contextmanager
def bounded_time(seconds: float) -> Iterator[None]:
    """Raises `Hang` in what takes more than so many seconds of this process's processor time."""

    def hang(_: int, __: FrameType | None) -> None:
        raise Hang(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
