"""`tilec simulate`: the cycles that the emitted PTX takes, and where they are spent, without a GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tilec.cli.console import report_mistakes, show_diagnostics
from tilec.cli.contents import contents_option, parse_contents
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, list_input_files, make_compile_options
from tilec.support import files
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.cli.commands.emulate import LaunchOptions
    from tilec.driver.build import Build
    from tilec.simulate.grid import Simulation
    from tilec.support.options import CompileOptions
    from tilec.support.source import SourceFile


LaunchData = tuple[tuple[str, ...], dict[str, int | tuple[int, ...]]]
"""The values of --size, and the contents of tensors by their names."""


@dataclass(frozen=True, slots=True)
class SimulationOutputs:
    """The files to write, and whether to print counters."""

    timeline: str | None
    html: str | None
    counters: bool

    @property
    def files(self) -> list[str]:
        """Return the paths of the files to write: timeline and page, as far as they are wanted."""
        return [file for file in (self.timeline, self.html) if file is not None]


@click.command(cls=GroupedCommand)
@click.argument("file", metavar="FILE.tl|FILE.ptx")
@click.option("--blocks", type=click.IntRange(1), metavar="N", help="Only the first N blocks of the grid.  [all]")
@click.option(
    "--timeline", metavar="FILE.json", help="Write the activity of each warp and unit, in cycles, for Perfetto."
)
@click.option(
    "--html", metavar="FILE.html", help="Write a page with the picture of the replay and the distribution of time."
)
@click.option("--counters", is_flag=True, help="Also print the figures under Nsight Compute's names of metrics.")
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="The value of a T.dynamic size.")
@contents_option
@click.option("--grid", metavar="X,Y,Z", help="FILE.ptx: blocks.  [1]")
@click.option("--block", metavar="X,Y,Z", help="FILE.ptx: threads of a block.")
@click.option("--smem", type=click.IntRange(0), metavar="BYTES", help="FILE.ptx: dynamic shared memory.  [0]")
@click.option("--arg", "args", multiple=True, metavar="ARG", help="FILE.ptx: a parameter, in order; as of emulate.")
@add_kernel_options
def simulate(
    file: str,
    blocks: int | None,
    timeline: str | None,
    html: str | None,
    counters: bool,
    sizes: tuple[str, ...],
    contents: tuple[str, ...],
    grid: str | None,
    block: str | None,
    smem: int | None,
    args: tuple[str, ...],
    verbose: bool,
    **given: Any,
) -> None:
    """Compile a kernel and say how many cycles its PTX takes, and where they go.

    The emulator follows the warps of some blocks; their instructions are replayed through the schedulers, pipes, ports
    and barriers of a multiprocessor at the prices of the target file. Tensors hold zeros or what --contents says, and
    no GPU is needed.

    FILE.ptx, of any compiler, is launched as `tilec emulate` does it, by --entry, --grid, --block, --cluster, --smem
    and --arg, on the machine that --target names.
    """
    if file.endswith(".ptx"):
        if sizes or contents:
            raise click.UsageError("--size and --contents are for FILE.tl; the arguments of FILE.ptx are --arg")
        launch = (grid, block, given["cluster"], smem)
        _simulate_ptx(file, SimulationOutputs(timeline, html, counters), blocks or 0, launch, args, given)
        return
    if any(option is not None for option in (grid, block, smem)) or args:
        raise click.UsageError("--grid, --block, --smem and --arg are for FILE.ptx")
    known = dict(map(parse_contents, contents))
    _simulate_kernel(file, SimulationOutputs(timeline, html, counters), blocks or 0, (sizes, known), given)


def _simulate_kernel(
    file: str, wanted: SimulationOutputs, blocks: int, data: LaunchData, given: dict[str, Any]
) -> None:
    """Compile and simulate a kernel file, write the wanted files and print cycles and their distribution."""
    with report_mistakes(None):
        source = files.read_source(file)
        options = make_compile_options(given)
        files.check_outputs(wanted.files, list_input_files([file], given))
    build, found = simulate_kernel_file(source, options, data, blocks, draws=bool(wanted.files))
    scheduled = [schedule.ii for schedule in build.schedules]
    events = json.loads(build.trace)["traceEvents"] if wanted.timeline is not None else []
    entry, target, predicted = build.manifest.entry, build.manifest.target, _predict_microseconds(build, data, blocks)
    _write_and_print(found, entry, target, scheduled, wanted, events, predicted)


def _predict_microseconds(build: Build, data: LaunchData, blocks: int) -> float | None:
    """Return the µs that `tilec report` predicts; None for a part of the grid, or where it assumes sizes."""
    from tilec.cli.commands.emulate import parse_size
    from tilec.driver.build import build_report

    if blocks:
        return None
    sizes, contents = data
    report = build_report(build, dict(map(parse_size, sizes)), contents)
    return None if report.assumes_sizes else report.after_launch


def simulate_kernel_file(
    source: SourceFile, options: CompileOptions, data: LaunchData, blocks: int = 0, *, draws: bool = False
) -> tuple[Build, Simulation]:
    """Return the build of a kernel and its simulation with these sizes and contents; errors end the command."""
    from tilec.cli.commands.emulate import parse_size
    from tilec.driver import build as driver, simulate
    from tilec.driver.emulation import emulate
    from tilec.emu import Fault
    from tilec.support.diagnostics import CompileError
    from tilec.target.table import load_target

    known, contents = dict(map(parse_size, data[0])), data[1]
    observer = driver.Observer()
    with report_mistakes(source):
        build = driver.build_kernel(source, options, observer)
        show_diagnostics(observer.warnings, source)
        machine = load_target(options.target, gpu=options.gpu)
        try:
            found = simulate.simulate_build(build, machine, sizes=known, contents=contents, blocks=blocks, draws=draws)
            return build, found
        except Fault as fault:
            raise CompileError(emulate.build_fault_diagnostic(fault, source, build)) from None


def _simulate_ptx(
    file: str,
    wanted: SimulationOutputs,
    blocks: int,
    launch: LaunchOptions,
    args: tuple[str, ...],
    given: dict[str, Any],
) -> None:
    """Simulate a kernel of a PTX file, write the wanted files and print its figures; errors end the command."""
    from tilec.cli.commands.emulate import parse_launch
    from tilec.driver import simulate
    from tilec.driver.emulation import emulate_ptx
    from tilec.emu import Fault
    from tilec.support.diagnostics import CompileError

    if launch[1] is None:
        raise click.UsageError("FILE.ptx needs --block")
    with report_mistakes(None):
        source = files.read_source(file)
        options = make_compile_options(given)
        geometry = parse_launch(launch)
        arguments = emulate_ptx.parse_arguments(args)
        files.check_outputs(wanted.files, [file])
    with report_mistakes(source):
        try:
            found = simulate.simulate_ptx(
                source, given["entry"], geometry, arguments, options.target, blocks=blocks, draws=bool(wanted.files)
            )
        except Fault as fault:
            raise CompileError(emulate_ptx.build_ptx_fault_diagnostic(fault, source, arguments)) from None
    _write_and_print(found, found.launch.entry, options.target, [], wanted, [])


def _write_and_print(
    found: Simulation,
    name: str,
    target: str,
    scheduled: list[int],
    wanted: SimulationOutputs,
    events: list[dict[str, Any]],
    predicted: float | None = None,
) -> None:
    """Write the wanted timeline and page of a simulation, then print its figures and counters.

    In this order, whoever closes standard output early has the files.
    """
    from tilec.simulate import counters, text, timeline

    written: dict[str, bytes] = {}
    if wanted.timeline is not None:
        written[wanted.timeline] = timeline.build_chrome_trace(found, events).encode()
    if wanted.html is not None:
        from tilec.report.simulation_page import build_simulation_page

        written[wanted.html] = build_simulation_page(found, name, target, scheduled, predicted).encode()
    with report_mistakes(None):
        files.write_all(written)

    for line in text.format_simulation(found, name, target, scheduled, predicted):
        print(line)
    if wanted.counters:
        print("under the names of Nsight Compute:")
        for each in counters.compute_counters(found):
            print(f"  {counters.format_amount(each.value):>12} {each.unit:8}{each.name}")
