"""Compiles several kernel files for several targets, in processes of their own where that is asked for."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tilec import driver, files
from tilec.diag import CompileError, Diagnostic
from tilec.manifest import Manifest
from tilec.observer import Observer, Stopped
from tilec.options import CompileOptions, Stage
from tilec.ptx.assemble import EntryReport
from tilec.records import dataclass
from tilec.source import SourceFile

if TYPE_CHECKING:
    from tilec.tune.report import Report


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel file for one target: the stages to `keep`, where to stop (None: nowhere), and whether the model is to
    say how long the kernels take."""

    source: SourceFile
    options: CompileOptions
    keep: tuple[Stage, ...] = ()
    stop_after: Stage | None = None
    dump_dir: str | None = None
    only_check: bool = False
    report: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a job: the texts of the stages that were kept, how to launch what is in the cubin, what there was to
    say (the errors, if it `failed`), and the source with the files that it imports."""

    source: SourceFile
    texts: dict[Stage, bytes]
    manifests: tuple[Manifest, ...]
    entries: tuple[EntryReport, ...]
    diagnostics: tuple[Diagnostic, ...]
    seconds: tuple[tuple[Stage, float], ...]
    failed: bool
    reports: tuple[Report, ...] = ()


def compile_all(jobs: Sequence[Job], processes: int = 1) -> Iterator[Made]:
    """What comes of each job, in the order of the jobs. Mistakes in a kernel do not end the others' compilation."""
    if processes <= 1 or len(jobs) <= 1:
        yield from map(carry_out, jobs)
        return
    from concurrent.futures import ProcessPoolExecutor  # slow to import, and a single kernel needs none

    with ProcessPoolExecutor(min(processes, len(jobs)), initializer=_end_at_once) as pool:
        try:
            for made in pool.map(carry_out, jobs):
                for imported in made.source.imported.values():
                    files.note(imported.path)  # it was read in the other process
                yield made
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_at_once() -> None:
    """Ctrl-C reaches every process: only the first has something to say about it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def carry_out(job: Job) -> Made:
    observer = Observer(keep=job.keep, dump_dir=job.dump_dir, stop_after=job.stop_after)
    result: driver.Library | None = None
    errors: tuple[Diagnostic, ...] = ()
    try:
        with suppress(Stopped):
            if job.only_check:
                driver.legal(job.source, job.options, observer)
            else:
                result = driver.build_all(job.source, job.options, observer)
    except CompileError as error:
        errors = error.diagnostics
    return Made(
        source=job.source,
        texts=observer.texts,
        manifests=result.manifests if result is not None else (),
        entries=result.entries if result is not None else (),
        # Warnings of a kernel that is wrong are of no interest yet.
        diagnostics=errors or tuple(observer.warnings),
        seconds=tuple(observer.seconds),
        failed=bool(errors),
        reports=driver.reports(result) if job.report and result is not None else (),
    )
