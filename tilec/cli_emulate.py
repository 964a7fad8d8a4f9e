"""`tilec emulate`: run the PTX on the CPU, and compare with the reference where nothing else is asked for.

A file that ends in .ptx is run as it is, with the launch and the arguments that the command names.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tilec import files
from tilec.cli_commands import compile_options, input_files, kernel_options
from tilec.cli_console import WRONG_KERNEL, Exit, console, reported, show
from tilec.diag import CompileError, Diagnostic

if TYPE_CHECKING:
    from tilec.emulate import Comparison

_INTERRUPTED = 130
"""As a shell reports a process that SIGINT ended."""


@click.command()
@click.argument("file", metavar="FILE.tl|FILE.ptx")
@click.option("--inputs", metavar="IN.npz", help="Tensors and scalars by name, instead of random ones.")
@click.option("--outputs", metavar="OUT.npz", help="Write every tensor after the run.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random inputs.")
@click.option("--compare/--no-compare", default=None, help="Compare with the reference.  [yes, unless --inputs]")
@click.option("--adversary", type=int, metavar="N", help="Seed of a hostile machine: any order, any moment.")
@click.option("--grid-sample", type=click.IntRange(1), metavar="N", help="Run N blocks only, chosen by --seed.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes that share the blocks.")
@click.option("--timeline", metavar="FILE.json", help="Write who arrived and waited at which barrier, for Perfetto.")
@click.option("--grid", metavar="X,Y,Z", help="FILE.ptx: blocks.  [1]")
@click.option("--block", metavar="X,Y,Z", help="FILE.ptx: threads of a block.")
@click.option("--cluster", metavar="X,Y,Z", help="FILE.ptx: blocks of a cluster.  [1]")
@click.option("--smem", type=click.IntRange(0), metavar="BYTES", help="FILE.ptx: dynamic shared memory.  [0]")
@click.option("--arg", "args", multiple=True, metavar="ARG", help="FILE.ptx: a parameter, in order; see above.")
@kernel_options
def emulate(
    file: str,
    inputs: str | None,
    outputs: str | None,
    seed: int,
    compare: bool | None,
    adversary: int | None,
    grid_sample: int | None,
    jobs: int,
    timeline: str | None,
    grid: str | None,
    block: str | None,
    cluster: str | None,
    smem: int | None,
    args: tuple[str, ...],
    verbose: bool,
    **given: Any,
) -> None:
    """Compile a kernel and run its PTX on the CPU, without a GPU.

    Asynchronous results stay poisoned until the program has waited for them, so a missing wait shows. Exit code 1: the
    run faulted, or an output differs from the reference.

    FILE.ptx, of any compiler, runs as it is: --entry, --grid, --block, --cluster and --smem launch it, and each --arg
    is one parameter: FILE.npz:NAME (an array, written in place), zeros:float32:1024x1024, f32:1.5, s32:7, null, or
    bytes:00ff for a struct. --outputs saves the arrays, those of zeros as arg0, arg1, … by their place.
    """
    if file.endswith(".ptx"):
        _emulate_ptx(file, outputs, given["entry"], (grid, block, cluster, smem), args)
        return
    if any(option is not None for option in (grid, block, cluster, smem)) or args:
        raise click.UsageError("--grid, --block, --cluster, --smem and --arg are for FILE.ptx")
    from tilec import driver, emulate
    from tilec.emu.fault import Fault
    from tilec.emu.timeline import chrome_trace

    with reported(None):
        source = files.read_source(file)
        asked = compile_options(given)
        given_arrays = files.read_bytes(inputs) if inputs is not None else None
        made = [output for output in (outputs, timeline) if output is not None]
        files.check_outputs(made, [*input_files(file, given), *([inputs] if inputs is not None else [])])
    options = emulate.RunOptions(adversary, grid_sample or 0, seed, jobs, timeline is not None)
    observer = driver.Observer()
    with reported(source):
        build = driver.build(source, asked, observer)
        show(observer.warnings, source)
        if given_arrays is None or inputs is None:
            arguments = emulate.random_arguments(build.kernel, build.manifest, seed)
        else:
            arguments = emulate.read_arguments(given_arrays, inputs, build.kernel, build.manifest)
        before = arguments.copy()
        reached = 0

        def note(done: int, total: int) -> None:
            nonlocal reached
            reached = done
            if draw is not None:
                draw(done, total)

        with _progress(build.manifest.entry) as draw:
            try:
                report = emulate.run(build, arguments, note, options)
            except KeyboardInterrupt:
                message = f"interrupted after {reached} of {math.prod(build.manifest.grid)} blocks"
                print(f"{message}: nothing is compared, nothing written", file=sys.stderr)
                raise Exit(_INTERRUPTED) from None
            except Fault as fault:
                raise CompileError(emulate.fault_diagnostic(fault, source)) from fault
        if outputs is not None:
            files.write_all({outputs: emulate.write_arguments(arguments)})
        if timeline is not None:
            files.write_all({timeline: chrome_trace(report.timeline).encode()})
        if compare is False or (compare is None and inputs is not None):
            return
        emulate.reference(build.kernel, before)
    written = emulate.written_tensors(build.manifest, report) if grid_sample else None
    compared = emulate.compare(build.kernel, build.manifest, arguments, before, written)
    if written is not None:
        print(f"{report.blocks} blocks of {math.prod(build.manifest.grid)}; only what they wrote is compared")
    for result in compared:
        print(_line(result))
    wrong = [result for result in compared if not result.matches]
    if wrong:
        show([_mismatch(result) for result in wrong], source)
        raise Exit(WRONG_KERNEL)


def _emulate_ptx(
    file: str,
    outputs: str | None,
    entry: str | None,
    launched: tuple[str | None, str | None, str | None, int | None],
    args: tuple[str, ...],
) -> None:
    from tilec import emulate_ptx
    from tilec.emu.fault import Fault

    grid, block, cluster, smem = launched
    if block is None:
        raise click.UsageError("FILE.ptx needs --block")
    with reported(None):
        source = files.read_source(file)
        sizes = [emulate_ptx.extents(text) for text in (grid or "1", block, cluster or "1")]
        geometry = emulate_ptx.Geometry(sizes[0], sizes[1], sizes[2], smem or 0)
        arguments = emulate_ptx.arguments(args)
        if outputs is not None:
            files.check_writable(outputs)
    with reported(source), _progress(entry or file) as progress:
        try:
            report = emulate_ptx.run(source, entry, geometry, arguments, progress)
        except Fault as fault:
            raise CompileError(emulate_ptx.fault_diagnostic(fault, source)) from fault
    if outputs is not None:
        with reported(None):
            files.write_all({outputs: emulate_ptx.saved(arguments)})
    print(emulate_ptx.summary(report))


def _line(result: Comparison) -> str:
    verdict = "ok" if result.matches else "MISMATCH"
    return f"{result.name}: worst error {result.error:.3g}, {result.allowed:.3g} allowed there: {verdict}"


def _mismatch(result: Comparison) -> Diagnostic:
    where = f"{result.name}[{', '.join(map(str, result.worst))}]"
    return Diagnostic(
        "emulation-mismatch",
        f"the emulated kernel computes another {result.name} than the reference",
        notes=(f"{where} is {result.found:.8g}, the reference has {result.expected:.8g}",),
    )


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, silence elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("emulating {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("blocks"))
    with Progress(*columns, TimeRemainingColumn(), console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
