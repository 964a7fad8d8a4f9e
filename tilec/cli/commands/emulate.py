"""`tilec emulate`: run the PTX on the CPU, and by default compare it with the reference. A .ptx file is run as it is,
with the launch and the arguments from the command line."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tilec.cli.console import WRONG_KERNEL, CommandExit, make_console, report_mistakes, show_diagnostics
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, list_input_files, make_compile_options
from tilec.support import files
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.display import make_printable
from tilec.support.processes import interrupt_exit_code
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.driver.emulation.compare import Comparison
    from tilec.driver.emulation.emulate import RunOptions
    from tilec.driver.emulation.emulate_ptx import LaunchGeometry
    from tilec.emu import Report


@click.command(cls=GroupedCommand)
@click.argument("file", metavar="FILE.tl|FILE.ptx")
@click.option("--inputs", metavar="IN.npz", help="Tensors and scalars to use instead of random ones.")
@click.option("--outputs", metavar="OUT.npz", help="Write every tensor after the run.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The seed of random inputs.")
@click.option("--compare/--no-compare", default=None, help="Compare with the reference.  [yes, unless --inputs]")
@click.option(
    "--expect",
    metavar="REF.npz|REF.py:FUNCTION",
    help="Also compare with this reference.  [arrays by name, or a function of the kernel's parameters]",
)
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="The value of a T.dynamic size.")
@click.option("--adversary", type=int, metavar="N", help="Draw the order of threads and copies from a seed.")
@click.option(
    "--grid-sample", type=click.IntRange(1), metavar="N", help="Run only N blocks that have work, drawn by --seed."
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes that share the blocks.")
@click.option("--timeline", metavar="FILE.json", help="Write the events at barriers, for Perfetto.")
@click.option(
    "--step-limit", type=click.IntRange(1), metavar="N", help="Maximum number of steps of a block.  [100 million]"
)
@click.option("--allow", type=click.Choice(["data-race"]), multiple=True, help="Count these faults and continue.")
@click.option("--grid", metavar="X,Y,Z", help="FILE.ptx: blocks.  [1]")
@click.option("--block", metavar="X,Y,Z", help="FILE.ptx: threads of a block.")
@click.option("--smem", type=click.IntRange(0), metavar="BYTES", help="FILE.ptx: dynamic shared memory.  [0]")
@click.option("--arg", "args", multiple=True, metavar="ARG", help="FILE.ptx: a parameter, in order; see above.")
@add_kernel_options
def emulate(
    file: str,
    inputs: str | None,
    outputs: str | None,
    seed: int,
    compare: bool | None,
    expect: str | None,
    sizes: tuple[str, ...],
    adversary: int | None,
    grid_sample: int | None,
    jobs: int,
    timeline: str | None,
    step_limit: int | None,
    allow: tuple[str, ...],
    grid: str | None,
    block: str | None,
    smem: int | None,
    args: tuple[str, ...],
    verbose: bool,
    **given: Any,
) -> None:
    """Compile a kernel and run its PTX on the CPU, without a GPU.

    Each output is compared with the kernel run by numpy, which shows that it was compiled right. --expect compares with
    what you mean it to compute.

    FILE.ptx, of any compiler, runs as it is. Each --arg is one parameter: FILE.npz:NAME (an array, written in place),
    zeros:float32:1024x1024, f32:1.5, s32:7, null, or bytes:00ff. --outputs saves the arrays, zeros as arg0, arg1, ….
    """
    from tilec.driver.emulation.emulate import RunOptions

    options = RunOptions(adversary, grid_sample or 0, seed, jobs, timeline is not None, step_limit, "report", allow)
    if file.endswith(".ptx"):
        if inputs is not None or compare is not None or sizes or expect is not None:
            raise click.UsageError(
                "--inputs, --size, --compare and --expect are for FILE.tl; the arguments of FILE.ptx are --arg"
            )
        launch = (grid, block, given["cluster"], smem)
        _emulate_ptx(file, _RunFiles(outputs, timeline), given["entry"], launch, args, options)
        return
    if any(option is not None for option in (grid, block, smem)) or args:
        raise click.UsageError("--grid, --block, --smem and --arg are for FILE.ptx")
    known = dict(map(parse_size, sizes))
    is_compared = inputs is None if compare is None else compare
    _emulate_kernel(file, inputs, _RunFiles(outputs, timeline), (is_compared, expect), options, known, given)


def parse_size(text: str) -> tuple[str, int]:
    """Return the name and number of `NAME=N`, the value of --size; raise a usage error for another form."""
    name, _, number = text.partition("=")
    if not name.isidentifier() or not number.isdecimal():
        example = f"{name}=1024" if name.isidentifier() else "M=1024"
        raise click.UsageError(f"--size {text}: write the name and the number, as in --size {example}")
    return name, int(number)


LaunchOptions = tuple[str | None, str | None, str | None, int | None]
"""The values of --grid, --block, --cluster and --smem, for FILE.ptx."""


def parse_launch(launch: LaunchOptions) -> LaunchGeometry:
    """Return a PTX file's launch geometry, by default one block, no cluster; raise `bad-argument` without --block."""
    from tilec.driver.emulation.emulate_ptx import LaunchGeometry, parse_extents

    grid, block, cluster, smem = launch
    blocks, threads = parse_extents(grid or "1"), parse_extents(block or "")
    return LaunchGeometry(blocks, threads, parse_extents((cluster or "1").lower().replace("x", ",")), smem or 0)


