"""`tilec emulate`: run the PTX on the CPU, and compare with the reference where nothing else is asked for."""

from __future__ import annotations

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


@click.command()
@click.argument("file", metavar="FILE.tl")
@click.option("--inputs", metavar="IN.npz", help="Tensors and scalars by name, instead of random ones.")
@click.option("--outputs", metavar="OUT.npz", help="Write every tensor after the run.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random inputs.")
@click.option("--compare/--no-compare", default=None, help="Compare with the reference.  [yes, unless --inputs]")
@kernel_options
def emulate(
    file: str,
    inputs: str | None,
    outputs: str | None,
    seed: int,
    compare: bool | None,
    verbose: bool,
    **given: Any,
) -> None:
    """Compile a kernel and run its PTX on the CPU, without a GPU.

    Asynchronous results stay poisoned until the program has waited for them, so a missing wait shows. Exit code 1: the
    run faulted, or an output differs from the reference.
    """
    from tilec import driver, emulate
    from tilec.emu.fault import Fault

    with reported(None):
        source = files.read_source(file)
        asked = compile_options(given)
        given_arrays = files.read_bytes(inputs) if inputs is not None else None
        if outputs is not None:
            files.check_outputs([outputs], [*input_files(file, given), *([inputs] if inputs is not None else [])])
    observer = driver.Observer()
    with reported(source):
        build = driver.build(source, asked, observer)
        show(observer.warnings, source)
        if given_arrays is None or inputs is None:
            arguments = emulate.random_arguments(build.kernel, build.manifest, seed)
        else:
            arguments = emulate.read_arguments(given_arrays, inputs, build.kernel, build.manifest)
        before = arguments.copy()
        with _progress(build.manifest.entry) as progress:
            try:
                emulate.run(build, arguments, progress)
            except Fault as fault:
                raise CompileError(emulate.fault_diagnostic(fault, source)) from fault
        if outputs is not None:
            files.write_all({outputs: emulate.write_arguments(arguments)})
        if compare is False or (compare is None and inputs is not None):
            return
        emulate.reference(build.kernel, before)
    compared = emulate.compare(build.kernel, build.manifest, arguments, before)
    for result in compared:
        print(_line(result))
    wrong = [result for result in compared if not result.matches]
    if wrong:
        show([_mismatch(result) for result in wrong], source)
        raise Exit(WRONG_KERNEL)


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
