"""A trial of the tuner: one variant of a kernel is predicted, or compiled and perhaps measured. Trials run in processes
of their own, here or on other machines."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilec.driver import batch, build as driver
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.support.source import SourceFile
from tilec.tune.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel file and the options to compile it with. `is_measured`: time it on the GPU of the machine that tries it.
    `seconds`: end the process after so long (None: no limit)."""

    path: str
    text: str
    options: CompileOptions
    is_measured: bool = False
    seconds: float | None = None

    def source(self) -> SourceFile:
        """Return a new source file of the variant, because compiling records its imports in it."""
        return SourceFile(self.path, self.text)


def predict_variant(variant: Variant) -> int | str:
    """Return the model's cycles of a variant, before anything is solved, or its first error as text."""
    from tilec.passes.cost.estimate import estimate_cycles

    try:
        with _limit_seconds(variant.seconds):
            return estimate_cycles(*driver.assign_kernel_layouts(variant.source(), variant.options))
    except CompileError as error:
        return format_first_error(error)
    except Exception as bug:  # in one variant of many: the search goes on without it
        return f"internal error: {type(bug).__name__}: {bug}"


def try_variant(variant: Variant) -> Outcome:
    """Return the outcome of compiling, and perhaps measuring, a variant; a refusal for any error."""
    try:
        with _limit_seconds(variant.seconds):
            return _compile_and_measure(variant)
    except Exception as bug:  # in one variant of many: the search goes on without it
        return Outcome(refusal=f"internal error: {type(bug).__name__}: {bug}")


@contextmanager
def _limit_seconds(seconds: float | None) -> Iterator[None]:
    """End the process if the block takes longer than this; None: no limit.

    Only that ends code that hangs outside of Python. The engine then reports the trial as lost.
    """
    if seconds is None:
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _compile_and_measure(variant: Variant) -> Outcome:
    """Compile a variant, time it on the GPU if that is wanted, and return the outcome, or a refusal for errors."""
    made = batch.compile_job(batch.CompileJob(variant.source(), variant.options, keep=("cubin",), report=True))
    if made.failed:
        return Outcome(refusal=format_first_error(CompileError(*made.diagnostics)))
    (report,), (entry,) = made.reports, made.entries
    milliseconds, gpu = None, ""
    if variant.is_measured:
        from tilec.tune.measure import measure_cubin

        try:
            milliseconds, gpu = measure_cubin(made.texts["cubin"])
        except RuntimeError as fault:
            return Outcome(refusal=f"on the GPU: {fault}")
    by_levels, by_schedule = map(report.scale_to_clock, (report.by_levels, report.by_schedule))
    intervals = tuple(loop.ii for loop in report.loops if loop.ii is not None)
    spilled_bytes = entry.spill_store_bytes + entry.spill_load_bytes
    return Outcome("", by_levels, by_schedule, intervals, entry.registers, spilled_bytes, milliseconds, gpu)


def format_first_error(error: CompileError) -> str:
    """Return the first diagnostic of an error on one line, with its place and code."""
    first = error.diagnostics[0]
    place = "" if first.primary is None else f"{first.primary.span.place}: "
    return f"{place}{first.title} [{first.code}]"
