"""Calls of machine code that may crash, each in a forked process of its own, so that a crash can be reported."""

from __future__ import annotations

import faulthandler
import marshal
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from tilec.support.processes import ENDING_SIGNALS, end_with_parent

_is_isolating = False


class Crash(Exception):
    """The call ended its process by a signal, named `signal_name`, as `SIGSEGV`."""

    def __init__(self, signal_name: str) -> None:
        super().__init__(signal_name)
        self.signal_name = signal_name


def isolate_calls() -> None:
    """Let `call_isolated` fork from now on. Only for a program that owns its process: forking with a GPU context or
    somebody else's threads is not safe."""
    global _is_isolating
    _is_isolating = hasattr(os, "fork")


def call_isolated(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, which marshal must support. Where calls are isolated it runs in a forked process; if
    it raises there, it runs once more here, for the exception.

    Raises `Crash` where a signal ends that process.
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
