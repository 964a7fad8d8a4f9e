"""The signals that end a command, the processes that tilec starts, and calls of machine code that may crash."""

from __future__ import annotations

import atexit
import faulthandler
import marshal
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NoReturn

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
    """Let each `IsolatedFunction` run in a forked process from now on, if the system can fork.

    Only for a program that owns its process: forking with a GPU context or somebody else's threads is not safe.
    """
    global _is_isolating
    _is_isolating = hasattr(os, "fork")


_isolated_functions: list[IsolatedFunction] = []


def start_isolated_functions() -> None:
    """Start the processes of all isolated functions, where a computation begins that will call them in the end."""
    for function in _isolated_functions:
        function.start()


class IsolatedFunction:
    """A function of a library that may crash, run in a forked process where calls are isolated.

    The process is kept for the next call. `prepare` imports the library; `start` lets that happen before the first
    call, beside what this process does. marshal must support arguments and result.
    """

    def __init__(self, function: Callable[..., Any], prepare: Callable[[], object]) -> None:
        _isolated_functions.append(self)
        self._function, self._prepare = function, prepare
        self._owner = self._child = 0
        self._requests: BinaryIO | None = None
        self._answers: BinaryIO | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Return the function's result; raise `Crash` if it crashes. If it raises there, it runs once more here, for
        the exception."""
        self.start()
        if self._requests is None or self._answers is None:
            return self._function(*arguments)
        try:
            with suppress(BrokenPipeError):  # it has crashed; that there is no answer says so
                marshal.dump(arguments, self._requests)
                self._requests.flush()
            has_result, result = marshal.load(self._answers)
        except EOFError:
            code = self._end()
            if code < 0:
                raise Crash(signal.Signals(-code).name) from None
            return self._function(*arguments)
        except BaseException:
            self._kill()
            raise
        return result if has_result else self._function(*arguments)

    def start(self) -> None:
        """Fork the process, if calls are isolated and this process has none, or that has ended since the last call.
        Without it calls run in this process, as where the system has no processes left."""
        if not _is_isolating or self._is_ready():
            return
        requests, answers = os.pipe(), os.pipe()
        parent = os.getpid()
        try:
            child = os.fork()
        except OSError:
            for end in (*requests, *answers):
                os.close(end)
            return
        if child == 0:
            os.close(requests[1])
            os.close(answers[0])
            self._answer_requests(requests[0], answers[1], parent)
        os.close(requests[0])
        os.close(answers[1])
        self._owner, self._child = parent, child
        self._requests, self._answers = os.fdopen(requests[1], "wb"), os.fdopen(answers[0], "rb")
        atexit.register(self._kill)

    def _is_ready(self) -> bool:
        """Return whether this process has a forked one that waits for requests."""
        if self._requests is None or self._owner != os.getpid():
            return False
        try:
            has_ended = os.waitpid(self._child, os.WNOHANG)[0] != 0
        except ChildProcessError:  # where SIGCHLD is ignored, the system forgets it at once
            has_ended = True
        if has_ended:
            self._close_pipes()
        return not has_ended

    def _kill(self) -> None:
        """End the process, whatever it does, if it is this one's."""
        if self._owner == os.getpid():
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            self._end()

    def _end(self) -> int:
        """Close the pipes of the process, and return its exit code once it has ended: −N for signal N, 1 if the system
        has forgotten it."""
        self._close_pipes()
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        except ChildProcessError:
            return 1

    def _close_pipes(self) -> None:
        """Close the pipes of the process, which then ends if it has not."""
        atexit.unregister(self._kill)
        for pipe in (self._requests, self._answers):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._requests = self._answers = None

    def _answer_requests(self, reader: int, writer: int, parent: int) -> NoReturn:
        """In the forked process: send whether the function returned, and its result, for the arguments of each request,
        until the parent closes its pipe."""
        try:
            signal.set_wakeup_fd(-1)
            for number in ENDING_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    signal.signal(number, signal.SIG_DFL)
            faulthandler.disable()
            end_with_parent(parent)
            self._prepare()
            with os.fdopen(reader, "rb") as requests, os.fdopen(writer, "wb") as answers:
                while True:
                    arguments = marshal.load(requests)
                    answer: tuple[bool, Any] = (False, None)
                    with suppress(Exception):
                        answer = (True, self._function(*arguments))
                    marshal.dump(answer, answers)
                    answers.flush()
        finally:
            os._exit(1)
