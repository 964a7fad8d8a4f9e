"""The signals that end a command, and the relation of processes that tilec starts to their parent."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1  # man 2 prctl


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals of Ctrl-C, `kill`, a terminal that is closed, and Ctrl-\\."""


class Interrupted(KeyboardInterrupt):
    """Raised where a signal ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def interrupt_exit_code(reason: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal has ended, as a shell reports it."""
    return 128 + (reason.number if isinstance(reason, Interrupted) else signal.SIGINT)


def end_with_parent(parent: int) -> None:
    """End this process as soon as its parent ends, for whatever reason. On systems other than Linux it goes on until it
    notices."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


@contextmanager
def block_terminal_signals() -> Iterator[None]:
    """Start processes in the block with Ctrl-C and other terminal signals blocked: one that is still starting would end
    with a traceback that nothing can prevent. SIGTERM still ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDING_SIGNALS} - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
