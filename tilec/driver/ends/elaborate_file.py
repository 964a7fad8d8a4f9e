"""From a syntax tree or from stored tile IR to the state of each kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilec.analysis.usage import list_expressions
from tilec.driver.observer import Observer
from tilec.ir import tile
from tilec.ir.tile import Kernel
from tilec.passes.state import FileState, KernelState, SearchState
from tilec.sched.budget import WORK_PER_EFFORT, Budget
from tilec.support import progress
from tilec.support.diagnostics import CompileError, Diagnostic, ErrorCollector, Label, raise_error
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target import table as targets


def elaborate_file(file: FileState, observer: Observer) -> FileState:
    """Return the file with its kernels (or the chosen one) elaborated to tile IR, from the tree or stored tile IR."""
    options = file.options
    if file.is_tile_ir:
        return replace(file, kernels=(begin_kernel(_read_stored_kernel(file.source, options), file),))
    from tilec.frontend.sema import elaborate as reading
    from tilec.frontend.sema.context import Machine

    assert file.tree is not None and file.imported is not None
    given = (file.tree, file.source, dict(options.defines), options.entry, partial(observer.warn, options=options))

    def count_multiprocessors() -> int:
        """Return the number of multiprocessors of the target, read only when a kernel asks for it."""
        return targets.load_target(options.target, options.calibration, options.gpu).limit("sms")

    machine = Machine(count_multiprocessors, options.cluster or (1, 1, 1), partial(_get_compute_capability, options))
    if file.is_single:
        return replace(file, kernels=(begin_kernel(reading.elaborate_entry(*given, file.imported, machine), file),))
    mistakes = file.mistakes if file.is_checked_only else ErrorCollector()
    kernels = reading.elaborate_all(*given, file.imported, machine, mistakes, observer.bound)
    if not file.is_checked_only:
        mistakes.end()
    return replace(file, kernels=tuple(begin_kernel(kernel, file) for kernel in kernels))


def begin_kernel(kernel: Kernel, file: FileState) -> KernelState:
    """Return the initial state of a kernel, nothing decided; raise an error for inline PTX that the options forbid."""
    options = file.options
    if options.refuse_inline_ptx:
        _refuse_ptx(kernel)
    target = targets.load_target(options.target, options.calibration, options.gpu)
    target = target if options.stmatrix else target.without("stmatrix")
    work = options.search_budget * WORK_PER_EFFORT // 1000
    search = SearchState(Budget(work, tried=_show_interval))
    return KernelState(file.source, options, target, kernel, kernel, search, file.mistakes, file.is_checked_only)


def _refuse_ptx(kernel: Kernel) -> None:
    """Raise `inline-ptx-refused` at the first statement with inline PTX, if there is one."""
    for stmt in tile.walk_statements(kernel.body):
        if any(isinstance(e, tile.Ptx) for expr in list_expressions(stmt) for e in tile.walk_expr(expr)):
            raise_error("inline-ptx-refused", "the kernel has T.ptx, which --no-inline-ptx forbids", stmt.span, "here")


def _show_interval(interval: int) -> None:
    progress.report_detail(f"interval {interval}")


def _get_compute_capability(options: CompileOptions) -> tuple[int, int]:
    """Return the target's compute capability as (major, minor): (9, 0) for sm_90a."""
    target = targets.load_target(options.target, options.calibration)
    number = int("".join(c for c in target.ptx_target if c.isdecimal()))
    return number // 10, number % 10


def _read_stored_kernel(source: SourceFile, options: CompileOptions) -> Kernel:
    """Return the kernel in a file of tile IR; raise an error for each violation in it, or for a -D option."""
    from tilec.ir.read import read_kernel
    from tilec.ir.tile_verify.verify import tile_violations
    from tilec.ops.form import find_violations

    if options.defines:
        name = options.defines[0][0]
        raise_error("unknown-define", f"{name} cannot be defined: tile IR has no constants to override")
    kernel = read_kernel(source.text)
    # Operations can only be checked once their regions and expressions are valid.
    mistakes = ErrorCollector()
    for find in (tile_violations, find_violations):
        for span, fault in find(kernel):
            mistakes.add(CompileError(Diagnostic("bad-tile-ir", f"this tile IR does not verify: {fault}", Label(span))))
        mistakes.end()
    return kernel
