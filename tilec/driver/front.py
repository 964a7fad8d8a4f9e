"""The front end passes: from kernel text to tile IR with folded constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.driver.observer import Observer
from tilec.driver.work import File, Work
from tilec.support import progress
from tilec.support.diagnostics import CompileError, ErrorCollector, Label, raise_error
from tilec.support.options import STAGES, CompileOptions, Strategy
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel


def parse_file(file: File, observer: Observer) -> File:
    """Parse the file and the files that it imports. A file of tile IR is not parsed here."""
    if file.is_tile_ir:
        return file
    from tilec.frontend.imports import read_imports
    from tilec.frontend.syntax.parse import parse_file
    from tilec.support.recognise import refuse_other_languages

    source, options = file.source, file.options
    folder = Path(options.cache_dir) if options.cache_dir else None
    refuse_other_languages(source.path, source.text)
    tree = parse_file(source, folder)
    imported = read_imports(tree, source, folder)
    if options.tuned_for not in (None, source.digest()):
        raise_error(
            "tuned-for-another",
            f"{source.path} is not the kernel that was tuned, or it has changed since then",
            help="tune it again with tilec tune, or compile it without --tuned",
        )
    return replace(file, tree=tree, imported=imported)


def elaborate_file(file: File, observer: Observer) -> File:
    """Elaborate the file's kernels into tile IR."""
    options = file.options
    if file.is_tile_ir:
        return replace(file, kernels=(begin_work(_read_stored_kernel(file.source, options), file),))
    from tilec.frontend.sema import elaborate as reading

    assert file.tree is not None and file.imported is not None
    given = (file.tree, file.source, dict(options.defines), options.entry, partial(observer.warn, options=options))
    machine = (
        partial(_count_multiprocessors, options),
        options.cluster or (1, 1, 1),
        partial(_get_compute_capability, options),
    )
    if file.is_single:
        return replace(file, kernels=(begin_work(reading.elaborate_entry(*given, file.imported, *machine), file),))
    mistakes = file.mistakes if file.is_checked_only else ErrorCollector()
    kernels = reading.elaborate_all(*given, file.imported, *machine, mistakes, observer.bound)
    if not file.is_checked_only:
        mistakes.end()
    return replace(file, kernels=tuple(begin_work(kernel, file) for kernel in kernels))


def begin_work(kernel: Kernel, file: File) -> Work:
    """Return the initial state of a kernel, with nothing decided yet."""
    from tilec.sched.budget import WORK_PER_EFFORT, Budget
    from tilec.target.table import load_target

    options = file.options
    if options.refuse_inline_ptx:
        _refuse_ptx(kernel)
    target = load_target(options.target, options.calibration, options.gpu)
    target = target if options.stmatrix else target.without("stmatrix")
    budget = Budget(options.search_budget * WORK_PER_EFFORT // 1000, tried=_show_interval)
    return Work(file.source, options, target, budget, kernel, kernel, file.mistakes, file.is_checked_only)


def _refuse_ptx(kernel: Kernel) -> None:
    from tilec.ir import tile
    from tilec.passes.analysis.usage import list_expressions

    for stmt in tile.walk_statements(kernel.body):
        if any(isinstance(e, tile.Ptx) for expr in list_expressions(stmt) for e in tile.walk_expr(expr)):
            raise_error("inline-ptx-refused", "the kernel has T.ptx, which --no-inline-ptx forbids", stmt.span, "here")


def without_cluster(work: Work, observer: Observer) -> Work:
    """Remove the cluster of a kernel that does not refer to it."""
    from tilec.passes.analysis.clusters import remove_cluster

    return replace(work, kernel=remove_cluster(work.kernel))


def _show_interval(interval: int) -> None:
    progress.report_detail(f"interval {interval}")


def consumer_warpgroups(work: Work, observer: Observer) -> Work:
    """Set the number of consumer warpgroups that the command line gives."""
    from tilec.passes.grid.consumer_warpgroups import set_consumer_warpgroups

    assert work.options.consumer_warpgroups is not None
    return replace(work, kernel=set_consumer_warpgroups(work.kernel, work.options.consumer_warpgroups))


def fold_constants(work: Work, observer: Observer) -> Work:
    """Fold constants and simplify integer arithmetic."""
    from tilec.passes.analysis.fold_constants import fold_constants

    kernel = fold_constants(work.kernel)
    return replace(work, kernel=kernel, source_kernel=kernel)


def fast_math(work: Work, observer: Observer) -> Work:
    """Mark the kernel as using approximate functions."""
    kernel = replace(work.kernel, asks=tuple(sorted({*work.kernel.asks, "fast-math"})))
    return replace(work, kernel=kernel, source_kernel=kernel)


def contract_products(work: Work, observer: Observer) -> Work:
    """Fuse products with sums."""
    from tilec.passes.loop.contract_products import contract_products

    kernel = contract_products(work.kernel)
    return replace(work, kernel=kernel, source_kernel=kernel)


def analyse_aliases(work: Work, observer: Observer) -> Work:
    """Show which buffers share storage. Nothing uses it but the dump of -O1."""
    return work


def make_kernel_observers(observer: Observer, kernels: Sequence[Kernel]) -> list[Observer]:
    """Return an observer for each kernel. Several kernels together have no text of a stage that each has by itself."""
    if len(kernels) == 1:
        return [observer]
    if single := [s for s in STAGES[1:-2] if s in observer.keep or s == observer.stop_after]:
        raise_error(
            "ambiguous-entry",
            f"the file has {len(kernels)} kernels, each with its own {single[0]}",
            kernels[0].span,
            "one of them",
            secondary=tuple(Label(k.span, "another") for k in kernels[1:]),
            help="choose with --entry",
        )
    return [observer.of_kernel(kernel.name) for kernel in kernels]


def _count_multiprocessors(options: CompileOptions) -> int:
    from tilec.target import table as targets

    return targets.load_target(options.target, options.calibration, options.gpu).limit("sms")


def _get_compute_capability(options: CompileOptions) -> tuple[int, int]:
    """Return the compute capability: 9 and 0 for sm_90a."""
    from tilec.target import table as targets

    number = int(
        "".join(c for c in targets.load_target(options.target, options.calibration).ptx_target if c.isdecimal())
    )
    return number // 10, number % 10


def _read_stored_kernel(source: SourceFile, options: CompileOptions) -> Kernel:
    """Read a kernel from a file of tile IR."""
    from tilec.ir.read import read_kernel
    from tilec.ir.verify import tile_violations
    from tilec.ops.form import find_violations
    from tilec.support.diagnostics import Diagnostic

    if options.defines:
        raise_error(
            "unknown-define", f"{options.defines[0][0]} cannot be defined: tile IR has no constants to override"
        )
    kernel = read_kernel(source.text)
    # Operations can only be checked once their regions and expressions are valid.
    mistakes = ErrorCollector()
    for find in (tile_violations, find_violations):
        for span, fault in find(kernel):
            mistakes.add(CompileError(Diagnostic("bad-tile-ir", f"this tile IR does not verify: {fault}", Label(span))))
        mistakes.end()
    return kernel


def get_strategy(kernel: Kernel, options: CompileOptions) -> Strategy:
    """Return the command line's pipeline strategy, or else the kernel's."""
    if options.pipeline_strategy == "auto" and "unspecialised" in kernel.asks:
        return "unspecialize"
    return options.pipeline_strategy
