"""assembled-interval: warps of a loop wait for operations that the schedule assumes to overlap with it.

A warp issues in order, by the assembler's own schedule, and each wait stalls it. The estimate is a lower bound, as
everything else counts as ideal. An iteration that merely has more instructions than scheduled is no flaw of the kernel:
`tilec report` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from tilec.driver.lints.registry import ASSEMBLER, register_lint
from tilec.ir.tile import walk_statements
from tilec.ops.copies.copy import Copy
from tilec.passes.state import FileState, KernelState
from tilec.support.diagnostics import Diagnostic, Label
from tilec.support.source import SourceFile, Span

if TYPE_CHECKING:
    from tilec.driver.machine_code import LoopCode
    from tilec.sass.issue import WarpInterval, WarpWait
    from tilec.sass.opcodes import OpcodeKind

MAX_INTERVAL_RATIO = Fraction(11, 10)
"""Relative to the solved interval. What a schedule rounds up or leaves out, such as the branch back, is less."""

_MAX_NOTES = 3

_HELP: dict[OpcodeKind, str] = {
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
    """Yield a warning for each loop whose waits exceed its schedule. Takes a few milliseconds for a GEMM."""
    if not any(work.loops for work in file.kernels):
        return
    from tilec.driver.machine_code import find_loop_codes, select_slowest_roles

    for one in select_slowest_roles(find_loop_codes(file.kernels, file.ptx, file.cubin.cubin, file.source)):
        waited = _sum_waits_by_kind(one.interval)
        if one.excess > MAX_INTERVAL_RATIO and sum(waited.values()) > (MAX_INTERVAL_RATIO - 1) * one.ii:
            kind = max(waited, key=lambda kind: waited[kind])
            copied = _copied_tensor(one, file.kernels) if kind == "load" else None
            yield _warn_of_slow_loop(one, _HELP[kind] if copied is None else _ROWS.format(copied), file.source)


def _copied_tensor(one: LoopCode, works: Sequence[KernelState]) -> str | None:
    """Return the tensor whose load is waited for longest, if a copy in its own type loads it through registers."""
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
    """Warn that an iteration takes more cycles in machine code than scheduled, with the waits that cost most."""
    from tilec.driver.machine_code import describe_wait, merge_waits_by_line

    waits = merge_waits_by_line(one.interval)
    secondary: tuple[Label, ...] = ()
    if waits and (place := _find_waiting_line(waits[0], source)) is not None:
        secondary = (Label(place, f"here {describe_wait(waits[0])}"),)
    rest = waits[1:] if secondary else waits
    return Diagnostic(
        "assembled-interval",
        f"one iteration takes a warp {one.interval.cycles:,.0f} cycles in machine code; the schedule has {one.ii:,}",
        Label(one.place.first_line(), f"{one.interval.issue:,.0f} cycles by stall counts alone"),
        secondary,
        tuple(describe_wait(wait) + _describe_line(wait) for wait in rest[:_MAX_NOTES]),
        help,
        "warning",
    )


def _find_waiting_line(wait: WarpWait, source: SourceFile) -> Span | None:
    """Return the kernel's line of the waiting instruction."""
    if wait.at.line is None:
        return None
    file, line = wait.at.line
    names = ("", *source.imported)
    return source.whole_line(line, names[file - 1]) if 0 < file <= len(names) else None


def _describe_line(wait: WarpWait) -> str:
    return "" if wait.at.line is None else f", at line {wait.at.line[1]}"


def _sum_waits_by_kind(found: WarpInterval) -> dict[OpcodeKind, float]:
    """Return the wait cycles of an iteration by the kind of instruction that is waited for."""
    waited: dict[OpcodeKind, float] = dict.fromkeys(_HELP, 0.0)
    for wait in found.waits:
        if wait.producer is not None and wait.producer.kind in waited:
            waited[wait.producer.kind] += wait.cycles
    return waited
