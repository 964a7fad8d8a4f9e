"""Collects the data of the `tilec report --html` page besides the traces: warnings, predictions, a verdict in three
lines, and the code side by side.

A place in the code is a file number, counted from 1 as in `.file`, and a line: `1:28`. `.loc` lines in PTX and comments
of the disassembler give the places of instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.passes.cost.model import Prediction
from tilec.passes.cost.report import Report
from tilec.ptx.assemble import assemble_module
from tilec.ptx.assembler_level import choose_assembler_level
from tilec.ptx.disassemble import PACKAGE, disassemble_cubin, find_disassembler
from tilec.ptx.text import quote_text
from tilec.sass.cubin import Function, read_functions
from tilec.support.display import show_share
from tilec.support.render import render_diagnostic
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.driver.build import Library
    from tilec.passes.assembled.machine_code import LoopCode
    from tilec.ptx.assemble import EntryReport
    from tilec.support.diagnostics import Diagnostic
    from tilec.support.options import CompileOptions

_LOC = re.compile(r"\s*\.loc (\d+) (\d+) \d+")
_LINE_INFO = re.compile(r'\s*//## File "(.*)", line (\d+)')
_MANIFEST = re.compile(r"(\.visible \.global .* __tilec_manifest_\w+\[\d+\] = )\{.*\};")
_CODE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/")
_FUNCTION = re.compile(r"\s*\.section\s+\.text\.(\w+),")
_MAX_WAITS = 5

PlacedLine = tuple[str | None, str]
"""A place, or None, and a line of code that comes from it."""


def build_page_data(
    source: SourceFile,
    options: CompileOptions,
    library: Library,
    reports: Sequence[Report],
    codes: Sequence[LoopCode],
    found: Sequence[Diagnostic],
) -> dict[str, Any]:
    """Return the page's data of one kernel file, compiled for one target: warnings, predictions, machine code and code.
    `codes` are its scheduled loops in machine code, `found` the warnings. Only the name of the file is shown, not its
    path."""
    named_source = SourceFile(Path(source.path).name, source.text, imported=source.imported)
    entries = {entry.name: entry for entry in library.entries}
    return {
        "file": named_source.path,
        "target": options.target,
        "optimisation_level": options.opt_level,
        "warnings": [{"severity": d.severity, "text": render_diagnostic(d, named_source).plain} for d in found],
        "predictions": [
            _build_prediction(report, entries[report.kernel], plan.target.limit("sms"))
            for report, plan in zip(reports, library.plans, strict=True)
        ],
        "machine_code": [_build_loop_code(one) for one in codes],
        "code": _build_code(named_source, library, options),
    }


def _build_prediction(report: Report, entry: EntryReport, sms: int) -> dict[str, Any]:
    """Return a kernel's predicted times and what limits them; times are in cycles, `clock_mhz` of them in a
    microsecond."""
    return {
        "kernel": report.kernel,
        "verdict": list(summarise_report(report, entry.spill_store_bytes, sms)),
        "clock_mhz": report.clock_mhz,
        "blocks": report.ctas,
        "counted_blocks": report.counted_blocks + report.assumption,
        "is_one_wave": report.is_one_wave,
        "predicted": report.scale_to_clock(report.predicted),
        "gap": report.gap,
        "is_a_bound": report.is_a_bound,
        "compute": report.scale_to_clock(Prediction(report.compute, 0, 1)),
        "dram": report.dram,
        "roofline": report.scale_to_clock(report.limits),
        "limit": report.limit,
        "bound": report.bound,
        "waves": report.predicted.waves,
        "together": report.together,
        "fits": [{"name": name, "blocks": blocks} for name, blocks in report.fits],
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
            for loop in report.loops
            for time in loop.levels
        ],
    }


def _build_loop_code(one: LoopCode) -> dict[str, Any]:
    """Return a loop's machine-code record: cycles of one warp's iteration, the solved interval, and the longest waits.
    Addresses are in bytes from the start of the kernel."""
    from tilec.passes.assembled.machine_code import describe_wait, merge_waits_by_line

    return {
        "kernel": one.kernel,
        "line": one.place.line,
        "role": one.role,
        "first": one.code.first,
        "last": one.code.last,
        "unrolled": one.code.unrolled,
        "stall_counts": round(one.interval.issue),
        "with_waits": round(one.interval.cycles),
        "solved": one.ii,
        "waits": [describe_wait(wait) for wait in merge_waits_by_line(one.interval)[:_MAX_WAITS]],
    }


# ---- the code --------------------------------------------------------------------------------------------------------


def _build_code(source: SourceFile, library: Library, options: CompileOptions) -> dict[str, Any]:
    """Return the lines of the kernel's files, its PTX and its machine code, the latter two in runs that come from one
    place. Without a disassembler the machine code has no operands, and `package` names the package that provides
    one."""
    files = {source.path: source, **source.imported}
    if find_disassembler() is None:
        cubin, sass = library.cubin, None
    else:
        target = library.plans[0].target.ptx_target
        level = choose_assembler_level(library.ptx, options.opt_level, options.assembler_level)
        cubin = assemble_module(library.ptx, target, opt_level=level, line_info=True).cubin
        sass = disassemble_cubin(cubin)
    code = read_functions(cubin)
    names = [quote_text(name) for name in files]
    lines = _place_decoded_lines(code) if sass is None else _place_sass_lines(sass, names, code)
    return {
        "files": [{"name": name, "lines": list(file.lines)} for name, file in files.items()],
        "ptx": _merge_lines(_place_ptx_lines(library.ptx)),
        "sass": _merge_lines(lines),
        "package": PACKAGE if sass is None else None,
    }


def _merge_lines(lines: Iterable[PlacedLine]) -> list[dict[str, Any]]:
    """Return the lines as runs of neighbours that come from one place, each with its text."""
    runs = groupby(lines, key=lambda line: line[0])
    return [{"at": place, "text": "".join(f"{line}\n" for _, line in run)} for place, run in runs]


def _place_ptx_lines(ptx: str) -> Iterator[PlacedLine]:
    """Yield the PTX lines with the source places that they come from, without `.loc` lines and the manifest's
    content."""
    place: str | None = None
    for line in ptx.splitlines():
        if found := _LOC.match(line):
            place = f"{found[1]}:{found[2]}" if found[2] != "0" else None
            continue
        if line.startswith((".visible", "}")):
            place = None
        yield place, _MANIFEST.sub(r"\1{…};", line)


def _place_sass_lines(sass: str, files: Sequence[str], code: Iterable[Function]) -> Iterator[PlacedLine]:
    """Yield the disassembler's lines, without blank and line-info ones, each with its source place and control word."""
    controls = {(each.name, one.address): str(one.control) for each in code for one in each.instructions}
    place: str | None = None
    function = ""
    for line in sass.splitlines():
        if found := _LINE_INFO.match(line):
            place = f"{files.index(found[1]) + 1}:{found[2]}" if found[1] in files else None
            continue
        if line.lstrip().startswith((".section", "//---")):
            place = None
        if found := _FUNCTION.match(line):
            function = found[1]
        if line.strip():
            text = line.expandtabs().rstrip()
            at = _CODE.match(text)
            control = controls.get((function, int(at[1], 16))) if at is not None else None
            if control is not None and at is not None:
                text = _format_instruction(at[1], control, text[at.end() :].strip())
            yield place, text


