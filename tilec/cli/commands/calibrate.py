"""`tilec calibrate`: measure this machine's GPU, and write the results into a target file."""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilec.cli.console import fail_usage, make_console, report_mistakes, show_tables
from tilec.support import files, readers, resources, schema
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from tilec.calibrate.measure import Measurement
    from tilec.calibrate.probe import Probe
    from tilec.calibrate.rewrite import Change
    from tilec.target.table import Target

PLAN_FILE = "plan.json"


@dataclass(frozen=True, slots=True)
class _PlannedProbe:
    """A probe's cubin in the folder of the plan."""

    probe: str
    file: str
    sha256: str
    figures: tuple[str, ...]
    trips: tuple[int, int]
    operations: int


@dataclass(frozen=True, slots=True)
class _ProbePlan:
    """The plan that --emit writes."""

    target: str
    probes: tuple[_PlannedProbe, ...]


@click.command()
@click.option("--target", default="sm_90a", show_default=True, metavar="NAME", help="Machine to measure.")
@click.option(
    "--output", "-o", metavar="FILE.toml", help="Target file to rewrite; at first a copy of the one that ships."
)
@click.option("--json", "json_file", metavar="FILE", help="Write every run's figures.")
@click.option("--repeats", type=click.IntRange(3), default=15, show_default=True, help="Pairs of runs of each probe.")
@click.option("--emit", metavar="DIR", help="Only write the probes as cubins, with a plan, to run on another machine.")
@click.option("--cubins", metavar="DIR", help="Run the cubins that --emit wrote, rather than assemble them here.")
@click.option("--results", metavar="FILE", help="Take the figures from a file of --json: needs no GPU.")
def calibrate(
    target: str,
    output: str | None,
    json_file: str | None,
    repeats: int,
    emit: str | None,
    cubins: str | None,
    results: str | None,
) -> None:
    """Measure a GPU with small kernels, and rewrite the rows of its target file that they bear out.

    Shows each figure (the median of --repeats pairs of runs, and half the way from their tenth to their ninetieth
    percentile), then each cell as the file has it and as it is measured. Everything else of the file stays as it is,
    byte for byte; docs/calibration.md says which probe stands behind which row.
    """
    if sum(option is not None for option in (emit, cubins, results)) > 1:
        fail_usage("--emit, --cubins and --results exclude each other")
    if emit is not None and (output is not None or json_file is not None):
        fail_usage("--emit measures nothing, so it takes neither -o nor --json")
    if results is not None and json_file is not None:
        fail_usage("--results measures nothing, so it takes no --json")
    with report_mistakes(None):
        from tilec.target.table import load_target

        machine = load_target(target)
        if emit is not None:
            _write_probes(machine, emit)
            return
        has_output = output is not None and Path(output).exists()
        base = files.read_text(output or "") if has_output else resources.target_text(target)
        files.check_outputs([path for path in (output, json_file) if path is not None], [])
        if results is not None:
            measurement = _read_measurement(results, target)
        else:
            measurement = _measure_machine(machine, cubins, repeats, json_file)
        _report_measurement(measurement, base, output, json_file)


def _make_assembler(machine: Target) -> Callable[[Probe], bytes]:
    """Return a function that assembles a probe's PTX for the machine and returns its cubin."""

    def assemble_probe(probe: Probe) -> bytes:
        """Return the cubin of a probe, assembled for the machine."""
        from tilec.calibrate.probe import build_ptx
        from tilec.ptx.assemble import assemble_module

        return assemble_module(build_ptx(probe, machine.ptx_target, machine.ptx_version), machine.ptx_target).cubin

    return assemble_probe


def _write_probes(machine: Target, folder: str) -> None:
    """Assemble each of the machine's probes, and write the cubins and their plan into a folder."""
    from tilec.calibrate.measure import select_probes

    cubin_of = _make_assembler(machine)
    outputs: dict[str, bytes] = {}
    plan: list[_PlannedProbe] = []
    for probe in select_probes(machine):
        cubin = cubin_of(probe)
        name, digest = f"{probe.entry}.cubin", hashlib.sha256(cubin).hexdigest()
        outputs[str(Path(folder) / name)] = cubin
        plan.append(_PlannedProbe(probe.name, name, digest, probe.figures, probe.trip_count, probe.operations))
    record = schema.to_plain(_ProbePlan(machine.name, tuple(plan)))
    outputs[str(Path(folder) / PLAN_FILE)] = (json.dumps(record, indent=1) + "\n").encode()
    files.make_folder(folder)
    files.write_all(outputs)
    print(f"{len(plan)} probes in {folder}: tilec calibrate --target {machine.name} --cubins {folder} --json FILE")


