"""The `tilec` command. This file is all that `tilec --version` loads; the commands are in `cli.commands`."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

_INTERRUPTED, _NOBODY_READS = 130, 141  # as a shell reports processes ended by SIGINT and SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 ok, 1 the kernel is wrong, 2 usage, 3 a bug in tilec, 4 a limit
    was reached."""
    # A stream that was closed before we started is None.
    sys.stdout = sys.stdout or io.TextIOWrapper(io.BytesIO(), "utf-8")
    sys.stderr = sys.stderr or io.TextIOWrapper(io.BytesIO(), "utf-8")
    return guarded(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def guarded(work: Callable[[], int]) -> int:
    """The exit code of what has been written out, or of why it cannot be."""
    try:
        code = work()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone: nothing to say, and nowhere to say it.
        _abandon(sys.stdout)
        _abandon(sys.stderr)
        return _NOBODY_READS
    except OSError as error:
        _abandon(sys.stdout)
        print(f"tilec: cannot write: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 1
    return code


def _run(arguments: list[str]) -> int:
    if asked := os.environ.get("_TILEC_COMPLETE"):
        from tilec.cli.completion import complete

        return complete(asked)
    if arguments == ["--version"]:
        from tilec.cli.version import versions

        print(versions())
        return 0
    if arguments[:1] != ["check"]:
        return _carried_out(arguments)
    # It is over before any garbage is worth collecting: looking for it takes a tenth of its time.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        return _carried_out(arguments)
    finally:
        if was_collecting:
            gc.enable()


def _carried_out(arguments: list[str]) -> int:
    from tilec.cli.commands import run

    return run(arguments)


def _abandon(stream: TextIO) -> None:
    """Let what a broken pipe has not taken go nowhere; the interpreter would try, and complain, once more at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