@dataclass(frozen=True, slots=True)
class _RunFiles:
    """The files that a complete run writes."""

    outputs: str | None
    timeline: str | None

    def check(self, read: Sequence[str]) -> None:
        """Raise an error if an output cannot be written, or would replace one of the files `read`."""
        files.check_outputs([path for path in (self.outputs, self.timeline) if path is not None], read)

    def write(self, report: Report, arrays: Callable[[], bytes]) -> None:
        """Write the timeline, even of a kernel that faulted, and the arrays of a kernel that did not."""
        from tilec.emu.machine.timeline import format_chrome_trace

        outputs: dict[str, bytes] = {}
        if self.timeline is not None:
            outputs[self.timeline] = format_chrome_trace(report.timeline).encode()
        if self.outputs is not None and not report.faults:
            outputs[self.outputs] = arrays()
        with report_mistakes(None):
            files.write_all(outputs)


def _emulate_kernel(
    file: str,
    inputs: str | None,
    outputs: _RunFiles,
    judges: tuple[bool, str | None],
    options: RunOptions,
    sizes: dict[str, int],
    given: dict[str, Any],
) -> None:
    """Compile a kernel, run its PTX on the emulator, print each output's verdict, write files; raise faults as errors.

    `judges`: whether to compare with the kernel run by numpy, and the value of --expect. Differences are errors too.
    """
    from tilec.driver import build as driver
    from tilec.driver.emulation import emulate, expected
    from tilec.driver.emulation.compare import count_unwritten_elements, has_finite_inputs, merge_written_masks

    is_compared, expect = judges
    with report_mistakes(None):
        source = files.read_source(file)
        compiler_options = make_compile_options(given)
        given_arrays = files.read_bytes(inputs) if inputs is not None else None
        load_expected = expected.load_reference(expect) if expect is not None else None
        read = list_input_files([file], given) + ([inputs] if inputs is not None else [])
        outputs.check(read + ([expected.get_reference_path(expect)] if expect is not None else []))
    observer = driver.Observer()
    with report_mistakes(source):
        build = driver.build_kernel(source, compiler_options, observer)
        show_diagnostics(observer.warnings, source)
        if given_arrays is None or inputs is None:
            arguments = emulate.draw_arguments(build.kernel, build.manifest, options.seed, sizes)
        else:
            arguments = emulate.read_arguments(given_arrays, inputs, build.kernel, build.manifest, sizes)
        before = arguments.copy()
        finite = has_finite_inputs(build.kernel, build.manifest, arguments.tensors, arguments.scalars)
        blocks = math.prod(emulate.compute_grid(build.manifest, arguments))
        with _track_progress(build.manifest.entry, blocks) as note:
            report = emulate.emulate_build(build, arguments, note, options)
        _print_run(report)
        outputs.write(report, lambda: emulate.pack_arrays(arguments.tensors))
        if report.faults:
            raise CompileError(*(emulate.build_fault_diagnostic(fault, source, build) for fault in report.faults))
        if options.sample and judges != (False, None):
            idle = report.blocks >= options.sample + math.prod(build.manifest.cluster)
            ran = f"{report.blocks} blocks of {blocks}{', some of them without work' if idle else ''}"
            print(f"{ran}; only what they wrote is compared")
        if not options.sample:
            unwritten = count_unwritten_elements(build.kernel, build.manifest, arguments.tensors)
            show_diagnostics(build_unwritten_warnings(unwritten), source)
        written = merge_written_masks(build.manifest, report) if options.sample else None
        wrong: list[Diagnostic] = []

        def compare_with_reference(
            reference: emulate.KernelArguments, by: str, named: Iterable[str] | None = None
        ) -> None:
            """Print how outputs compare with the reference and add errors to `wrong`; raise an error if none compares.

            `named` limits them to those of these names.
            """
            compared = emulate.compare_arguments(
                build.kernel, build.manifest, arguments, reference, written, are_inputs_finite=finite
            )
            if named is not None:
                for result in compared:
                    if result.name not in named:
                        print(f"{result.name}: {by} has no such array: not compared")
                compared = [result for result in compared if result.name in named]
            for result in compared:
                print(describe_comparison(result, by))
            if compared and all(result.is_nothing_compared for result in compared):
                raise CompileError(nothing_compared(build.kernel.name, report.blocks, blocks))
            differing = (r for r in compared if not r.matches and not r.is_nothing_compared)
            wrong.extend(build_mismatch_diagnostic(result, by, observer.warnings) for result in differing)

        if load_expected is not None and expect is not None:
            named_arrays = load_expected(build.kernel, build.manifest, before)
            reference = emulate.KernelArguments({**arguments.tensors, **named_arrays}, {})
            compare_with_reference(reference, expect, named_arrays)
        if is_compared:
            emulate.run_reference(build.kernel, before)
            compare_with_reference(before, BY_NUMPY)
    if wrong:
        show_diagnostics(wrong, source)
        raise CommandExit(WRONG_KERNEL)


