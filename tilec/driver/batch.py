"""Compile several kernel files for several targets, in worker processes if more than one is allowed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec import __version__
from tilec.driver import build as driver
from tilec.driver.observer import Observer, PipelineStopped
from tilec.ir.manifest import Manifest
from tilec.ptx.assemble import EntryReport
from tilec.support import files, progress, resources
from tilec.support.diagnostics import CompileError, Diagnostic, InternalError, raise_error
from tilec.support.exhaustion import find_exhausted_resource
from tilec.support.options import CompileOptions
from tilec.support.processes import block_terminal_signals, end_with_parent
from tilec.support.records import dataclass
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from tilec.passes.assembled.machine_code import LoopCode
    from tilec.passes.cost.report import Report


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One kernel file for one target. `keep` lists the stages whose texts are returned. `stop_after` is None to compile
    to the end. `report` asks for the model's predictions. `place` is the job's number in progress messages."""

    source: SourceFile
    options: CompileOptions
    keep: tuple[str, ...] = ()
    stop_after: str | None = None
    dump_dir: str | None = None
    only_check: bool = False
    report: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The result of a job: texts of kept stages, launch manifests, diagnostics and the source with its imports.
    `diagnostics` are the errors if it `failed`. `reports` (predictions) and `loop_codes` (machine code) are empty
    unless the job asked for a report."""

    source: SourceFile
    texts: dict[str, bytes]
    manifests: tuple[Manifest, ...]
    entries: tuple[EntryReport, ...]
    diagnostics: tuple[Diagnostic, ...]
    seconds: tuple[tuple[str, float], ...]
    failed: bool
    reports: tuple[Report, ...] = ()
    loop_codes: tuple[LoopCode, ...] = ()


def compile_jobs(jobs: Sequence[CompileJob], processes: int = 1) -> Iterator[CompileResult]:
    """Yield each job's result in order, in up to `processes` processes; a kernel's errors do not stop the others.

    A bug in the compiler does; a note of its exception names the folder with the evidence.
    """
    if len(jobs) > 1:
        jobs = [replace(job, place=f" ({number} of {len(jobs)})") for number, job in enumerate(jobs, 1)]
    if processes <= 1 or len(jobs) <= 1:
        yield from map(_compile_with_evidence, jobs)
        return
    from concurrent.futures import ProcessPoolExecutor  # slow to import, and a single kernel needs none
    from concurrent.futures.process import BrokenProcessPool

    with ProcessPoolExecutor(min(processes, len(jobs)), None, _initialise_worker, (os.getpid(),)) as pool:
        with block_terminal_signals():
            results = pool.map(_compile_with_evidence, jobs)  # starts the processes
        started = list((pool._processes or {}).values())
        try:
            for job, made in zip(jobs, results, strict=True):
                # Files that the worker has read.
                files.record_read(str(resources.target_file(job.options.target)))
                for imported in made.source.imported.values():
                    files.record_read(imported.path)
                yield made
        except BrokenProcessPool:
            if crash := _find_crash_signal(started):
                where = "in the assembler (nvJitLink) or another library"
                raise InternalError(f"a process that compiled crashed with {crash}: {where}") from None
            notes = ("the system kills processes when memory runs out",)
            advice = "compile fewer files at a time, with a smaller -j"
            raise_error("process-ended", "a compiling process was killed", notes=notes, help=advice)
        except BaseException:
            # Running jobs are no longer wanted.
            for process in (pool._processes or {}).values():
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


def _find_crash_signal(processes: Sequence[BaseProcess]) -> str | None:
    """Return the name of the crash signal, such as SIGSEGV, that ended one of the processes, or None."""
    for process in processes:
        process.join(1.0)  # the others are being ended
        if (code := process.exitcode) is not None and -code in _CRASH_SIGNALS:
            return signal.Signals(-code).name
    return None


def _initialise_worker(parent: int) -> None:
    """Set a worker's signals: ignore Ctrl-C, which the parent handles, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(parent)


def _compile_with_evidence(job: CompileJob) -> CompileResult:
    """Compile a job; save traceback and dumps for an internal error, not exhaustion, and note their folder on it."""
    try:
        return compile_job(job)
    except Exception as bug:
        if find_exhausted_resource(bug) is None:
            with suppress(OSError, CompileError):
                bug.add_note(_save_evidence(job, bug))
        raise


def _save_evidence(job: CompileJob, bug: Exception) -> str:
    """Write the traceback and the dump of every pass to a folder, and return it.

    Compiles once more unless the job dumped already.
    """
    import tempfile
    import traceback

    folder = job.dump_dir or tempfile.mkdtemp(prefix="tilec-bug-")
    trace = "".join(traceback.format_exception(bug))
    text = f"tilec {__version__}\n{trace}".encode(errors="replace")
    files.write_all({str(Path(folder) / "traceback.txt"): text})
    if job.dump_dir is None:
        again = replace(job, dump_dir=folder)
        with suppress(Exception):
            _compile_observed(again, Observer(keep=job.keep, dump_dir=folder, stop_after=job.stop_after))
    return folder


def compile_job(job: CompileJob) -> CompileResult:
    """Compile or check one job and return its result, a kernel's errors included; messages name the running pass."""
    name = f"{Path(job.source.path).name} for {resources.target_stem(job.options.target)}{job.place}"
    observer = Observer(keep=job.keep, dump_dir=job.dump_dir, stop_after=job.stop_after, of=name)
    try:
        return _compile_observed(job, observer)
    finally:
        progress.report_activity("")


def _compile_observed(job: CompileJob, observer: Observer) -> CompileResult:
    """Compile or check a job, and return texts, diagnostics and timings; kernel errors are returned, not raised."""
    result: driver.Library | None = None
    errors: tuple[Diagnostic, ...] = ()
    try:
        with suppress(PipelineStopped):
            if job.only_check:
                driver.check_file(job.source, job.options, observer)
            else:
                result = driver.build_library(job.source, job.options, observer)
    except CompileError as error:
        errors = error.diagnostics
    # An erroneous kernel shows its errors only.
    shown, seconds, failed = errors or tuple(observer.warnings), tuple(observer.seconds), bool(errors)
    if result is None:
        return CompileResult(job.source, observer.texts, (), (), shown, seconds, failed)
    made = CompileResult(job.source, observer.texts, result.manifests, result.entries, shown, seconds, failed)
    if not job.report:
        return made
    codes = driver.find_library_loop_codes(result)
    return replace(made, reports=driver.build_reports(result, codes=codes), loop_codes=codes)
