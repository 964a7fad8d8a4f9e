"""`tilec inspect` and `tilec targets`: show the manifests in a cubin, and the data of a machine."""

from __future__ import annotations

import click

from tilec.cli.completion import complete_one
from tilec.cli.console import report_mistakes, show_tables
from tilec.support import files, resources
from tilec.support.diagnostics import raise_error
from tilec.support.options import CALIBRATIONS


@click.command()
@click.argument("cubin", metavar="CUBIN")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest exactly as in the cubin.")
def inspect(cubin: str, as_json: bool) -> None:
    """Show the launch manifest that a cubin carries, or those of all cubins in a fatbin."""
    from tilec.host import fatbin
    from tilec.ir import manifest

    with report_mistakes(None):
        data = files.read_bytes(cubin)
        members = fatbin.extract_cubins(data) if fatbin.is_fatbin(data) else [data]
        if not members:
            raise_error("no-manifest", f"{cubin} has no cubin that tilec can read")
        found = [described for member in members for described in manifest.extract_from_cubin(member)]
    for described in found:
        print(manifest.to_json(described) if as_json else manifest.summarise_manifest(described))


@click.command()
@click.argument("name", required=False, shell_complete=complete_one(resources.target_names))
@click.option(
    "--calibration",
    type=click.Choice(CALIBRATIONS),
    default=CALIBRATIONS[0],
    show_default=True,
    help="The calibration to show.",
)
def targets(name: str | None, calibration: str) -> None:
    """List the machines, or everything the scheduler knows about one."""
    from tilec.report.tables import build_target_details, build_target_list

    with report_mistakes(None):
        show_tables([build_target_list() if name is None else build_target_details(name, calibration)])