def make_cubin_reader(folder: str, machine: Target) -> Callable[[Probe], bytes]:
    """Return a function that reads a probe's cubin from the folder of --emit, and raises if its checksum is wrong.

    A plan that is unreadable or of another machine is refused at once.
    """
    try:
        plan = schema.read_record(_ProbePlan, readers.parse_json(files.read_text(str(Path(folder) / PLAN_FILE))), "")
    except ValueError as error:
        raise_error("bad-measurements", f"{folder}/{PLAN_FILE} is not a plan of --emit: {error}")
    if plan.target != machine.name:
        raise_error("bad-measurements", f"the probes in {folder} are for {plan.target}, not for {machine.name}")
    sums = {(one.probe, one.file): one.sha256 for one in plan.probes}

    def read_cubin(probe: Probe) -> bytes:
        """Return a probe's cubin from the folder; raise an error if its checksum is not the plan's."""
        name = f"{probe.entry}.cubin"
        cubin = files.read_bytes(str(Path(folder) / name))
        if hashlib.sha256(cubin).hexdigest() != sums.get((probe.name, name)):
            title = f"{folder}/{name} is not the cubin of its plan"
            raise_error("bad-measurements", title, help="write both with --emit")
        return cubin

    return read_cubin


def _measure_machine(machine: Target, cubins: str | None, repeats: int, json_file: str | None) -> Measurement:
    """Run the probes on this machine's GPU and return their figures, saved to `json_file` before each probe.

    On a terminal, the status line names the probe.
    """
    from tilec.calibrate.measure import find_gpu, measure_target, to_json

    def save_measurement(measurement: Measurement) -> None:
        """Write the results so far to the file of --json, if there is one."""
        if json_file is not None:
            files.write_all({json_file: to_json(measurement).encode()})

    device = find_gpu(machine)
    cubin_of = _make_assembler(machine) if cubins is None else make_cubin_reader(cubins, machine)
    date = datetime.date.today().isoformat()
    if not sys.stderr.isatty():
        return measure_target(device, machine, cubin_of, date, repeats, keep=save_measurement)
    with make_console(stderr=True).status("measuring") as status:

        def show_probe(probe: Probe) -> None:
            status.update(f"measuring {probe.name}")

        return measure_target(device, machine, cubin_of, date, repeats, show_probe, save_measurement)


def _read_measurement(path: str, target: str) -> Measurement:
    """Read the measurement that --json wrote to `path`; raise an error if it is of another target."""
    from tilec.calibrate.measure import from_json

    measurement = from_json(files.read_text(path), path)
    if measurement.target != target:
        raise_error("bad-measurements", f"{path} was measured for {measurement.target}, not for {target}")
    return measurement


def _report_measurement(measurement: Measurement, base: str, output: str | None, json_file: str | None) -> None:
    """Print the figures and changed cells, and write the JSON file and the rewritten target file.

    The new text is first parsed as a target file. The JSON file is written even if that fails.
    """
    from tilec.calibrate import plan
    from tilec.calibrate.measure import to_json
    from tilec.calibrate.rewrite import rewrite_rows
    from tilec.target import table as target

    written = {} if json_file is None else {json_file: to_json(measurement).encode()}
    file = output or f"{measurement.target}.toml"
    try:
        fits = plan.derive_checked_rows(measurement, target.load_target(measurement.target).limit("clock_mhz"))
        text, changes = rewrite_rows(base, fits.rows, file)
        target.parse_target(text, file)
        if output is not None:
            written[output] = text.encode()
    finally:
        # Keep the measurement even if the target file cannot be rewritten.
        files.write_all(written)
    show_tables([_make_figure_table(measurement), _make_cell_table(changes)])
    for name, fault in measurement.faults.items():
        print(f"not measured: {name}: {fault}")
    for cell, reason in fits.refused.items():
        print(f"refused: {cell}: {reason}")


def _make_figure_table(measurement: Measurement) -> Table:
    """Return a table of each measured figure's median cycles and spread."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"{measurement.gpu}, driver {measurement.driver}, {measurement.date}"))
    table.add_column("figure")
    for heading in ("cycles", "spread"):
        table.add_column(heading, justify="right")
    for name in measurement.figures:
        spread = measurement.spread(name)
        table.add_row(Text(name), f"{spread.median:.2f}", f"±{spread.relative:.1%}")
    return table


def _make_cell_table(changes: tuple[Change, ...]) -> Table:
    """Return a table of the changed cells of the target file, before and after, without their sources."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text("cells of the target file"))
    for heading in ("table", "cell", "in the file", "measured"):
        table.add_column(heading)
    for change in changes:
        if change.key != "source":
            texts = (change.before, change.after)
            table.add_row(Text(change.table), Text(change.key), *(Text(text.split(", source")[0]) for text in texts))
    return table