def _emulate_ptx(
    file: str, outputs: _RunFiles, entry: str | None, launch: LaunchOptions, args: tuple[str, ...], options: RunOptions
) -> None:
    """Run a kernel of a PTX file on the emulator, print its report and write its files; faults are errors."""
    from tilec.driver.emulation import emulate, emulate_ptx

    if launch[1] is None:
        raise click.UsageError("FILE.ptx needs --block")
    with report_mistakes(None):
        source = files.read_source(file)
        geometry = parse_launch(launch)
        arguments = emulate_ptx.parse_arguments(args)
        outputs.check([file, *(text.rpartition(":")[0] for text in args if ".npz:" in text)])
    with report_mistakes(source):
        with _track_progress(entry or file, math.prod(geometry.grid)) as note:
            report = emulate_ptx.emulate_ptx_file(source, entry, geometry, arguments, note, options)
        _print_run(report)
        outputs.write(report, lambda: emulate.pack_arrays(arguments.arrays))
        if report.faults:
            raise CompileError(*(emulate_ptx.build_ptx_fault_diagnostic(f, source, arguments) for f in report.faults))
    print(emulate_ptx.summarise_report(report))


@contextmanager
def _track_progress(name: str, blocks: int) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that notes how many blocks are done and draws a progress bar; end the command if interrupted."""
    reached = 0

    def note_progress(done: int, total: int) -> None:
        """Remember the number of blocks done, and draw the progress bar if there is one."""
        nonlocal reached
        reached = done
        if draw is not None:
            draw(done, total)

    with _show_progress_bar(name) as draw:
        try:
            yield note_progress
        except KeyboardInterrupt as reason:
            message = f"interrupted after {reached} of {blocks} blocks: nothing is compared, nothing written"
            print(message, file=sys.stderr)
            raise CommandExit(interrupt_exit_code(reason)) from None


def _print_run(report: Report) -> None:
    """Print the kernel's own printed text, and how many faults of each kind --allow let pass."""
    print(make_printable(report.printed), end="")
    for kind, count in report.allowed.items():
        print(f"{count} faults of kind {kind} allowed: results may differ from run to run on a GPU")


