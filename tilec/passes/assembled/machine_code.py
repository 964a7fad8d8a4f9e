"""Scheduled loops in machine code: the time of one warp's iteration by the assembler's schedule, beside the solved
II."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.ir.tile import For, walk_statements
from tilec.passes.cost.block_time import BlockCode
from tilec.sass.block_code import add_inner_parts, measure_code_parts
from tilec.sass.cubin import Function, read_functions
from tilec.sass.issue import WarpInterval, WarpWait, measure_loop_interval
from tilec.sass.latencies import Latencies, count_pipe_cycles
from tilec.sass.loops import Loop, PtxLoop, find_loop_of_ptx, find_loops, find_ptx_loops, select_kernel_loops
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.support.source import SourceFile, Span

if TYPE_CHECKING:
    from tilec.passes.state import KernelState


@dataclass(frozen=True, slots=True)
class LoopCode:
    """The machine code of a loop for one role, or for some of its iterations. `place` is the loop in the source; `role`
    names the role by its instructions; `interval` is the time of one warp's iteration, `held` that for which it keeps
    the busiest pipe of its scheduler; `ii` is the schedule's interval. Times are in cycles."""

    kernel: str
    place: Span
    role: str
    ii: int
    code: Loop
    interval: WarpInterval
    held: int

    @property
    def excess(self) -> float:
        """Return the iteration's time divided by the scheduled interval: 1.1 is a tenth more."""
        return self.interval.cycles / self.ii


def find_loop_codes(works: Sequence[KernelState], ptx: str, cubin: bytes, source: SourceFile) -> tuple[LoopCode, ...]:
    """Return the machine code of all scheduled loops, with its time per iteration, in the order of kernels and PTX.

    Loops with too few iterations left are skipped, and the waits of a loop with inner loops are not told. Returns
    nothing where an assembler of another release writes an unknown format.
    """
    if not any(work.loops for work in works):
        return ()
    try:
        code = {function.name: function for function in read_functions(cubin)}
    except ValueError:
        return ()
    found = find_ptx_loops(ptx)
    files = ("", *source.imported)  # as `.file` counts them
    compiled = ((work, code.get(work.source_kernel.name)) for work in works if work.loops)
    return tuple(
        one for work, of in compiled if of is not None for one in _find_kernel_loop_codes(work, of, found, files)
    )


def find_block_code(work: KernelState, ptx: str, cubin: bytes) -> BlockCode | None:
    """Return the machine code of a warp outside of scheduled loops; None where the warps of a kernel are not all alike,
    or where an assembler of another release writes an unknown format."""
    if work.assignment.roles or work.assignment.form == "warp_specialised":
        return None
    try:
        code = next((each for each in read_functions(cubin) if each.name == work.source_kernel.name), None)
    except ValueError:
        return None
    if code is None:
        return None
    found = [loop for loop in find_ptx_loops(ptx) if loop.entry == code.name]
    scheduled = {IdentityKey(planned.loop.loop) for planned in work.loops}
    files = ("", *work.source.imported)
    known: dict[int, For] = {}
    own: set[int] = set()
    for loop in walk_statements(work.assignment.kernel.body):
        if isinstance(loop, For) and loop.span.file in files:
            file = 1 + files.index(loop.span.file)
            for each in select_kernel_loops(found, code.name, file, loop.span.line, loop.span.end_line):
                if IdentityKey(loop) in scheduled:
                    own |= {one.last for one in found if one == each or each.holds(one)}
                else:
                    known.setdefault(each.last, loop)
    parts = [part for part in measure_code_parts(code, Latencies(work.target)) if part.ptx_line not in own]
    by_loop = add_inner_parts(parts, found, known)
    around = by_loop.pop(None)
    loops = tuple((known[line], part.cycles, part.held) for line, part in by_loop.items() if line is not None)
    is_straight = not (work.loops or find_loops(code))
    return BlockCode(around.cycles, around.held, loops, is_straight)


def select_slowest_roles(codes: Sequence[LoopCode]) -> Iterator[LoopCode]:
    """Yield the slowest role of each scheduled loop, each role by its fastest variant of the code.

    Most iterations run that variant.
    """
    by_loop: dict[tuple[str, Span], dict[str, LoopCode]] = {}
    for one in codes:
        roles = by_loop.setdefault((one.kernel, one.place), {})
        known = roles.get(one.role)
        if known is None or one.interval.cycles < known.interval.cycles:
            roles[one.role] = one
    for roles in by_loop.values():
        yield max(roles.values(), key=lambda one: one.interval.cycles)


def merge_waits_by_line(found: WarpInterval) -> list[WarpWait]:
    """Return an iteration's waits of at least a cycle, longest first, merged by waiting line and producer line."""
    merged: dict[tuple[object, ...], WarpWait] = {}
    for wait in found.waits:
        producer = wait.producer
        key = (wait.at.line, wait.at.name, wait.earlier, producer and (producer.line, producer.name))
        known = merged.get(key)
        merged[key] = wait if known is None else replace(known, cycles=known.cycles + wait.cycles)
    return sorted((wait for wait in merged.values() if wait.cycles >= 1), key=lambda wait: -wait.cycles)


def describe_wait(wait: WarpWait) -> str:
    """Return a wait as text, such as `F2FP waits 605 cycles for LDG of line 30`."""
    if wait.producer is None and wait.at.kind == "barrier":
        return f"{wait.at.name} takes {wait.cycles:,.0f} cycles"
    return f"{wait.at.name} waits {wait.cycles:,.0f} cycles for {_describe_producer(wait)}"


def _describe_producer(wait: WarpWait) -> str:
    """Return the producer of a wait as text, such as `LDG of line 30`."""
    if wait.producer is None:
        return "the tensor cores"
    line = wait.producer.line
    place = f" of line {line[1]}" if line is not None else ""
    when = {0: "", 1: ", an iteration earlier"}.get(wait.earlier, f", {wait.earlier} iterations earlier")
    return f"{wait.producer.name}{place}{when}"


def _find_kernel_loop_codes(
    work: KernelState, function: Function, found: Sequence[PtxLoop], files: Sequence[str]
) -> Iterator[LoopCode]:
    """Yield the machine code of each scheduled loop of one kernel that is found in its function."""
    known = find_loops(function)
    latencies = Latencies(work.target)
    for planned in work.loops:
        place = planned.loop.loop.span
        if place.file not in files:
            continue
        file = 1 + files.index(place.file)
        for each in select_kernel_loops(found, function.name, file, place.line, place.end_line):
            code = find_loop_of_ptx(function, known, each)
            if code is None:
                continue
            if code.inner:
                parts = add_inner_parts(measure_code_parts(function, latencies, code), found, (each.last,))
                whole = parts[None].add(parts[each.last], 1)
                interval, held = WarpInterval(whole.stalls, whole.cycles, ()), whole.held
            else:
                interval = measure_loop_interval(code, latencies)
                held = count_pipe_cycles(code.body, latencies.float_cycles()) / code.unrolled
            ii = planned.solution.schedule.ii
            yield LoopCode(function.name, place, _name_role(code), ii, code, interval, round(held))


def _name_role(code: Loop) -> str:
    """Return `products`, `copies` or `arithmetic`: what a loop's role does, judged by its instructions."""
    kinds = {one.kind for one in code.body}
    if kinds & {"mma", "wgmma"}:
        return "products"
    return "copies" if "tma" in kinds else "arithmetic"
