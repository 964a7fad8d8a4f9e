"""`--time-limit` and `--memory-limit`. A command with a limit runs in a child process, which is killed with all of its
children beyond the limit: solver and assembler are machine code that nothing else stops."""

from __future__ import annotations

import math
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from tilec.cli.console import fail_usage
from tilec.cli.terminal import attend_terminal
from tilec.support import files, progress
from tilec.support.diagnostics import Diagnostic
from tilec.support.processes import end_with_parent
from tilec.support.records import dataclass

_STEP = 0.05
"""Seconds between two checks of the memory."""
_GRACE = 1.0
"""Seconds in which an ended process may remove incomplete outputs."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _parse_size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of a size such as 500M, None for None; raise a usage error for another text or without Linux."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([KMGT]?)(?:I?B)?", value.upper())
    size = 0 if match is None else int(float(match[1]) * _UNITS[match[2]])
    if size < 1:
        raise click.BadParameter(f"{value!r} is not a size: write 500M or 4G", context, parameter)
    _check_possible(context, parameter)
    return size


def _check_seconds(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Return the seconds of --time-limit, None without; raise a usage error where the system cannot set limits."""
    if value is not None:
        _check_possible(context, parameter)
    return value


def _check_possible(context: click.Context, parameter: click.Parameter) -> None:
    """Raise a usage error where the system cannot limit processes: elsewhere than on Linux."""
    if not (hasattr(os, "fork") and Path("/proc/self/statm").exists()):
        raise click.BadParameter("this option needs Linux", context, parameter)


def add_limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --time-limit and --memory-limit to a click command, and return it.

    `ResourceLimits.of` reads them; the command itself gets neither.
    """
    time_limit = click.option(
        "--time-limit",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        callback=_check_seconds,
        help="Fail after so many seconds. The output does not depend on the limit.",
    )
    memory_limit = click.option(
        "--memory-limit",
        metavar="SIZE",
        callback=_parse_size,
        help="Fail when all processes together use more memory: 500M, 4G.",
    )
    return time_limit(memory_limit(command))


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    seconds: float = math.inf
    bytes: float = math.inf

    @staticmethod
    def of(given: Mapping[str, Any]) -> ResourceLimits | None:
        """Return the limits among a command's options, None without; raise a usage error together with --watch."""
        seconds, size = given.get("time_limit"), given.get("memory_limit")
        if "memory_limit" not in given or (seconds is None and size is None):
            return None
        if given.get("watch"):
            fail_usage("--watch goes on until Ctrl-C: --time-limit and --memory-limit are for a build that ends")
        return ResourceLimits(math.inf if seconds is None else seconds, math.inf if size is None else size)


def run_bounded(work: Callable[[], int], limits: ResourceLimits) -> int | Diagnostic:
    """Run `work` in another process; return its exit code, or kill it and return an error beyond a limit."""
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _run_in_child(work, writer, parent)
    os.close(writer)
    # Parent and child both set it, whichever comes first.
    with suppress(OSError):
        os.setpgid(child, child)
    messages: dict[int, str] = {}
    try:
        for code in _watch_child(child, reader, messages):
            if code is not None:
                return code
            if time.monotonic() - began > limits.seconds:
                limit = f"the time limit of {limits.seconds:g} s"
                help_text = "raise --time-limit; --time shows which pass takes long"
            elif limits.bytes < math.inf and _measure_memory(child) > limits.bytes:
                limit, help_text = f"the memory limit of {_format_size(limits.bytes)}", "raise --memory-limit"
            else:
                continue
            return 0 if _end_processes(child) == 0 else _build_limit_diagnostic(limit, messages, help_text)
    except KeyboardInterrupt:
        _end_processes(child, signal.SIGINT)
        raise
    finally:
        os.close(reader)
    raise AssertionError("it ends, or is ended")


# ---- in the process that works ---------------------------------------------------------------------------------------


def _run_in_child(work: Callable[[], int], writer: int, parent: int) -> NoReturn:
    """Run `work` in the forked process, report its progress to pipe `writer`, and end with its exit code."""
    from tilec.cli.endings import run_guarded

    code = 3
    try:
        os.setpgid(0, 0)
        end_with_parent(parent)
        signal.signal(signal.SIGTERM, _end_silently)
        # This process has its own Ctrl-C handling and status line.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        with progress.report_to(writer, only=True), attend_terminal():
            code = run_guarded(work)
        with suppress(OSError):
            sys.stderr.flush()
    finally:
        os._exit(code)


def _end_silently(*_: object) -> None:
    """Interrupt the process as Ctrl-C does, so that incomplete outputs are removed, but print nothing.

    The parent reports.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    files.forbid_writing()
    files.raise_interrupt(KeyboardInterrupt())


# ---- in the one that watches -----------------------------------------------------------------------------------------


def _watch_child(child: int, reader: int, messages: dict[int, str]) -> Iterator[int | None]:
    """Yield None at intervals while the child runs, and at last its exit code; keep its progress in `messages`."""
    unfinished = b""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            yield code if code >= 0 else 128 - code  # as a shell reports a process that a signal ended
            return
        if select.select([reader], [], [], _STEP)[0]:
            read = unfinished + os.read(reader, 1 << 16)
            whole, _, unfinished = read.rpartition(b"\n")
            progress.parse_messages(whole, messages)
            if not read:
                time.sleep(_STEP)  # the pipe is closed: the child is about to end
        yield None


def _end_processes(child: int, with_signal: signal.Signals = signal.SIGTERM) -> int:
    """End the child by a signal, kill it and its children after a second, and return the child's exit code.

    It may be writing. The code is 0 if it was done by then, negative if it was killed.
    """
    ended, status = 0, 0
    with suppress(OSError):
        os.kill(child, with_signal)
    until = time.monotonic() + _GRACE
    while not ended and time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.0 if ended else 0.005)
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        with suppress(OSError):
            _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _measure_memory(process: int) -> int:
    """Return the bytes that a process and its children hold privately, without shared code; 0 if it has ended."""
    try:
        folder = Path("/proc") / str(process)
        _, resident, shared, *_ = (folder / "statm").read_text().split()
        children = (folder / "task" / str(process) / "children").read_text().split()
    except (OSError, ValueError):
        return 0  # it has just ended
    own = (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return own + sum(_measure_memory(int(inner)) for inner in children)


def _build_limit_diagnostic(limit: str, messages: Mapping[int, str], help_text: str) -> Diagnostic:
    """Return the error that a limit is reached, with notes on the activities at that time."""
    notes = tuple(f"it was running {what}" for what in messages.values())
    return Diagnostic("limit-reached", f"{limit} is reached", notes=notes, help=help_text)


def _format_size(size: float) -> str:
    """Return bytes in the largest unit that they fill: `4 GB`."""
    unit = next(u for u in reversed(_UNITS) if size >= _UNITS[u])
    return f"{size / _UNITS[unit]:g} {unit}B"
