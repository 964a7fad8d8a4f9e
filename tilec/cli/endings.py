"""How a command line ends: its exit code, whoever interrupts it, and where nobody reads what it says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

_LIMIT = 4
_NOBODY_READS = 141  # as a shell reports a process ended by SIGPIPE


def guarded(work: Callable[[], int]) -> int:
    """The exit code of what has been written out, or of why it cannot be."""
    try:
        code = work()
        sys.stdout.flush()
    except KeyboardInterrupt as reason:
        from tilec.support.processes import interrupt_exit_code

        return interrupt_exit_code(reason)
    except BrokenPipeError:
        # The reader of our output has gone: nothing to say, and nowhere to say it.
        _abandon(sys.stdout)
        _abandon(sys.stderr)
        return _NOBODY_READS
    except OSError as error:
        from tilec.support.exhaustion import find_exhausted_resource

        _abandon(sys.stdout)
        if (what := find_exhausted_resource(error)) is not None:
            print(f"tilec: there is no more {what}", file=sys.stderr)
            return _LIMIT
        print(f"tilec: cannot write: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 1
    return code


def _abandon(stream: TextIO) -> None:
    """Let what a broken pipe has not taken go nowhere; the interpreter would try, and complain, once more at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
