"""The `tilec` command. `tilec --version` loads this file only; the commands are in `cli.commands`."""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from tilec.support.processes import interrupt_exit_code, isolate_calls

_LIMIT = 4
_NOBODY_READS = 141  # as a shell reports a process ended by SIGPIPE

_DECIDE = ("ortools", "nvidia-nvjitlink", "nvidia-nvfatbin", "cuda-bindings", "lark")
"""The packages whose versions decide outputs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 ok, 1 the kernel is wrong, 2 usage, 3 a bug in tilec, 4 a limit
    was reached."""
    # A stream that was closed before we started is None.
    sys.stdout = sys.stdout or io.TextIOWrapper(io.BytesIO(), "utf-8")
    sys.stderr = sys.stderr or io.TextIOWrapper(io.BytesIO(), "utf-8")
    # If OpenBLAS cannot start a thread it raises SIGINT on import of numpy. Our products are small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not faulthandler.is_enabled():
        # If a library crashes this process, show which one; the exit code is the signal's.
        with suppress(OSError, ValueError):
            faulthandler.enable(sys.stderr, all_threads=False)
    if argv is None:  # this process runs one command only
        isolate_calls()
    return run_guarded(lambda: _run_command_line(list(sys.argv[1:] if argv is None else argv)))


def _run_command_line(arguments: list[str]) -> int:
    """Run a command line and return its exit code; completions and --version import nothing else."""
    if shell_request := os.environ.get("_TILEC_COMPLETE"):
        from tilec.cli.completion import print_completions

        return print_completions(shell_request)
    if arguments == ["--version"]:
        print(format_versions())
        return 0
    if arguments[:1] != ["check"]:
        return _dispatch_command(arguments)
    # The command is short, and garbage collection would take a tenth of its time.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        return _dispatch_command(arguments)
    finally:
        if was_collecting:
            gc.enable()


def format_versions() -> str:
    """Return `tilec 0.1.0` on the first line, for programs, and the packages that outputs depend on below."""
    from tilec import __version__
    from tilec.support.installed import installed_versions

    found = installed_versions()
    return "\n".join([f"tilec {__version__}", *(f"  {name} {found.get(name, 'not found')}" for name in _DECIDE)])


def _dispatch_command(arguments: list[str]) -> int:
    """Import the commands, run the one that the words name, and return its exit code."""
    from tilec.cli.dispatch import run_command_line

    return run_command_line(arguments)


# ---- the end of a command: exit codes, interruptions, and output that nobody reads -----------------------------------


def run_guarded(work: Callable[[], int]) -> int:
    """Return the exit code of `work` once its output is flushed, or the code for its exception."""
    try:
        code = work()
        sys.stdout.flush()
    except KeyboardInterrupt as reason:
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
    """Discard what a broken pipe has not taken; the interpreter would retry and complain at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
