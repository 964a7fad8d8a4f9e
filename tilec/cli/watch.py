"""`--watch`: run a command again whenever a file that it has read changes, until Ctrl-C.

It polls the files five times a second instead of using notifications: the files are few, editors replace a file as
often as they write to it, and folders on other machines notify nobody. It watches what was read: it waits for a missing
file, and ignores one that is no longer imported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from tilec.cli.arguments import CommandLineChanged, get_response_files
from tilec.cli.console import CommandExit, fail_usage, get_format, report_mistakes, show_bug
from tilec.support import files
from tilec.target import table as target

watch_option = click.option("--watch", is_flag=True, help="Run again whenever an input file is saved, until Ctrl-C.")

_SECONDS = 0.2


def run_and_watch(command: Callable[[], None]) -> NoReturn:
    """Run the command whenever a file that it read changes, until Ctrl-C; raise `CommandLineChanged` for an @FILE.

    Errors in kernels are shown; errors in the options end it.
    """
    if get_format() == "sarif":
        fail_usage("--watch runs until Ctrl-C, and SARIF is one log at the end: choose another --diagnostics-format")
    context = click.get_current_context(silent=True)
    if context is not None and context.params.get("time_limit") is not None:
        fail_usage("--watch runs until Ctrl-C, so it takes no --time-limit")
    while True:
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[H\x1b[2J\x1b[3J")  # clear the screen and the scrollback
        target.load_target.cache_clear()
        with files.record_reads() as read:
            for path in get_response_files():
                files.record_read(path)
            is_right = _run_once(command)
        names = ", ".join(Path(path).name for path in read)
        print(f"{'' if is_right else 'not built; '}watching {names}; Ctrl-C ends", file=sys.stderr, flush=True)
        while all(files.file_state(path) == before for path, before in read.items()):
            time.sleep(_SECONDS)
        _wait_until_settled(read)
        if any(files.file_state(path) != read[path] for path in get_response_files()):
            raise CommandLineChanged


def _run_once(command: Callable[[], None]) -> bool:
    """Run the command, show its mistakes or a bug, return whether it succeeded; raise usage errors and OSErrors."""
    try:
        with report_mistakes(None):
            command()
    except CommandExit:
        return False
    except (click.ClickException, OSError):
        raise
    except Exception as error:
        show_bug(error, sys.argv[1:], traceback="-v" in sys.argv or "--verbose" in sys.argv)
        return False
    finally:
        sys.stdout.flush()
    return True


def _wait_until_settled(read: dict[str, files.FileState]) -> None:
    """Wait until none of the files changes any more: several may be saved together, or one replaced."""
    before = None
    while before != (before := {path: files.file_state(path) for path in read}):
        time.sleep(_SECONDS / 4)