@contextmanager
def _show_progress_bar(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that updates a progress bar on a terminal; None if stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("emulating {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("blocks"))
    with Progress(*columns, TimeRemainingColumn(), console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


BY_NUMPY = "the kernel run by numpy"
"""The reference: the kernel's text, operation by operation, which may not be what its author means."""


def describe_comparison(result: Comparison, by: str) -> str:
    """Return one line on an output: the elements compared with the reference `by`, the worst error, the verdict."""
    if result.is_meaningless:
        return f"{result.name}: {result.not_finite:,} of {result.elements:,} elements are NaN or infinite: MISMATCH"
    if not result.compared:
        reason = "the blocks that ran wrote none of them" if result.is_nothing_compared else "there are none"
        return f"{result.name}: {_describe_share(result)} compared: {reason}"
    verdict = f"matches {by}" if result.matches else f"MISMATCH with {by}"
    error = f"worst error {result.error:.3g}, {result.allowed:.3g} allowed there"
    return f"{result.name}: {_describe_share(result)} of the emulated PTX, {error}: {verdict}"


def nothing_compared(kernel: str, ran: int, blocks: int) -> Diagnostic:
    """Return the error `nothing-compared`: none of the sampled blocks wrote an output."""
    title = f"the {ran} of {blocks} blocks of {kernel} that ran wrote no output, so nothing was compared"
    note = "in a persistent grid a block may have no work for these sizes"
    advice = "give a larger --grid-sample or another --seed, or remove --grid-sample to run every block"
    return Diagnostic("nothing-compared", title, notes=(note,), help=advice)


def _describe_share(result: Comparison) -> str:
    """Return how many elements were compared: `64 × 1,024 elements`, of a sample `2,048 of 64 × 1,024 elements`."""
    shape = " × ".join(f"{extent:,}" for extent in result.shape) or "1"
    total = math.prod(result.shape)
    noun = "element" if total == 1 else "elements"
    return f"{shape} {noun}" if result.compared == total else f"{result.compared:,} of {shape} {noun}"


def build_mismatch_diagnostic(result: Comparison, by: str, warnings: Iterable[Diagnostic]) -> Diagnostic:
    """Return the error for an output that differs from the reference `by`, or is NaN or infinite.

    `warnings` are the kernel's: an uninitialised tile explains NaN.
    """
    if not result.is_meaningless:
        where = f"{result.name}[{', '.join(map(str, result.worst))}]"
        note = f"{where} is {result.found:.8g}, {by} has {result.expected:.8g}"
        title = f"output {result.name} of the emulated kernel differs from {by}"
        return Diagnostic("emulation-mismatch", title, notes=(note,))
    reads = ((w, w.secondary[0].span.line) for w in warnings if w.code == "uninitialised-read" and w.secondary)
    causes = tuple(f"{warning.title} (read in line {line})" for warning, line in reads)
    first = f"{result.name}[{', '.join(map(str, result.first))}]"
    title = f"{result.not_finite:,} of {result.elements:,} elements of {result.name} are NaN or infinite"
    notes = (f"the first is {first}; no input has such a value, so nothing was compared", *causes)
    advice = None if causes else "use T.print in the kernel to find where the first one comes from"
    return Diagnostic("emulation-not-finite", title, notes=notes, help=advice)


def build_unwritten_warnings(elements: Iterable[tuple[str, int, int]]) -> list[Diagnostic]:
    """Return a warning for each output of (name, unwritten elements, all elements)."""
    titles = (f"no block wrote {count:,} of the {total:,} elements of {name}" for name, count, total in elements)
    advice = "check the grid and the indices of the stores"
    return [Diagnostic("unwritten-elements", title, help=advice, severity="warning") for title in titles]
