"""register-spill, wgmma-serialised, inserted-wait, setmaxnreg-ignored: remarks in the assembler's log.
assembled-interval: warps of a loop wait for operations that the schedule assumes to overlap with it.
assembled-at-lower-level: the assembler runs below --opt-level, as it would otherwise take minutes.

`.loc` directives map a PTX line to its source line.

A warp issues in order, by the assembler's own schedule, and each wait stalls it. The estimate is a lower bound, as
everything else counts as ideal. An iteration that merely has more instructions than scheduled is no flaw of the kernel:
`tilec report` shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from tilec.driver.lints.registry import ASSEMBLER, register_lint, register_warning
from tilec.ir.tile import walk_statements
from tilec.ops.copies.copy import Copy
from tilec.passes.state import FileState, KernelState
from tilec.ptx.assembler_level import choose_assembler_level, count_consecutive_waits
from tilec.support.diagnostics import Diagnostic, Label
from tilec.support.source import NOWHERE, SourceFile, Span

if TYPE_CHECKING:
    from tilec.passes.assembled.machine_code import LoopCode
    from tilec.ptx.assemble import Remark, RemarkKind
    from tilec.sass.issue import WarpInterval, WarpWait
    from tilec.sass.opcodes import OpcodeKind


_TITLES: dict[RemarkKind, str] = {
    "register-spill": "registers spill to local memory",
    "wgmma-serialised": "the assembler serialises the wgmma instructions",
    "inserted-wait": "the assembler injects waits between wgmma instructions",
    "setmaxnreg-ignored": "the assembler ignores setmaxnreg",
    "assembler-warning": "the assembler warns",
}
_HELP: dict[RemarkKind, str] = {
    "register-spill": "use a smaller tile, or more threads to share it",
    "wgmma-serialised": "use accumulators and operand registers only after the loop, or use a smaller tile",
    "inserted-wait": "move other uses of the accumulator out of the loop, or directly after the product",
    "setmaxnreg-ignored": "use more threads, or --pipeline-strategy unspecialize",
}

_MAX_NOTES = 3


@register_lint(ASSEMBLER, "register-spill", "wgmma-serialised", "inserted-wait", "setmaxnreg-ignored")
def find_assembler_remarks(file: FileState) -> Iterator[Diagnostic]:
    """Yield a warning for each kind and source line of the assembler's remarks about the file."""
    yield from group_remarks(file.cubin.remarks, file.ptx, file.source, file.kernels[0].source_kernel.span)


def group_remarks(remarks: Iterable[Remark], ptx: str, source: SourceFile, kernel: Span) -> list[Diagnostic]:
    """Return one warning per kind and source line of remarks; one without a PTX line is about the whole kernel."""
    lines = ptx.split("\n")
    names = ("", *source.imported)  # as `.file` counts them
    grouped: dict[tuple[RemarkKind, Span], list[Remark]] = {}
    for remark in remarks:
        place = find_source_line(lines, remark.ptx_line) if remark.ptx_line is not None else None
        file, line = place or (1, kernel.line)
        span = source.whole_line(line, names[file - 1]) or NOWHERE
        grouped.setdefault((remark.kind, span), []).append(remark)
    return [_build_warning(kind, span, group, lines) for (kind, span), group in grouped.items()]


def find_source_line(ptx: list[str], line: int) -> tuple[int, int] | None:
    """Return file number and line of the last `.loc` above a PTX line; None if the entry has none above it."""
    for text in reversed(ptx[: min(line, len(ptx))]):
        words = text.split()
        if words[:1] == [".loc"]:
            return (int(words[1]), int(words[2])) if int(words[2]) else None
        if text.startswith(".visible .entry"):
            return None
    return None


def _build_warning(kind: RemarkKind, span: Span, group: list[Remark], ptx: list[str]) -> Diagnostic:
    """Return one warning for remarks of one kind at one place, with the first three of them as notes."""
    notes = []
    for remark in group[:_MAX_NOTES]:
        notes.append(remark.text if remark.code in ("spill", "warning") else f"{remark.code}: {remark.text}")
        if remark.ptx_line is not None and 0 < remark.ptx_line <= len(ptx):
            notes.append(f"PTX line {remark.ptx_line}: {ptx[remark.ptx_line - 1].strip()}")
    if len(group) > _MAX_NOTES:
        notes.append(f"and {len(group) - _MAX_NOTES} more like this")
    primary = None if span == NOWHERE else Label(span)
    return Diagnostic(kind, _TITLES[kind], primary, (), tuple(notes), _HELP.get(kind), "warning")


MAX_INTERVAL_RATIO = Fraction(11, 10)
"""Relative to the solved interval. What a schedule rounds up or leaves out, such as the branch back, is less."""

_MAX_WAIT_NOTES = 3

_WAIT_HELP: dict[OpcodeKind, str] = {
    "load": "copy the tile to shared memory without converting it, so that the copy overlaps the loop; convert it "
    "after",
    "copy": "let copies start earlier: use a larger num_stages, if shared memory has room for it",
    "wgmma": "put a product that does not depend on this one between it and its use",
}
"""By the kind of instruction that is waited for."""

