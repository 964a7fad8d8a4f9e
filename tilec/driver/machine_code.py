"""What the assembler's own schedule makes of scheduled loops: an iteration of one warp, beside the solved interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.sass.cubin import Function, read_functions
from tilec.sass.issue import WarpInterval, WarpWait, measure_loop_interval
from tilec.sass.latencies import Latencies
from tilec.sass.loops import Loop, find_loop_of_ptx, find_loops
from tilec.sass.ptx_loops import PtxLoop, find_ptx_loops, select_kernel_loops
from tilec.support.records import dataclass
from tilec.support.source import SourceFile, Span

if TYPE_CHECKING:
    from tilec.driver.work import Work


@dataclass(frozen=True, slots=True)
class LoopCode:
    """A loop of a kernel as one role's warps run it, or as they do in some of its iterations. `place` is where it
    stands; `role` says whose it is, by what is in it; `code`: its machine code; `interval`: what an iteration takes a
    warp; `ii`: the interval of the schedule; all in cycles."""

    kernel: str
    place: Span
    role: str
    ii: int
    code: Loop
    interval: WarpInterval

    @property
    def excess(self) -> float:
        """What an iteration takes of the scheduled interval: 1.1 is a tenth more."""
        return self.interval.cycles / self.ii


def loop_codes(works: Sequence[Work], ptx: str, cubin: bytes, source: SourceFile) -> tuple[LoopCode, ...]:
    """Of all scheduled loops of the kernels of a cubin, in the order of the kernels and of the PTX. Left out are those
    of which too few iterations are left to tell, and those that have loops inside; all, where an assembler of another
    release writes files in a form that is not known here."""
    if not any(work.loops for work in works):
        return ()
    try:
        code = {function.name: function for function in read_functions(cubin)}
    except ValueError:
        return ()
    found = find_ptx_loops(ptx)
    files = ("", *source.imported)  # as `.file` counts them
    return tuple(
        one
        for work in works
        if work.loops and work.source_kernel.name in code
        for one in _of_kernel(work, code[work.source_kernel.name], found, files)
    )


def judged(codes: Sequence[LoopCode]) -> Iterator[LoopCode]:
    """For each scheduled loop the role that takes longest, by the quickest of the ways in which its iterations run:
    most do nothing that the others do not."""
    by_loop: dict[tuple[str, Span], dict[str, LoopCode]] = {}
    for one in codes:
        roles = by_loop.setdefault((one.kernel, one.place), {})
        known = roles.get(one.role)
        if known is None or one.interval.cycles < known.interval.cycles:
            roles[one.role] = one
    for roles in by_loop.values():
        yield max(roles.values(), key=lambda one: one.interval.cycles)


def waits_by_line(found: WarpInterval) -> list[WarpWait]:
    """Those of an iteration, longest first; several of one line for the same of one line are one."""
    of: dict[tuple[object, ...], WarpWait] = {}
    for wait in found.waits:
        producer = wait.producer
        key = (wait.at.line, wait.at.name, wait.earlier, producer and (producer.line, producer.name))
        known = of.get(key)
        of[key] = wait if known is None else replace(known, cycles=known.cycles + wait.cycles)
    return sorted((wait for wait in of.values() if wait.cycles >= 1), key=lambda wait: -wait.cycles)


def said(wait: WarpWait) -> str:
    """`F2FP waits 605 cycles for LDG of line 30`."""
    if wait.producer is None and wait.at.kind == "barrier":
        return f"{wait.at.name} takes {wait.cycles:,.0f} cycles to pass"
    return f"{wait.at.name} waits {wait.cycles:,.0f} cycles for {_awaited(wait)}"


def _awaited(wait: WarpWait) -> str:
    """What is waited for: `LDG of line 30`."""
    if wait.producer is None:
        return "the tensor cores"
    line = wait.producer.line
    of = f" of line {line[1]}" if line is not None else ""
    when = {0: "", 1: ", an iteration earlier"}.get(wait.earlier, f", {wait.earlier} iterations earlier")
    return f"{wait.producer.name}{of}{when}"


def _of_kernel(work: Work, function: Function, found: Sequence[PtxLoop], files: Sequence[str]) -> Iterator[LoopCode]:
    known = find_loops(function)
    latencies = Latencies(work.target)
    for planned in work.loops:
        place = planned.loop.loop.span
        if place.file not in files:
            continue
        file = 1 + files.index(place.file)
        for each in select_kernel_loops(found, function.name, file, place.line, place.end_line):
            code = find_loop_of_ptx(function, known, each)
            if code is not None:
                ii = planned.solution.schedule.ii
                yield LoopCode(function.name, place, _role(code), ii, code, measure_loop_interval(code, latencies))


def _role(code: Loop) -> str:
    kinds = {one.kind for one in code.body}
    if kinds & {"mma", "wgmma"}:
        return "products"
    return "copies" if "tma" in kinds else "arithmetic"
