"""`tilec report FILE --html`: all that is known of a compiled kernel file as one page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.ptx.assemble import assemble
from tilec.ptx.disassemble import disassembled, disassembler
from tilec.report.html_code import code_parts
from tilec.report.html_loop import loop_heading, loop_parts
from tilec.report.html_page import NO_LOOP, decision_table
from tilec.report.html_parts import document, escaped, section, svg, table
from tilec.support.render import render

if TYPE_CHECKING:
    from tilec.driver.build import Library
    from tilec.passes.cost.report import Report
    from tilec.ptx.assemble import EntryReport
    from tilec.support.diagnostics import Diagnostic
    from tilec.support.options import CompileOptions
    from tilec.support.source import SourceFile


def report_page(
    source: SourceFile,
    options: CompileOptions,
    library: Library,
    reports: Sequence[Report],
    found: Sequence[Diagnostic],
) -> str:
    """The page about one kernel file, compiled for one target. `found` is what there was to warn about."""
    name = Path(source.path).name
    sections: list[tuple[str, str, Iterable[str]]] = [("lints", "Warnings and lints", _lints(found, _named(source)))]
    for number, (plan, said) in enumerate(zip(library.plans, reports, strict=True), 1):
        record = json.loads(plan.trace)["tilec"]
        of, after = (f"{plan.kernel.name}: ", f"-{number}") if len(reports) > 1 else ("", "")
        entry = next(entry for entry in library.entries if entry.name == said.kernel)
        sections += [
            (f"summary{after}", f"{of}Summary", _summary(said, entry)),
            (f"roofline{after}", f"{of}Roofline", _roofline(said)),
            (f"decisions{after}", f"{of}Decisions", [decision_table(record["decisions"])]),
            *((f"loop{after}-{at}", loop_heading(loop), loop_parts(loop)) for at, loop in enumerate(record["loops"])),
        ]
        if rest := [*([] if record["loops"] else [NO_LOOP]), *_beside(record)]:
            sections.append((f"beside{after}", f"{of}{'Roles and stores' if record['loops'] else 'Schedule'}", rest))
    sections.append(("code", "Kernel, PTX and SASS", code_parts(source, library.ptx, _sass(library, options))))
    defines = "".join(f" {key}={value}" for key, value in options.defines)
    about = f"Optimisation level {options.opt_level}, calibration {options.calibration}. Times are cycles."
    return document(
        f"{name} on {options.target}",
        f"Constants changed:{defines}. {about}" if defines else about,
        [section(*one) for one in sections],
        [(anchor, heading.partition(": II ")[0]) for anchor, heading, _ in sections],
    )


def _named(source: SourceFile) -> SourceFile:
    """With its name in place of its path: where the file lies is nobody's business."""
    from tilec.support.source import SourceFile

    return SourceFile(Path(source.path).name, source.text, imported=source.imported)


def _sass(library: Library, options: CompileOptions) -> str | None:
    """The machine code, with the lines that it comes from."""
    if disassembler() is None:
        return None
    target = library.plans[0].target.ptx_target
    return disassembled(assemble(library.ptx, target, opt_level=options.opt_level, line_info=True).cubin)


def _lints(found: Sequence[Diagnostic], source: SourceFile) -> Iterator[str]:
    if not found:
        yield "<p>None.</p>"
    for diagnostic in found:
        text = escaped(render(diagnostic, source).plain)
        yield f'<div class="diagnostic {diagnostic.severity}"><pre tabindex="0">{text}</pre></div>'


def _summary(said: Report, entry: EntryReport) -> Iterator[str]:
    what = "a full wave" if said.is_one_wave else f"{said.ctas:,} block{'s' * (said.ctas != 1)}"
    fits = ", ".join(f"{count:,} by {name}" for name, count in said.fits)
    rows = [
        ("predicted", f"{said.microseconds(said.by_levels.cycles):,.1f} µs for {what}"),
        ("by its schedules", f"{said.microseconds(said.by_schedule.cycles):,.1f} µs"),
        ("bound by", said.bound),
        ("waves", f"{said.by_levels.waves:,}"),
        ("blocks of an SM", f"{said.together} ({fits})"),
        ("registers of a thread", f"{entry.registers:,}"),
        ("spilled", f"{entry.spill_store_bytes:,} bytes, {entry.spill_load_bytes:,} reloaded"),
    ]
    yield table(("what", "value"), rows)
    levels = [
        (loop.line, time.level.name, time.level.latency, time.level.transfer, time.use, time.level.trips,
         time.level.stages, time.cycles, time.bound)
        for loop in said.loops
        for time in loop.levels
    ]  # fmt: skip
    if levels:
        yield "<h3>Levels, in a full wave</h3>"
        yield table(
            ("line", "level", "latency", "transfer", "use", "trips", "stages", "cycles", "bound by"),
            levels,
        )


