"""The signals that end a command, the processes that tilec starts, and calls of machine code that may crash."""

from __future__ import annotations

import faulthandler
import marshal
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1  # man 2 prctl


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals of Ctrl-C, `kill`, a terminal that is closed, and Ctrl-\\."""


class Interrupted(KeyboardInterrupt):
    """Raised where a signal ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def interrupt_exit_code(reason: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal has ended: 128 and the signal's number, as in a shell."""
    return 128 + (reason.number if isinstance(reason, Interrupted) else signal.SIGINT)


def end_with_parent(parent: int) -> None:
    """Make the system end this process as soon as its parent ends; elsewhere than on Linux do nothing."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


@contextmanager
def block_terminal_signals() -> Iterator[None]:
    """Block Ctrl-C and other terminal signals during the block, for the processes that are started in it.

    One that is still starting would end with a traceback that nothing can prevent. SIGTERM still ends them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDING_SIGNALS} - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_is_isolating = False


class Crash(Exception):
    """The call ended its process by a signal, named `signal_name`, as `SIGSEGV`."""

    def __init__(self, signal_name: str) -> None:
        super().__init__(signal_name)
        self.signal_name = signal_name


def isolate_calls() -> None:
    """Let `call_isolated` fork a process for each call from now on, if the system can fork.

    Only for a program that owns its process: forking with a GPU context or somebody else's threads is not safe.
    """
    global _is_isolating
    _is_isolating = hasattr(os, "fork")


def call_isolated(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, run in a forked process where calls are isolated; raise `Crash` if that crashes.

    marshal must support the result. If `work` raises there, it runs once more here, for the exception.
    """
    if not _is_isolating:
        return work()
    reader, writer = os.pipe()
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:  # no more processes: run it here
        os.close(reader)
        os.close(writer)
        return work()
    if child == 0:
        _send_result(work, writer, parent)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as pipe:
            result = pipe.read()
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise Crash(signal.Signals(-code).name)
    return marshal.loads(result) if code == 0 else work()


def _send_result(work: Callable[[], Any], writer: int, parent: int) -> NoReturn:
    """Run `work` in the forked process, write its result to the pipe, and end the process: code 1 if it raised."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()
        end_with_parent(parent)
        result = marshal.dumps(work())
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(result)
        code = 0
    finally:
        os._exit(code)
