"""`tilec check FILE…`: the mistakes of kernels, which are not compiled."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from tilec.cli import kernel_files
from tilec.cli.console import reported, reported_all
from tilec.cli.former import FormerSpellings
from tilec.cli.help import Grouped
from tilec.cli.kernel_options import compile_options, kernel_options, target_names
from tilec.cli.limits import limit_options
from tilec.cli.watch import watch_option, watched


@click.command(cls=Grouped)
@click.argument("kernels", metavar="FILE.tl…", nargs=-1, required=True)
@click.option("--jobs", "-j", type=click.IntRange(1), default=1, show_default=True, help="Check so many at a time.")
@click.option(
    "library",
    "--library",
    cls=FormerSpellings,
    former={"--parts": "--library"},
    is_flag=True,
    help="A file without kernels, which others import, is no mistake.",
)
@limit_options
@kernel_options
@watch_option
def check(watch: bool, verbose: bool, **given: Any) -> None:
    """Look for mistakes in kernels, without compiling them. That there are none is said to a terminal only.

    A folder stands for all kernel files in it and below, a pattern for those that it matches, and - for standard input.
    """
    if watch:
        watched(partial(_check, **given))
    _check(**given)


def _check(kernels: tuple[str, ...], jobs: int, library: bool, **given: Any) -> None:
    from tilec.driver.batch import Job, compile_all

    with reported(None):
        found = kernel_files.kernel_files(kernels)
        sources = [kernel_files.read(name) for name in found]
        asked = [compile_options(given, target) for target in target_names(given)]
    # Of a folder, those that others import are there too.
    libraries = {source.path for source, is_below in zip(sources, found.values(), strict=True) if is_below or library}
    made = compile_all([Job(s, options, only_check=True) for s in sources for options in asked], jobs)
    lacks_kernels = ["no-kernel"]
    judged = (
        one for one in made if one.source.path not in libraries or [d.code for d in one.diagnostics] != lacks_kernels
    )
    reported_all(judged, counted=True)
