"""`tilec fmt FILE…`: format kernels in place, as ruff formats Python."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tilec.cli import arguments
from tilec.cli.console import WRONG_KERNEL, CommandExit, fail_usage, report_mistakes, show_diagnostics
from tilec.support import files
from tilec.support.diagnostics import CompileError
from tilec.support.files import refuse_binary
from tilec.support.source import SourceFile


@click.command()
@click.argument("kernels", metavar="FILE.tl…", nargs=-1, required=True)
@click.option(
    "--check", is_flag=True, help="Write nothing; list the files that would change, and exit with 1 if there are any."
)
@click.option("--diff", is_flag=True, help="Like --check, but show the changes.")
def fmt(kernels: tuple[str, ...], check: bool, diff: bool) -> None:
    """Lay kernels out as ruff lays out Python, with the settings that ruff finds beside them.

    Comments, blank lines and what `# fmt: off`, `# fmt: on` and `# fmt: skip` guard stay. A file is only written if it
    still is the same kernel; of several files, all are or none is. A folder stands for all kernel files in it and
    below, and - for standard input, which goes to standard output. Needs ruff: pip install '.[fmt]' in tilec's
    folder.
    """
    from tilec.frontend.syntax.formatting import format_kernel_bytes

    with report_mistakes(None):
        named = list(arguments.find_kernel_files(kernels))
    if arguments.STDIN in named:
        if len(named) > 1 or check or diff:
            fail_usage("- is standard input, which takes no other file, --check or --diff")
        with report_mistakes(None):
            data = arguments.read_standard_input()
        source = SourceFile("<stdin>", data.decode())
        with report_mistakes(source):
            sys.stdout.buffer.write(format_kernel_bytes(data, source))
        return
    changed: dict[str, tuple[bytes, bytes]] = {}
    failed = False
    for path in {Path(kernel).resolve(): kernel for kernel in named}.values():
        with report_mistakes(None):
            before = files.read_bytes(path)
            refuse_binary(path, before)
            source = SourceFile(path, files.decode_text(path, before))
        try:
            after = format_kernel_bytes(before, source)
        except CompileError as error:
            show_diagnostics(error.diagnostics, source)
            failed = True
            continue
        if after != before:
            changed[path] = before, after
    for path, (before, after) in changed.items():
        sys.stdout.writelines(_format_patch(path, before, after) if diff else ())
        if check:
            print(f"would format {path}")
    if failed or (changed and (check or diff)):
        raise CommandExit(WRONG_KERNEL)
    with report_mistakes(None):
        files.write_all({path: after for path, (_, after) in changed.items()})
    for path in changed:
        print(f"formatted {path}")


def _format_patch(path: str, before: bytes, after: bytes) -> Iterator[str]:
    """Yield the lines of a unified diff of the file's bytes before and after, as `patch` takes it."""
    old, new = (text.decode().splitlines(keepends=True) for text in (before, after))
    for line in difflib.unified_diff(old, new, path, path):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
