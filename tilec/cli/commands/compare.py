"""`tilec compare`: compare a kernel's Nsight Compute profile with its simulation."""

from __future__ import annotations

from typing import Any

import click

from tilec.cli.commands.simulate import simulate_kernel_file
from tilec.cli.console import report_mistakes
from tilec.cli.contents import contents_option, parse_contents
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, make_compile_options
from tilec.support import files
from tilec.support.diagnostics import raise_error


@click.command(cls=GroupedCommand)
@click.argument("profile", metavar="PROFILE.csv")
@click.argument("file", metavar="FILE.tl")
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="The value of a T.dynamic size.")
@contents_option
@click.option("--all-metrics", is_flag=True, help="Also list the metrics of the profile that nothing predicts.")
@add_kernel_options
def compare(
    profile: str,
    file: str,
    sizes: tuple[str, ...],
    contents: tuple[str, ...],
    all_metrics: bool,
    verbose: bool,
    **given: Any,
) -> None:
    """Simulate a kernel, and put its figures beside a profile of it, metric by metric.

    PROFILE.csv is what `ncu --csv` writes, with --page details or --page raw, of a program that launches the kernel;
    `tilec simulate --counters` lists what is compared. Of several launches the mean is shown.
    """
    from tilec.simulate import counters, profiles
    from tilec.simulate.profiles import ProfileError, read_profile

    with report_mistakes(None):
        source = files.read_source(file)
        options = make_compile_options(given)
        try:
            launches = read_profile(files.read_text(profile))
        except ProfileError as error:
            advice = "write one with ncu --csv --page raw --set full, and its standard output into the file"
            raise_error("bad-profile", f"{profile} is not a profile that can be compared: {error}", help=advice)
    build, found = simulate_kernel_file(source, options, (sizes, dict(map(parse_contents, contents))))
    entry = build.manifest.entry
    ours = profiles.select_launches(launches, entry)
    with report_mistakes(None):
        if not ours:
            known = ", ".join(dict.fromkeys(launch.kernel for launch in launches))
            title, notes = f"{profile} has no launch of {entry}", (f"it has launches of {known}",)
            advice = "profile the program that launches it, or give the file of the kernel that was profiled"
            raise_error("bad-profile", title, notes=notes, help=advice)
    compared = profiles.compare_profile(ours, counters.compute_counters(found))
    launches_of_it = "1 launch" if compared.launches == 1 else f"{compared.launches} launches, their means"
    print(f"{entry} on {build.manifest.target}: {launches_of_it} in {profile}")
    print(f"{'measured':>14}{'simulated':>14}{'ratio':>8}  metric")
    for row in compared.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        unit = f" [{row.unit}]" if row.unit else ""
        measured, predicted = counters.format_amount(row.measured), counters.format_amount(row.predicted)
        print(f"{measured:>14}{predicted:>14}{ratio:>8}  {row.name}{unit}")
    if compared.unmatched and all_metrics:
        print(f"not predicted: {', '.join(compared.unmatched)}")
