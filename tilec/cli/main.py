"""The `tilec` command. `tilec --version` loads this file only; the commands are in `cli.commands`."""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from tilec.cli.endings import end_process, run_guarded
from tilec.support.processes import isolate_calls

RARE_COLLECTIONS = (100_000, 20, 50)
"""Thresholds of Python's garbage collector: a compilation makes hardly any cycles, and with the usual thresholds the
collector takes a seventh of its time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, return its code: 0 ok, 1 wrong kernel, 2 usage, 3 bug, 4 limit. None: run this process's, and
    end the process."""
    # A stream that was closed before we started is None.
    sys.stdout = sys.stdout or io.TextIOWrapper(io.BytesIO(), "utf-8")
    sys.stderr = sys.stderr or io.TextIOWrapper(io.BytesIO(), "utf-8")
    # If OpenBLAS cannot start a thread it raises SIGINT on import of numpy. Our products are small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not faulthandler.is_enabled():
        # If a library crashes this process, show which one; the exit code is the signal's.
        with suppress(OSError, ValueError):
            faulthandler.enable(sys.stderr, all_threads=False)
    if argv is not None:
        return run_guarded(lambda: _run_command_line(list(argv)))
    isolate_calls()
    code = run_guarded(lambda: _run_command_line(sys.argv[1:]))
    end_process(code)
    return code


def _run_command_line(arguments: list[str]) -> int:
    """Run a command line and return its exit code; --version and completions import no commands."""
    if shell_request := os.environ.get("_TILEC_COMPLETE"):
        from tilec.cli.completion import print_completions

        return print_completions(shell_request)
    if arguments == ["--version"]:
        from tilec.support.installed import format_versions

        print(format_versions())
        return 0
    thresholds = gc.get_threshold()
    gc.set_threshold(*RARE_COLLECTIONS)
    try:
        return _dispatch_command(arguments)
    finally:
        gc.set_threshold(*thresholds)


def _dispatch_command(arguments: list[str]) -> int:
    """Import the commands, run the one that the words name, and return its exit code."""
    from tilec.cli.dispatch import run_command_line

    return run_command_line(arguments)
