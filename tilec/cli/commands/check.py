"""`tilec check FILE…`: find errors of kernels without compiling them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tilec.cli import arguments
from tilec.cli.console import report_mistakes, report_results
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, make_compile_options, parse_target_names
from tilec.cli.limits import add_limit_options
from tilec.cli.other_spellings import FormerSpellings
from tilec.cli.watch import run_and_watch, watch_option
from tilec.host.machines import parse_capability
from tilec.support.diagnostics import Diagnostic
from tilec.support.options import CompileOptions

if TYPE_CHECKING:
    from tilec.driver.batch import CompileResult


@click.command(cls=GroupedCommand)
@click.argument("kernels", metavar="FILE.tl…", nargs=-1, required=True)
@click.option(
    "--jobs", "-j", type=click.IntRange(1), default=1, show_default=True, help="Number of files checked at a time."
)
@click.option(
    "library",
    "--library",
    cls=FormerSpellings,
    former={"--parts": "--library"},
    is_flag=True,
    help="Accept a file without kernels, which other files import.",
)
@add_limit_options
@add_kernel_options
@watch_option
def check(watch: bool, verbose: bool, **given: Any) -> None:
    """Look for mistakes in kernels, without compiling them. That there are none is said to a terminal only.

    A folder stands for all kernel files in it and below, a pattern for those that it matches, and - for standard input.
    Without --target, a kernel in a folder that only another machine can run is checked for that one, and noted.
    """
    if watch:
        run_and_watch(partial(_check_kernels, **given))
    _check_kernels(**given)


def _check_kernels(kernels: tuple[str, ...], jobs: int, library: bool, **given: Any) -> None:
    """Check each kernel file for each target without compiling, and print the mistakes and their number.

    A file of a folder that only another machine can run is noted, and one without kernels passes.
    """
    from tilec.driver.batch import CompileJob, compile_jobs

    with report_mistakes(None):
        found = arguments.find_kernel_files(kernels)
        sources = [arguments.read_kernel_file(name) for name in found]
        variants = [make_compile_options(given, target) for target in parse_target_names(given)]
    below = {source.path for source, is_below in zip(sources, found.values(), strict=True) if is_below}
    # A folder also contains files that others import.
    libraries = {source.path for source in sources} if library else below
    results = compile_jobs([CompileJob(s, options, only_check=True) for s in sources for options in variants], jobs)
    source_of_target = click.get_current_context().get_parameter_source("target")
    if source_of_target is ParameterSource.DEFAULT and not given["target_file"]:
        note = partial(_note_other_target, target=variants[0].target, options_for=partial(make_compile_options, given))
        results = (note(one) if one.source.path in below else one for one in results)

    def is_shown(result: CompileResult) -> bool:
        """Return whether a result is reported: files that may lack kernels are not, if that is their only mistake."""
        return result.source.path not in libraries or [d.code for d in result.diagnostics] != ["no-kernel"]

    report_results(filter(is_shown, results), counted=True)


def _note_other_target(
    result: CompileResult, target: str, options_for: Callable[[str], CompileOptions]
) -> CompileResult:
    """Return the result, or another machine's with a note if all errors say that `target` lacks what that one has.

    The result stays unless each error is of this sort and a more capable machine accepts the kernel.
    """
    from tilec.driver.batch import CompileJob, compile_job

    if not result.failed or not all(_names_target(mistake, target) for mistake in result.diagnostics):
        return result
    for other in _find_more_capable_machines(target):
        other_result = compile_job(CompileJob(result.source, options_for(other), only_check=True))
        if not other_result.failed:
            primary = result.diagnostics[0].primary
            title = f"this kernel needs features that {target} lacks; it is correct for {other}"
            note = Diagnostic("for-another-target", title, primary, help=f"--target {other} checks it", severity="note")
            return replace(other_result, diagnostics=(note, *other_result.diagnostics))
    return result


def _names_target(mistake: Diagnostic, target: str) -> bool:
    """Return whether an error's title or label names the target: it is then about the machine."""
    label = mistake.primary.text if mistake.primary is not None else ""
    return target in mistake.title or target in label


def _find_more_capable_machines(target: str) -> list[str]:
    """Return the names of machines that have a feature which this one lacks, the oldest first."""
    from tilec.support.resources import target_names
    from tilec.target.table import load_target

    known = load_target(target).features
    others = sorted(set(target_names()) - {target}, key=parse_capability)
    return [other for other in others if not set(load_target(other).features) <= set(known)]