def _beside(record: dict[str, Any]) -> Iterator[str]:
    """What a kernel that divides its work itself says of it, and what leaves through shared memory."""
    if pipelines := record.get("pipelines"):
        yield "<h3>Pipelines</h3>"
        yield table(
            ("name", "tiles", "stages", "bytes", "total_bytes", "filled by", "taken by"),
            [
                (p["name"], ", ".join(p["tiles"]), p["stages"], p["bytes"], p["total_bytes"],
                 ", ".join(p["producers"]), ", ".join(p["consumers"]))
                for p in pipelines
            ],
        )  # fmt: skip
    for role in record.get("roles", ()):
        last = role["first_warp"] + role["warps"] - 1
        yield f"<h3>{escaped(role['name'])}, warps {role['first_warp']} to {last}</h3>"
        yield table(("line", "statement"), [(s["line"], "· " * s["depth"] + s["name"]) for s in role["statements"]])
    if stores := record["stores"]:
        yield "<h3>Stores through shared memory</h3>"
        facts = ("source", "destination", "chunks", "buffers", "buffer_bytes", "parts")
        yield table(facts, [tuple(store[fact] for fact in facts) for store in stores])


# ---- the roofline ----------------------------------------------------------------------------------------------------

_LEFT, _TOP, _WIDE, _HIGH = 60, 14, 560, 230
_DECADES = 2
"""Powers of ten that the chart shows to each side of the ridge, and below the roof."""


def _roofline(said: Report) -> Iterator[str]:
    time = said.by_levels.cycles
    rows = [
        ("computing, on all SMs", said.compute, f"{said.microseconds(said.compute):,.2f} µs"),
        ("DRAM, each tensor once", said.dram, f"{said.microseconds(said.dram):,.2f} µs"),
        ("roofline", said.roofline, f"{said.microseconds(said.roofline):,.2f} µs, by {said.limit}"),
        ("predicted", time, f"{said.microseconds(time):,.2f} µs, {said.achieved:.0%} of the roofline"),
    ]
    yield table(("what takes at least", "cycles", "time"), rows)
    if said.is_one_wave:
        yield "<p>How many blocks there are is known at launch only: no traffic is counted, and no roofline drawn.</p>"
    elif not said.compute or not said.dram:
        what = "compute" if not said.compute else "move"
        yield f"<p>Nothing to {what} that counts: no roofline is drawn.</p>"
    else:
        yield '<p class="dim">Left of the ridge memory binds, right of it what computes. Both axes are logarithmic.</p>'
        yield _chart(said.compute / said.dram, said.compute / max(time, 1), said.kernel)


def _chart(intensity: float, share: float, kernel: str) -> str:
    """Share of what the machine computes at most, over work for each byte, as multiples of what is just enough."""
    parts = []
    for power in range(-_DECADES, _DECADES + 1):
        x = _across(10.0**power)
        parts.append(f'<line class="mark" x1="{x}" y1="{_TOP}" x2="{x}" y2="{_TOP + _HIGH}"/>')
        parts.append(f'<text class="dim" x="{x}" y="{_TOP + _HIGH + 15}" text-anchor="middle">{10.0**power:g}</text>')
    for power in range(-_DECADES, 1):
        y = _up(10.0**power)
        parts.append(f'<line class="mark" x1="{_LEFT}" y1="{y}" x2="{_LEFT + _WIDE}" y2="{y}"/>')
        parts.append(f'<text class="dim" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{100 * 10.0**power:g} %</text>')
    least, most = 10.0**-_DECADES, 10.0**_DECADES
    corners = ((least, least), (1.0, 1.0), (most, 1.0))
    line = " ".join(f"{_across(x)},{_up(y)}" for x, y in corners)
    parts.append(f'<polyline class="roof" points="{line}"/>')
    about = f"{kernel}: {share:.1%} of what the machine computes, {intensity:.2f} of the ridge's work for a byte"
    x, y = _across(intensity), _up(share)
    parts.append(f'<circle class="point" cx="{x}" cy="{y}" r="5"><title>{escaped(about)}</title></circle>')
    anchor = "end" if x > _LEFT + _WIDE // 2 else "start"
    parts.append(
        f'<text x="{x + (-9 if anchor == "end" else 9)}" y="{y + 4}" text-anchor="{anchor}">{share:.0%}</text>'
    )
    middle = _LEFT + _WIDE // 2
    parts.append(
        f'<text class="dim" x="{middle}" y="{_TOP + _HIGH + 32}" text-anchor="middle">work for a byte, ridge = 1</text>'
    )
    return svg(parts, _LEFT + _WIDE + 20, _TOP + _HIGH + 40, "roofline", "small")


def _across(intensity: float) -> int:
    return _LEFT + round(_WIDE * (_clamped(intensity, _DECADES) + _DECADES) / (2 * _DECADES))


def _up(share: float) -> int:
    return _TOP + round(_HIGH * -_clamped(share, 0) / _DECADES)


def _clamped(value: float, most: int) -> float:
    """The logarithm, as far as the chart goes."""
    return min(max(math.log10(value), -_DECADES), most)
