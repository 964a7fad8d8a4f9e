"""Finds the loops of a function and of a PTX text, and how many iterations of the PTX loop one iteration contains.

The assembler may unroll a loop of few iterations completely.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from tilec.sass.cubin import Function
from tilec.sass.instruction import Instruction
from tilec.sass.opcodes import OpcodeKind
from tilec.support.records import dataclass

_ENTRY = re.compile(r"\.entry\s+(\w+)")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\b")
_LABEL = re.compile(r"\s*([$\w]+):\s*$")
_WORK_LINE = re.compile(r"(?!\s*(\.loc|mbarrier\.(try|test)_wait|@?!?%\w+ bra|nanosleep|[$\w]+:|//|$))")
"""A line of a loop that does more than wait."""
_COUNTER = re.compile(
    r"add\.[su]32\s+(?P<counter>%\w+), (?P=counter), (?P<step>[1-9]\d*);\s+"
    r"setp\.lt\.[su]32\s+%\w+, (?P=counter), (?P<bound>-?\d+);"
)
"""The end of a loop that counts up to a constant."""
_CONSTANT_MOVE = re.compile(r"\s*mov\.[bsu]32\s+%\w+, (?P<value>-?\d+);")
_BRANCH = re.compile(r"\s*@!?%\w+\s+bra(?:\.uni)?\s+([$\w]+)\s*;")


@dataclass(frozen=True, slots=True)
class PtxLoop:
    """A loop of an entry's PTX, from the label in line `first` to the back branch in line `last`. `lines` are the
    (file, line) of the source that its code comes from, files counted from 1; the last is that of the branch.
    `trip_count` is known where a counter goes from a constant to a constant."""

    entry: str
    first: int
    last: int
    lines: tuple[tuple[int, int], ...]
    trip_count: int | None = None

    def holds(self, other: PtxLoop) -> bool:
        """Return whether another loop lies inside this one."""
        return other is not self and self.first <= other.first and other.last <= self.last


def find_ptx_loops(ptx: str) -> tuple[PtxLoop, ...]:
    """Return the loops of all entries of a PTX text in the order of their ends, without those that only poll a
    barrier."""
    entry = ""
    labels: dict[str, int] = {}
    places: list[tuple[int, tuple[int, int]]] = []
    found = []
    lines = ptx.split("\n")
    for number, text in enumerate(lines, 1):
        if match := _LOC.match(text):
            if match[2] != "0":
                places.append((number, (int(match[1]), int(match[2]))))
        elif match := _LABEL.match(text):
            labels[match[1]] = number
        elif match := _BRANCH.match(text):
            first = labels.get(match[1])
            if first is not None and any(_WORK_LINE.match(line) for line in lines[first : number - 1]):
                trip_count = _read_trip_count(lines[number - 3 : number - 1], lines[: first - 1])
                found.append(PtxLoop(entry, first, number, _locations_in_range(places, first), trip_count))
        elif match := _ENTRY.search(text):
            entry = match[1]
            labels.clear()
            places.clear()
    return tuple(found)


def _read_trip_count(end: Iterable[str], before: Sequence[str]) -> int | None:
    """Return the iterations of a PTX loop from the two lines at its `end`, if these add a constant to a counter and
    compare it with another constant, and the lines `before` it leave a constant in the counter."""
    match = _COUNTER.search("\n".join(end))
    if match is None:
        return None
    written = re.compile(rf"\s*(?:@!?%\w+\s+)?[\w.]+\s+{re.escape(match['counter'])}, (?P<value>.*);")
    last = next((found for line in reversed(before) if (found := written.match(line))), None)
    start = _CONSTANT_MOVE.match(last[0]) if last is not None else None
    return max(-((int(start["value"]) - int(match["bound"])) // int(match["step"])), 1) if start else None


def _locations_in_range(locations: list[tuple[int, tuple[int, int]]], first: int) -> tuple[tuple[int, int], ...]:
    """Return the source locations of the code from line `first` to the end; if none follows, the last one before."""
    next_location = next((i for i, (number, _) in enumerate(locations) if number >= first), len(locations))
    locations_behind = locations[next_location:]
    return tuple(place for _, place in (locations_behind or locations[-1:]))


def select_kernel_loops(found: Iterable[PtxLoop], entry: str, file: int, first: int, last: int) -> tuple[PtxLoop, ...]:
    """Return an entry's PTX loops of the kernel loop in lines `first` to `last` of a file, one for each role and
    version. Its back branch has the line of the loop if code of the loop itself is left, such as its counter: then the
    innermost such loops count. Else it has that of the last statement in it, and the outermost loops in these lines
    count."""
    of_entry = [loop for loop in found if loop.entry == entry and loop.lines]
    candidates = [loop for loop in of_entry if all(at == file and first <= n <= last for at, n in loop.lines)]
    exact = [loop for loop in of_entry if loop.lines[-1] == (file, first)]
    if exact:
        return tuple(loop for loop in exact if not any(loop.holds(other) for other in exact))
    return tuple(loop for loop in candidates if not any(other.holds(loop) for other in candidates))


COUNTED_KINDS: tuple[OpcodeKind, ...] = (
    "atomic", "copy", "load", "matrix.load", "mma", "shared.load", "shared.store", "store", "tma", "wgmma",
)  # fmt: skip
"""Kinds that the assembler emits exactly as often as the PTX instruction requires."""
_MIN_STRAIGHT_ITERATIONS = 4
"""Copies of a fully unrolled iteration that suffice to measure one."""
_POLLING_KINDS: tuple[OpcodeKind, ...] = ("branch", "mbarrier", "other")


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of machine code. `body` is what a warp runs if only unconditional branches within it are taken.
    `is_straight`: fully unrolled, without a back branch. `unrolled`: iterations of the PTX loop in the body. `inner`:
    number of loops inside."""

    function: str
    body: tuple[Instruction, ...]
    inner: int = 0
    unrolled: int = 1
    is_straight: bool = False

    @property
    def first(self) -> int:
        """Return the address of the loop's head."""
        return self.body[0].address

    @property
    def last(self) -> int:
        """Return the address of the last instruction: the back branch, if there is one."""
        return self.body[-1].address

    @property
    def ptx_line(self) -> int | None:
        """Return the PTX line of the last instruction, None if the cubin records none."""
        return self.body[-1].ptx_line


