"""assembled-interval: the assembler's own schedule of a loop takes a warp longer than the solved one lets it.

A warp issues in order, and what it waits for it waits for there. Everything else is as fast as it could be: what is
said here is the least.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING

from tilec.driver.lints.registry import ASSEMBLER, lint
from tilec.driver.work import File
from tilec.support.diagnostics import Diagnostic, Label
from tilec.support.source import SourceFile, Span

if TYPE_CHECKING:
    from tilec.driver.machine_code import LoopCode
    from tilec.sass.issue import Wait

MOST = Fraction(11, 10)
"""Of the solved interval. What a schedule rounds up or leaves out, such as the branch back, is less."""

_MOST_NOTES = 3

_HELP = {
    "load": "copy the tile in its own type into shared memory, where it can run ahead, and work on it from there",
    "copy": "let copies run further ahead: a larger num_stages, if shared memory has room for it",
    "wgmma": "give the tensor cores something to do meanwhile: a product that does not need this one's result",
    "barrier": "let an iteration do more, or fewer threads share it: each reduction and rewritten tile is a barrier",
}
_OTHERWISE = "do less in an iteration, or let more threads share it"


@lint(ASSEMBLER, "assembled-interval")
def intervals(file: File) -> Iterator[Diagnostic]:
    """A few milliseconds for a GEMM: the machine code is there anyway."""
    if not any(work.loops for work in file.kernels):
        return
    from tilec.driver.machine_code import judged, loop_codes

    for one in judged(loop_codes(file.kernels, file.ptx, file.cubin.cubin, file.source)):
        if one.excess > MOST:
            yield _warning(one, file.source)


def _warning(one: LoopCode, source: SourceFile) -> Diagnostic:
    from tilec.driver.machine_code import said, waits_by_line

    waits = waits_by_line(one.interval)
    secondary: tuple[Label, ...] = ()
    if waits and (place := _line(waits[0], source)) is not None:
        secondary = (Label(place, f"here {said(waits[0])}"),)
    rest = waits[1:] if secondary else waits
    return Diagnostic(
        "assembled-interval",
        f"an iteration takes a warp {one.interval.cycles:,.0f} cycles in machine code, where {one.ii:,} are scheduled",
        Label(one.place.first_line(), f"{one.interval.issue:,.0f} cycles by stall counts alone"),
        secondary,
        tuple(said(wait) + _where(wait) for wait in rest[:_MOST_NOTES]),
        _help(one),
        "warning",
    )


def _line(wait: Wait, source: SourceFile) -> Span | None:
    """The line of the kernel that waits."""
    if wait.at.line is None:
        return None
    file, line = wait.at.line
    names = ("", *source.imported)
    return source.whole_line(line, names[file - 1]) if 0 < file <= len(names) else None


def _where(wait: Wait) -> str:
    return "" if wait.at.line is None else f", at line {wait.at.line[1]}"


def _help(one: LoopCode) -> str:
    """About what costs most: stall counts, where they alone are too much, or what is waited for."""
    costs = {"": one.interval.issue if one.interval.issue > one.ii else 0.0}
    for kind, waits in groupby(sorted(one.interval.waits, key=_kind), _kind):
        costs[kind] = sum(wait.cycles for wait in waits)
    return _HELP.get(max(costs, key=lambda kind: costs[kind]), _OTHERWISE)


def _kind(wait: Wait) -> str:
    return wait.at.kind if wait.producer is None else wait.producer.kind
