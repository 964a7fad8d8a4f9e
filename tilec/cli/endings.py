"""The end of a command line: exit codes, interruptions, and output that nobody reads."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

_LIMIT = 4
_NOBODY_READS = 141  # as a shell reports a process ended by SIGPIPE


def run_guarded(work: Callable[[], int]) -> int:
    """Return the exit code of `work` once stdout is flushed, or the code for an interrupt or a failed write."""
    try:
        code = work()
        sys.stdout.flush()
    except KeyboardInterrupt as reason:
        from tilec.support.processes import interrupt_exit_code

        return interrupt_exit_code(reason)
    except BrokenPipeError:
        # The reader of our output is gone.
        _discard_output(sys.stdout)
        _discard_output(sys.stderr)
        return _NOBODY_READS
    except OSError as error:
        from tilec.support.exhaustion import find_exhausted_resource

        _discard_output(sys.stdout)
        if (what := find_exhausted_resource(error)) is not None:
            print(f"tilec: out of {what}", file=sys.stderr)
            return _LIMIT
        print(f"tilec: cannot write: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 1
    return code


def _discard_output(stream: TextIO) -> None:
    """Flush a stream; if that fails, point it at /dev/null, or the interpreter would complain at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def end_process(code: int) -> None:
    """End this process at once with an exit code, after what is registered for its end; return if it has threads left,
    or a profiler or debugger waits for the usual end.

    The usual end frees each object by itself, which takes a seventh of a small compilation's time.
    """
    if threading.active_count() > 1 or sys.getprofile() or sys.gettrace() or sys.flags.inspect:
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        _discard_output(stream)
    os._exit(code)