def find_loops(function: Function) -> tuple[Loop, ...]:
    """Return a function's loops in the order of their heads, outer ones first, without those that only wait for a
    barrier."""
    code = function.instructions
    at = {one.address: number for number, one in enumerate(code)}
    kinds = [one.kind for one in code]
    # A back branch placed after the function's end belongs to the slow path of a wait.
    ends_here = (number for number, kind in enumerate(kinds) if kind == "exit" and not code[number].guard)
    exits = [number for number in ends_here if code[number].name in ("EXIT", "RET")]
    ends: dict[int, int] = {}
    for number in (number for number, kind in enumerate(kinds) if kind == "branch"):
        head = at.get(code[number].target or 0)
        if head is not None and head < number and not any(head <= end < number for end in exits):
            ends[head] = number  # several branches to one head are one loop, and the last one ends it
    spans = [(start, end) for start, end in ends.items() if not _is_polling_loop(kinds[start : end + 1])]
    found = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        body = tuple(_follow_jumps(code, at, start, end))
        inner = sum(start <= first and last <= end and (first, last) != (start, end) for first, last in spans)
        found.append(Loop(function.name, body, inner, _count_unrolled_iterations(body)))
    return tuple(found)


def find_loop_of_ptx(function: Function, known: tuple[Loop, ...], ptx: PtxLoop) -> Loop | None:
    """Return the machine-code loop of a PTX loop, or its straight code if fully unrolled; None if neither can be
    measured. `known` are all loops of the function. Of several, as with a remainder loop, the one with the most
    iterations in its body counts. Straight code with a loop left in it cannot be measured, nor with too few iterations
    to tell them apart."""
    same = [loop for loop in known if loop.ptx_line == ptx.last]
    if same:
        return max(same, key=lambda loop: (loop.unrolled, len(loop.body)))
    code = function.instructions
    code_of_loop = [number for number, one in enumerate(code) if ptx.first <= (one.ptx_line or -1) <= ptx.last]
    if not code_of_loop:
        return None
    first, last = code[code_of_loop[0]].address, code[code_of_loop[-1]].address
    if any(first <= loop.first and loop.last <= last for loop in known):
        return None
    at = {one.address: number for number, one in enumerate(code)}
    body = tuple(_follow_jumps(code, at, code_of_loop[0], code_of_loop[-1]))
    times = _count_unrolled_iterations([one for one in body if ptx.first <= (one.ptx_line or -1) <= ptx.last])
    return Loop(function.name, body, 0, times, is_straight=True) if times >= _MIN_STRAIGHT_ITERATIONS else None


def count_ptx_instructions(body: Iterable[Instruction]) -> Counter[tuple[int, int]]:
    """Return how often a body has each memory access and product, by PTX line and opcode."""
    return Counter((one.ptx_line, one.opcode) for one in body if one.kind in COUNTED_KINDS and one.ptx_line is not None)


def _count_unrolled_iterations(body: Iterable[Instruction]) -> int:
    """Return how many PTX iterations a body holds: the most common count of its accesses and products, else of its
    arithmetic, or 1."""
    body = tuple(body)
    found = count_ptx_instructions(body) or Counter((one.ptx_line, one.opcode) for one in body if one.ptx_line)
    counts = Counter(found.values())
    # Of two equally common counts take the larger: merged instructions have smaller counts.
    return max(counts, key=lambda count: (counts[count], count), default=1)


def _follow_jumps(code: tuple[Instruction, ...], at: dict[int, int], start: int, end: int) -> Iterator[Instruction]:
    """Yield the instructions from index `start` to `end`, without those that unconditional forward branches skip."""
    number = start
    while number <= end:
        one = code[number]
        yield one
        onward = one.target
        if onward is not None and not one.guard and onward in at and number < at[onward] <= end:
            number = at[onward]
        else:
            number += 1


def _is_polling_loop(kinds: Collection[OpcodeKind]) -> bool:
    """Return whether a loop only waits for an mbarrier: one such access or more, and otherwise branches and minor
    kinds."""
    return "mbarrier" in kinds and all(kind in _POLLING_KINDS for kind in kinds)
