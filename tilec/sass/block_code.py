"""Computes how long one warp takes from the start of a function to its end, by the loops in it: the cycles outside of
all loops, and those of an iteration of each.

A branch forward counts as not taken unless it always is: of two ways the one that comes first in the code counts. Waits
for barriers, mbarriers and bulk copies do not, as in `issue`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tilec.sass.cubin import Function
from tilec.sass.instruction import Instruction
from tilec.sass.issue import WarpReplay, build_steps, sum_stalls
from tilec.sass.latencies import Latencies, count_pipe_cycles
from tilec.sass.loops import Loop, PtxLoop, find_loops
from tilec.support.records import dataclass

_REPLAYED_ITERATIONS = 3
"""Iterations of a loop that are replayed; the others take as long as these do in the mean."""


@dataclass(frozen=True, slots=True)
class CodePart:
    """The code of a loop without the loops in it, or of a function outside of all loops. Of a warp's iteration of the
    PTX loop that ends in `ptx_line` (None: of the function): the `cycles`, those of stall counts alone, and those for
    which it keeps the busiest pipe of its scheduler (`held`)."""

    ptx_line: int | None
    cycles: float = 0.0
    stalls: float = 0.0
    held: float = 0.0

    def add(self, other: CodePart, times: int) -> CodePart:
        """Return this part with the other one in it, `times` over."""
        cycles, stalls, held = (times * each for each in (other.cycles, other.stalls, other.held))
        return CodePart(self.ptx_line, self.cycles + cycles, self.stalls + stalls, self.held + held)


def measure_code_parts(function: Function, latencies: Latencies, whole: Loop | None = None) -> list[CodePart]:
    """Return the parts of a function's code: what is outside of all loops, and its loops in the order of their heads;
    or those of one iteration of the loop `whole` of it."""
    code, loops = function.instructions, find_loops(function)
    if whole is not None:
        code = tuple(one for one in code if whole.first <= one.address <= whole.last)
        loops = tuple(each for each in loops if whole.first <= each.first and each.last <= whole.last and each != whole)
    parts, runs = _replay_parts(code, loops, latencies)
    lines = [*(loop.ptx_line for loop in loops), None]
    found = []
    for number in range(-1, len(loops)):
        if times := runs[number]:
            cycles, issued = parts[number]
            held = count_pipe_cycles(issued, latencies.float_cycles())
            found.append(CodePart(lines[number], cycles / times, sum_stalls(issued) / times, held / times))
    return found


def _replay_parts(
    code: Sequence[Instruction], loops: Sequence[Loop], latencies: Latencies
) -> tuple[list[tuple[float, list[Instruction]]], list[int]]:
    """Return for each loop, and last for what is outside of all, the cycles and instructions that a warp spends there
    without inner loops, and the number of PTX iterations in which."""
    at = {one.address: number for number, one in enumerate(code)}
    heads = {at[loop.first]: number for number, loop in enumerate(loops)}
    ends = {at[loop.last]: number for number, loop in enumerate(loops)}
    owner = _find_innermost_loops(code, at, loops)
    warp, left = WarpReplay(latencies), [0] * len(loops)
    cycles, runs = [0.0] * (len(loops) + 1), [0] * len(loops) + [1]
    issued: list[list[Instruction]] = [[] for _ in cycles]
    number = 0
    while number < len(code):
        one, before = code[number], warp.now
        if (entered := heads.get(number)) is not None:
            left[entered] = left[entered] or _REPLAYED_ITERATIONS
            runs[entered] += 1 if loops[entered].inner else loops[entered].unrolled
        for step in build_steps((one,), latencies):
            warp.issue(step)
        cycles[owner[number]] += warp.now - before
        issued[owner[number]].append(one)
        if one.name in ("EXIT", "RET") and not one.guard:
            break
        ended = ends.get(number)
        if ended is not None:
            left[ended] -= 1
        if ended is not None and left[ended] > 0:
            number = at[loops[ended].first]
        else:
            onward = at.get(one.target, 0) if one.target is not None and not one.guard else 0
            number = max(onward, number + 1)
    return list(zip(cycles, issued, strict=True)), runs


def _find_innermost_loops(code: Sequence[Instruction], at: dict[int, int], loops: Sequence[Loop]) -> list[int]:
    """Return for each instruction the number of the innermost loop around it, -1 outside of all."""
    owner = [-1] * len(code)
    for number, loop in enumerate(loops):  # outer ones come first
        first, behind = at[loop.first], at[loop.last] + 1
        owner[first:behind] = [number] * (behind - first)
    return owner


def add_inner_parts(
    parts: Iterable[CodePart], loops: Iterable[PtxLoop], kept: Collection[int] = ()
) -> dict[int | None, CodePart]:
    """Return the parts of the PTX loops that end in the lines `kept`, and of the whole (None), each with the parts of
    all other loops in it, as often as these run by the PTX."""
    by_end = {loop.last: loop for loop in loops}
    found: dict[int | None, CodePart] = {None: CodePart(None), **{line: CodePart(line) for line in kept}}
    for part in parts:
        line, times = part.ptx_line, 1
        while line is not None and line not in found:
            loop = by_end.get(line)
            times *= loop.trip_count or 1 if loop is not None else 1
            outside = [each for each in by_end.values() if loop is not None and each.holds(loop)]
            line = min(outside, key=lambda each: each.last - each.first).last if outside else None
        found[line] = found[line].add(part, times)
    return found
