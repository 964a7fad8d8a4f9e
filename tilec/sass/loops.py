"""The loops of a function, and how many iterations of the PTX loop an iteration of one is.

A loop of few iterations may be none any more: the assembler writes them one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from tilec.sass.cubin import Function
from tilec.sass.instruction import Instruction
from tilec.sass.opcodes import Kind
from tilec.sass.ptx_loops import PtxLoop
from tilec.support.records import dataclass

COUNTED: tuple[Kind, ...] = (
    "atomic", "copy", "load", "matrix.load", "mma", "shared.load", "shared.store", "store", "tma", "wgmma",
)  # fmt: skip
"""Instructions of which the assembler makes no more and no less of a PTX instruction than that asks for."""

_LEAST = 4
"""Iterations in a straight line that are enough to tell how long one takes."""

_POLLING: tuple[Kind, ...] = ("branch", "mbarrier", "other")


@dataclass(frozen=True, slots=True)
class Loop:
    """A stretch of instructions. `body` is what a warp runs of it where no branch within it is taken but those that
    always are. `is_straight` says that nothing leads back: all iterations stand in it. `unrolled`: how many iterations
    of the PTX loop stand in it. `inner`: how many loops lie within it."""

    function: str
    body: tuple[Instruction, ...]
    inner: int = 0
    unrolled: int = 1
    is_straight: bool = False

    @property
    def first(self) -> int:
        """Address of its head."""
        return self.body[0].address

    @property
    def last(self) -> int:
        """Address of its last instruction: of the branch back, where there is one."""
        return self.body[-1].address

    @property
    def ptx_line(self) -> int | None:
        """Of the branch back."""
        return self.body[-1].ptx_line


def loops(function: Function) -> tuple[Loop, ...]:
    """In the order of their heads, outer ones first. Those that only wait for a barrier are left out."""
    code = function.instructions
    at = {one.address: number for number, one in enumerate(code)}
    kinds = [one.kind for one in code]
    # What leads back behind an end is a wait's slow path, put out of the way.
    exits = [number for number, kind in enumerate(kinds) if kind == "exit" and _is_end(code[number])]
    ends: dict[int, int] = {}
    for number in (number for number, kind in enumerate(kinds) if kind == "branch"):
        head = at.get(code[number].target or 0)
        if head is not None and head < number and not any(head <= end < number for end in exits):
            ends[head] = number  # several branches to one head are one loop, and the last one ends it
    spans = [(start, end) for start, end in ends.items() if not _polls(kinds[start : end + 1])]
    found = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        body = tuple(_straight(code, at, start, end))
        inner = sum(start <= first and last <= end and (first, last) != (start, end) for first, last in spans)
        found.append(Loop(function.name, body, inner, _times(body)))
    return tuple(found)


def loop_of(function: Function, known: tuple[Loop, ...], ptx: PtxLoop) -> Loop | None:
    """What the assembler made of a loop of the PTX, with all `loops` of the function known: of several, as where one
    runs what is left over, the one with the most iterations. None where it has loops inside, or too few iterations to
    tell one from the other."""
    same = [loop for loop in known if loop.ptx_line == ptx.last]
    if same:
        best = max(same, key=lambda loop: (loop.unrolled, len(loop.body)))
        return None if best.inner else best
    code = function.instructions
    inside = [i for i, one in enumerate(code) if one.ptx_line is not None and ptx.first <= one.ptx_line <= ptx.last]
    if not inside:
        return None
    first, last = code[inside[0]].address, code[inside[-1]].address
    if any(first <= loop.first and loop.last <= last for loop in known):
        return None
    at = {one.address: number for number, one in enumerate(code)}
    body = tuple(_straight(code, at, inside[0], inside[-1]))
    times = _times([one for one in body if one.ptx_line is not None and ptx.first <= one.ptx_line <= ptx.last])
    return Loop(function.name, body, 0, times, is_straight=True) if times >= _LEAST else None


def of_loop(body: Iterable[Instruction]) -> Counter[tuple[int, int]]:
    """How often each memory access and product of the PTX stands in it, by its line there and its opcode."""
    return Counter((one.ptx_line, one.opcode) for one in body if one.kind in COUNTED and one.ptx_line is not None)


def _times(body: Iterable[Instruction]) -> int:
    """How many iterations of the PTX loop stand in it: as many as most accesses and products do. 1 where there are
    none, or no lines."""
    counts = Counter(of_loop(body).values())
    # Of two as common as each other the larger one: what is lost by merging counts less.
    return max(counts, key=lambda count: (counts[count], count), default=1)


def _is_end(one: Instruction) -> bool:
    return one.name in ("EXIT", "RET") and not one.guard


def _straight(code: tuple[Instruction, ...], at: dict[int, int], start: int, end: int) -> Iterator[Instruction]:
    number = start
    while number <= end:
        one = code[number]
        yield one
        onward = one.target
        if onward is not None and not one.guard and onward in at and number < at[onward] <= end:
            number = at[onward]
        else:
            number += 1


def _polls(kinds: Collection[Kind]) -> bool:
    """Whether it is no more than a wait for a barrier."""
    return "mbarrier" in kinds and all(kind in _POLLING for kind in kinds)
