"""What the page of `tilec report --html` shows beside the traces: warnings, predictions, and the code side by side.

A place in the code is a file, counted from 1 as `.file` lines do, and a line: `1:28`. `.loc` lines in PTX and the
comments of the disassembler say where instructions come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.ptx.assemble import assemble
from tilec.ptx.assembler_level import assembler_level
from tilec.ptx.disassemble import PACKAGE, disassembled, disassembler
from tilec.support.render import render
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.driver.build import Library
    from tilec.passes.cost.report import Report
    from tilec.ptx.assemble import EntryReport
    from tilec.support.diagnostics import Diagnostic
    from tilec.support.options import CompileOptions

_LOC = re.compile(r"\s*\.loc (\d+) (\d+) \d+")
_LINE_INFO = re.compile(r'\s*//## File "(.*)", line (\d+)')
_MANIFEST = re.compile(r"(\.visible \.global .* __tilec_manifest_\w+\[\d+\] = )\{.*\};")

Placed = tuple[str | None, str]
"""A line of code with the place that it comes from."""


def page_data(
    source: SourceFile,
    options: CompileOptions,
    library: Library,
    reports: Sequence[Report],
    found: Sequence[Diagnostic],
) -> dict[str, Any]:
    """About one kernel file, compiled for one target. `found` is what there was to warn about. The file has its name in
    place of its path: where it lies is nobody's business."""
    named = SourceFile(Path(source.path).name, source.text, imported=source.imported)
    entries = {entry.name: entry for entry in library.entries}
    return {
        "file": named.path,
        "target": options.target,
        "optimisation_level": options.opt_level,
        "warnings": [{"severity": each.severity, "text": render(each, named).plain} for each in found],
        "predictions": [_prediction(said, entries[said.kernel]) for said in reports],
        "code": _code(named, library, options),
    }


def _prediction(said: Report, entry: EntryReport) -> dict[str, Any]:
    """Times in cycles, of which there are `clock_mhz` in a microsecond."""
    return {
        "kernel": said.kernel,
        "clock_mhz": said.clock_mhz,
        "blocks": said.ctas,
        "is_one_wave": said.is_one_wave,
        "predicted": said.cycles_at(said.by_levels),
        "by_schedules": said.cycles_at(said.by_schedule),
        "compute": said.cycles_at(replace(said.limits, memory=0)),
        "dram": said.dram,
        "roofline": said.cycles_at(said.limits),
        "limit": said.limit,
        "bound": said.bound,
        "waves": said.by_levels.waves,
        "together": said.together,
        "fits": [{"name": name, "blocks": blocks} for name, blocks in said.fits],
        "registers": entry.registers,
        "spilled_bytes": entry.spill_store_bytes,
        "reloaded_bytes": entry.spill_load_bytes,
        "levels": [
            {
                "line": loop.line,
                "level": time.level.name,
                "latency": time.level.latency,
                "transfer": time.level.transfer,
                "use": time.use,
                "iterations": time.level.trip_count,
                "stages": time.level.stages,
                "cycles": time.cycles,
                "bound": time.bound,
            }
            for loop in said.loops
            for time in loop.levels
        ],
    }


# ---- the code --------------------------------------------------------------------------------------------------------


def _code(source: SourceFile, library: Library, options: CompileOptions) -> dict[str, Any]:
    """The lines of the kernel's files; PTX and machine code in runs of lines that come from one place. Without a
    disassembler `sass` is null, and `package` is what has one."""
    files = {source.path: source, **source.imported}
    sass = None
    if disassembler() is not None:
        target = library.plans[0].target.ptx_target
        level = assembler_level(library.ptx, options.opt_level, options.assembler_level)
        sass = disassembled(assemble(library.ptx, target, opt_level=level, line_info=True).cubin)
    return {
        "files": [{"name": name, "lines": list(file.lines)} for name, file in files.items()],
        "ptx": _runs(_ptx_lines(library.ptx)),
        "sass": None if sass is None else _runs(_sass_lines(sass, list(files))),
        "package": PACKAGE,
    }


def _runs(lines: Iterable[Placed]) -> list[dict[str, Any]]:
    return [
        {"at": place, "text": "".join(f"{line}\n" for _, line in run)}
        for place, run in groupby(lines, key=lambda line: line[0])
    ]


def _ptx_lines(ptx: str) -> Iterator[Placed]:
    """Its lines but `.loc`, whose word each has instead. The manifest, data for programs, is left out."""
    place: str | None = None
    for line in ptx.splitlines():
        if found := _LOC.match(line):
            place = f"{found[1]}:{found[2]}" if found[2] != "0" else None
            continue
        if line.startswith((".visible", "}")):
            place = None
        yield place, _MANIFEST.sub(r"\1{…};", line)


def _sass_lines(sass: str, files: Sequence[str]) -> Iterator[Placed]:
    """The instructions and labels of its functions."""
    place: str | None = None
    for line in sass.splitlines():
        if found := _LINE_INFO.match(line):
            place = f"{files.index(found[1]) + 1}:{found[2]}" if found[1] in files else None
            continue
        if line.lstrip().startswith((".section", "//---")):
            place = None
        if line.strip():
            yield place, line.expandtabs().rstrip()