def _place_decoded_lines(code: Iterable[Function]) -> Iterator[PlacedLine]:
    """Yield the machine code as tilec decodes it, with the source place of each instruction."""
    for function in code:
        yield None, f"{function.name}:"
        for one in function.instructions:
            place = f"{one.line[0]}:{one.line[1]}" if one.line is not None else None
            target = f" {one.target:#06x}" if one.target is not None else ""
            yield place, _format_instruction(f"{one.address:04x}", str(one.control), f"{one}{target} ;")


def _format_instruction(address: str, control: str, instruction: str) -> str:
    """Return a line of machine code: address, control word and instruction."""
    return f"/*{address}*/  {control}  {instruction}"


def summarise_report(report: Report, spilled_bytes: int, sms: int) -> tuple[str, str, str]:
    """Return three sentences: the predicted time, what binds it, and one piece of advice."""
    kernel = f"{report.kernel} on {report.machine}{report.assumption}"
    first = f"{report.at(report.predicted):,.1f} µs predicted for {report.counted_blocks} of {kernel}."
    near = f"{show_share(report.achieved)} of the roofline's rate"
    if report.is_a_bound:
        near = "the prediction is the roofline itself"
    second = f"Bound by {report.bound}; {near if report.roofline else 'no roofline is known'}."
    return first, second, f"Advice: {_choose_advice(report, spilled_bytes, sms)}."


def _choose_advice(report: Report, spilled_bytes: int, sms: int) -> str:
    """Return one piece of advice: about spilled registers if there are any, else by what binds the kernel's predicted
    time."""
    if spilled_bytes:
        return "registers are spilled to memory: use a smaller tile, or more threads"
    if report.bound == "DRAM bandwidth":
        return "move fewer bytes, with narrower types or by fusing kernels; no schedule helps"
    if report.ctas < sms and not report.is_one_wave:
        return f"{report.ctas:,} of {sms} multiprocessors have a block: use smaller tiles, or split the longest loop"
    if report.bound == "L2 bandwidth" or report.bound.startswith("bandwidth of"):
        return "use larger tiles, which load fewer bytes for each product, or a cluster with multicast"
    if report.bound.startswith("latency of"):
        return "raise num_stages, or use a smaller tile, so that more blocks fit on a multiprocessor"
    if report.bound.startswith("statements outside"):
        return "put the loads and their uses into a T.Pipelined loop"
    if report.bound.startswith("statements around"):
        return "give each block more iterations, or make the kernel persistent"
    if report.achieved >= 0.8:
        return "the model sees little to gain; measure it"
    return "try other tiles and options: tilec tune"
