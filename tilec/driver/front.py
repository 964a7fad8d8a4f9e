"""The front end: kernel text to tile IR, and all that can be wrong with a kernel before anything is solved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.driver.observer import Observer
from tilec.support.diagnostics import CompileError, Label, Mistakes, fail
from tilec.support.options import LAST_STAGE, STAGES, CompileOptions, Strategy
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.frontend.syntax import ast as syntax
    from tilec.ir.tile import Kernel


def check(source: SourceFile, options: CompileOptions, observer: Observer) -> Kernel:
    """The front end: kernel text to tile IR, every mistake in the kernel found."""
    from tilec.ir.text import print_kernel

    _insist(observer, options)
    if source.path.endswith(".tile"):
        return observer.saw("tile", _stored(source, options), print_kernel)

    from tilec.frontend.sema.elaborate import elaborate

    module, imported = _parsed(source, options, observer)
    warn, sms = partial(observer.warn, options=options), partial(_multiprocessors, options)
    cluster = options.cluster or (1, 1, 1)
    kernel = elaborate(module, source, dict(options.defines), options.entry, warn, imported, sms, cluster)
    return _folded(kernel, options, observer)


def check_all(source: SourceFile, options: CompileOptions, observer: Observer) -> tuple[Kernel, ...]:
    """The front end, of every kernel of the file or of the one that `options` names."""
    mistakes = Mistakes()
    kernels = read(source, options, observer, mistakes)
    mistakes.end()
    return kernels


def read(source: SourceFile, options: CompileOptions, observer: Observer, mistakes: Mistakes) -> tuple[Kernel, ...]:
    """The same; where something is wrong, what that leaves of the kernels."""
    if source.path.endswith(".tile"):
        return (check(source, options, observer),)

    from tilec.frontend.sema.elaborate import elaborate_all
    from tilec.passes.analysis.fold_constants import fold

    _insist(observer, options)

    module, imported = _parsed(source, options, observer)
    warn, sms = partial(observer.warn, options=options), partial(_multiprocessors, options)
    cluster, defines = options.cluster or (1, 1, 1), dict(options.defines)
    kernels = elaborate_all(
        module, source, defines, options.entry, warn, imported, sms, cluster, mistakes, observer.bound
    )
    if mistakes.met:
        return tuple(fold(kernel) for kernel in kernels)
    observers = apart(observer, kernels)
    return tuple(_folded(kernel, options, seen) for kernel, seen in zip(kernels, observers, strict=True))


def _insist(observer: Observer, options: CompileOptions) -> None:
    """Verify thoroughly where that is asked for; a level that makes no code is there for it."""
    observer.everything |= options.verify or not options.opt_level


def apart(observer: Observer, kernels: tuple[Kernel, ...]) -> list[Observer]:
    """An observer for each kernel. Several together have no text of what only one has."""
    if len(kernels) == 1:
        return [observer]
    if single := [s for s in STAGES[1:-2] if s in observer.keep or s == observer.stop_after]:
        fail(
            "which-entry",
            f"the file has {len(kernels)} kernels, each with its own {single[0]}",
            kernels[0].span,
            "one of them",
            secondary=tuple(Label(k.span, "another") for k in kernels[1:]),
            help="choose with --entry",
        )
    return [observer.of_kernel(kernel.name) for kernel in kernels]


def _multiprocessors(options: CompileOptions) -> int:
    from tilec.target import table as targets

    return targets.load(options.target, options.calibration).limit("sms")


def _parsed(
    source: SourceFile, options: CompileOptions, observer: Observer
) -> tuple[syntax.Module, Mapping[str, syntax.Module]]:
    """The syntax of the file, and of those that it imports."""
    from tilec.frontend.imports import read_imports
    from tilec.frontend.syntax.parse import parse
    from tilec.frontend.syntax.unparse import unparse
    from tilec.support.recognise import check_kernel

    folder = Path(options.cache_dir) if options.cache_dir else None
    check_kernel(source.path, source.text)
    module = parse(source, folder)
    observer.saw("ast", module, unparse)
    imported = read_imports(module, source, folder)
    if options.tuned_for not in (None, source.digest()):
        fail(
            "tuned-for-another",
            f"{source.path} is not the kernel that was tuned, or has changed since",
            help="tune it again with tilec tune, or compile it without --tuned",
        )
    return module, imported


def _folded(kernel: Kernel, options: CompileOptions, observer: Observer) -> Kernel:
    from tilec.ir.text import print_kernel
    from tilec.passes.analysis.fold_constants import fold

    if options.cluster == (1, 1, 1):
        from tilec.passes.analysis.clusters import without_cluster

        kernel = without_cluster(kernel)
    if options.consumers is not None:
        from tilec.passes.grid.consumer_warpgroups import with_consumers

        kernel = with_consumers(kernel, options.consumers)
    return observer.saw("tile", fold(kernel), print_kernel)


def _stored(source: SourceFile, options: CompileOptions) -> Kernel:
    """A kernel that an earlier run has written as tile IR."""
    from tilec.ir.read import read_kernel
    from tilec.ir.verify import tile_violations
    from tilec.ops.form import violations
    from tilec.support.diagnostics import Diagnostic

    if options.defines:
        fail("unknown-define", f"{options.defines[0][0]} cannot be defined: tile IR has no constants left to override")
    kernel = read_kernel(source.text)
    # What an operation needs may only be asked of one whose regions and expressions are whole.
    mistakes = Mistakes()
    for find in (tile_violations, violations):
        for span, said in find(kernel):
            mistakes.add(CompileError(Diagnostic("bad-tile-ir", f"this tile IR does not verify: {said}", Label(span))))
        mistakes.end()
    return kernel


def legal(source: SourceFile, options: CompileOptions, observer: Observer) -> None:
    """All that can be wrong with a kernel before anything is solved: the front end, layouts, and what its pipelines ask
    for, of every kernel. Levels without code end with the front end."""
    mistakes = Mistakes()
    kernels = read(source, options, observer, mistakes)
    if options.opt_level not in LAST_STAGE:
        from tilec.driver.legality import examine
        from tilec.passes.explicit_roles.tensor_sums import with_sums_as_fragments
        from tilec.passes.loop.choose_subtile import as_asked
        from tilec.target import table as targets

        target = targets.load(options.target, options.calibration)
        for kernel in kernels:
            with mistakes.caught():
                kernel, _ = as_asked(with_sums_as_fragments(kernel), options)
            examine(kernel, target, strategy_of(kernel, options), options.switches, mistakes)
    mistakes.end()
    from tilec.passes.analysis.uninitialised import unset

    for found in (odd for kernel in kernels for odd in unset(kernel)):
        observer.warn(found, options)


@contextmanager
def all_mistakes(source: SourceFile, options: CompileOptions) -> Iterator[None]:
    """The way to code ends at the first mistake: then all are looked for."""
    try:
        yield
    except CompileError as first:
        try:
            legal(source, options, Observer())
        except CompileError as found:
            if set(_places(first)) <= set(_places(found)):
                raise found from None
        raise


def _places(error: CompileError) -> list[tuple[str, Label | None]]:
    return [(d.code, d.primary) for d in error.diagnostics]


def strategy_of(kernel: Kernel, options: CompileOptions) -> Strategy:
    """The command line's word counts before the file's."""
    if options.pipeline_strategy == "auto" and "unspecialised" in kernel.asks:
        return "unspecialize"
    return options.pipeline_strategy
