"""Scheduled loops in machine code: the time of one warp's iteration by the assembler's schedule, beside the solved
II."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.sass.cubin import Function, functions
from tilec.sass.issue import Interval, Wait, interval
from tilec.sass.latencies import Latencies
from tilec.sass.loops import Loop, loop_of, loops
from tilec.sass.ptx_loops import PtxLoop, loops_of, ptx_loops
from tilec.support.records import dataclass
from tilec.support.source import SourceFile, Span

if TYPE_CHECKING:
    from tilec.driver.work import Work


@dataclass(frozen=True, slots=True)
class LoopCode:
    """The machine code of a loop for one role, or for some of its iterations. `place` is the loop in the source; `role`
    names the role by its instructions; `interval` is the time of one warp's iteration; `ii` is the schedule's interval.
    Times are in cycles."""

    kernel: str
    place: Span
    role: str
    ii: int
    code: Loop
    interval: Interval

    @property
    def excess(self) -> float:
        """Return the iteration's time relative to the scheduled interval: 1.1 is a tenth more."""
        return self.interval.cycles / self.ii


def loop_codes(works: Sequence[Work], ptx: str, cubin: bytes, source: SourceFile) -> tuple[LoopCode, ...]:
    """Return the machine code of all scheduled loops, in the order of kernels and of the PTX. Loops with inner loops,
    or with too few iterations left, are skipped. Returns nothing where an assembler of another release writes an
    unknown format."""
    if not any(work.loops for work in works):
        return ()
    try:
        code = {function.name: function for function in functions(cubin)}
    except ValueError:
        return ()
    found = ptx_loops(ptx)
    files = ("", *source.imported)  # as `.file` counts them
    return tuple(
        one
        for work in works
        if work.loops and work.source_kernel.name in code
        for one in _of_kernel(work, code[work.source_kernel.name], found, files)
    )


def judged(codes: Sequence[LoopCode]) -> Iterator[LoopCode]:
    """Yield the slowest role of each scheduled loop, each role by its fastest variant. Most iterations run that
    variant."""
    by_loop: dict[tuple[str, Span], dict[str, LoopCode]] = {}
    for one in codes:
        roles = by_loop.setdefault((one.kernel, one.place), {})
        known = roles.get(one.role)
        if known is None or one.interval.cycles < known.interval.cycles:
            roles[one.role] = one
    for roles in by_loop.values():
        yield max(roles.values(), key=lambda one: one.interval.cycles)


def waits_by_line(found: Interval) -> list[Wait]:
    """Return the waits of an iteration, longest first, merged by waiting line and producer line."""
    merged: dict[tuple[object, ...], Wait] = {}
    for wait in found.waits:
        producer = wait.producer
        key = (wait.at.line, wait.at.name, wait.earlier, producer and (producer.line, producer.name))
        known = merged.get(key)
        merged[key] = wait if known is None else replace(known, cycles=known.cycles + wait.cycles)
    return sorted((wait for wait in merged.values() if wait.cycles >= 1), key=lambda wait: -wait.cycles)


def said(wait: Wait) -> str:
    """Describe a wait, as `F2FP waits 605 cycles for LDG of line 30`."""
    if wait.producer is None and wait.at.kind == "barrier":
        return f"{wait.at.name} takes {wait.cycles:,.0f} cycles to pass"
    return f"{wait.at.name} waits {wait.cycles:,.0f} cycles for {_awaited(wait)}"


def _awaited(wait: Wait) -> str:
    """Describe the producer of a wait, as `LDG of line 30`."""
    if wait.producer is None:
        return "the tensor cores"
    line = wait.producer.line
    place = f" of line {line[1]}" if line is not None else ""
    when = {0: "", 1: ", an iteration earlier"}.get(wait.earlier, f", {wait.earlier} iterations earlier")
    return f"{wait.producer.name}{place}{when}"


def _of_kernel(work: Work, function: Function, found: Sequence[PtxLoop], files: Sequence[str]) -> Iterator[LoopCode]:
    known = loops(function)
    latencies = Latencies(work.target)
    for planned in work.loops:
        place = planned.loop.loop.span
        if place.file not in files:
            continue
        file = 1 + files.index(place.file)
        for each in loops_of(found, function.name, file, place.line, place.end_line):
            code = loop_of(function, known, each)
            if code is not None:
                ii = planned.solution.schedule.ii
                yield LoopCode(function.name, place, _role(code), ii, code, interval(code, latencies))


def _role(code: Loop) -> str:
    kinds = {one.kind for one in code.body}
    if kinds & {"mma", "wgmma"}:
        return "products"
    return "copies" if "tma" in kinds else "arithmetic"