_ROWS = "make the rows of {} a multiple of 16 bytes, known at compile time, so that its copy overlaps the loop"
"""For a tile that is copied in its own type already, by threads: its rows are not known to be aligned."""


@register_lint(ASSEMBLER, "assembled-interval")
def find_long_intervals(file: FileState) -> Iterator[Diagnostic]:
    """Yield a warning for each loop whose machine code waits make an iteration over 10 % longer than scheduled."""
    if not any(work.loops for work in file.kernels):
        return
    from tilec.passes.assembled.machine_code import find_loop_codes, select_slowest_roles

    codes = find_loop_codes(file.kernels, file.ptx, file.cubin.cubin, file.source)
    for one in select_slowest_roles([code for code in codes if not code.code.inner]):
        waited = _sum_waits_by_kind(one.interval)
        if one.excess > MAX_INTERVAL_RATIO and sum(waited.values()) > (MAX_INTERVAL_RATIO - 1) * one.ii:
            kind = max(waited, key=lambda kind: waited[kind])
            copied = _copied_tensor(one, file.kernels) if kind == "load" else None
            yield _warn_of_slow_loop(one, _WAIT_HELP[kind] if copied is None else _ROWS.format(copied), file.source)


def _copied_tensor(one: LoopCode, works: Sequence[KernelState]) -> str | None:
    """Return the tensor whose load costs the longest wait, if threads copy it to a tile of its own type; else None."""
    waits = [wait for wait in one.interval.waits if wait.producer is not None and wait.producer.kind == "load"]
    longest = max(waits, key=lambda wait: wait.cycles)
    place = longest.producer.line if longest.producer is not None else None
    for kernel in (each.kernel for work in works if work.kernel.name == one.kernel for each in work.assignment.kernels):
        for stmt in walk_statements(kernel.body):
            if not isinstance(stmt, Copy) or stmt.via != "registers" or place is None or stmt.span.line != place[1]:
                continue
            source, destination = (region.buffer for region in stmt.regions)
            if (source.scope, destination.scope) == ("global", "shared") and source.dtype == destination.dtype:
                return source.name
    return None


def _warn_of_slow_loop(one: LoopCode, help: str, source: SourceFile) -> Diagnostic:
    """Return the warning that an iteration takes longer in machine code than scheduled, with the costliest waits."""
    from tilec.passes.assembled.machine_code import describe_wait, merge_waits_by_line

    waits = merge_waits_by_line(one.interval)
    secondary: tuple[Label, ...] = ()
    if waits and (place := _find_waiting_line(waits[0], source)) is not None:
        secondary = (Label(place, f"here {describe_wait(waits[0])}"),)
    rest = (waits[1:] if secondary else waits)[:_MAX_WAIT_NOTES]
    lines = ("" if wait.at.line is None else f", at line {wait.at.line[1]}" for wait in rest)
    return Diagnostic(
        "assembled-interval",
        f"one iteration takes a warp {one.interval.cycles:,.0f} cycles in machine code; the schedule has {one.ii:,}",
        Label(one.place.first_line(), f"{one.interval.issue:,.0f} cycles by stall counts alone"),
        secondary,
        tuple(describe_wait(wait) + line for wait, line in zip(rest, lines, strict=True)),
        help,
        "warning",
    )


def _find_waiting_line(wait: WarpWait, source: SourceFile) -> Span | None:
    """Return the kernel's source line of the instruction that waits; None if it has none."""
    if wait.at.line is None:
        return None
    file, line = wait.at.line
    names = ("", *source.imported)
    return source.whole_line(line, names[file - 1]) if 0 < file <= len(names) else None


def _sum_waits_by_kind(found: WarpInterval) -> dict[OpcodeKind, float]:
    """Return an iteration's wait cycles for loads, copies and wgmma, by kind; other waits are left out."""
    waited: dict[OpcodeKind, float] = dict.fromkeys(_WAIT_HELP, 0.0)
    for wait in found.waits:
        if wait.producer is not None and wait.producer.kind in waited:
            waited[wait.producer.kind] += wait.cycles
    return waited


@register_warning(ASSEMBLER)
def find_lower_level(file: FileState) -> Iterator[Diagnostic]:
    """Yield a warning if the assembler, not told its level, runs below --opt-level because that would take minutes.

    It is about the whole file: all of its kernels are assembled at once.
    """
    wanted, forced = file.options.opt_level, file.options.assembler_level
    level = choose_assembler_level(file.ptx, wanted, forced)
    if forced is None and level < wanted:
        title = f"the assembler optimised at -O{level} instead of -O{wanted}, which would take minutes"
        note = f"{count_consecutive_waits(file.ptx)} wgmma products are in straight-line code, each with a wait"
        advice = f"put them in a T.serial loop; or wait, with --assembler-level {wanted}"
        yield Diagnostic("assembled-at-lower-level", title, notes=(note,), help=advice, severity="warning")
