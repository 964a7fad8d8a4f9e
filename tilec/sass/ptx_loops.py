"""Finds the loops of a PTX text by lines, by which the loops of machine code are identified."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilec.support.records import dataclass

_ENTRY = re.compile(r"\.entry\s+(\w+)")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\b")
_LABEL = re.compile(r"\s*([$\w]+):\s*$")
_WORK_LINE = re.compile(r"(?!\s*(\.loc|mbarrier\.(try|test)_wait|@?!?%\w+ bra|nanosleep|[$\w]+:|//|$))")
"""A line of a loop that does more than wait."""
_BRANCH = re.compile(r"\s*@!?%\w+\s+bra(?:\.uni)?\s+([$\w]+)\s*;")


@dataclass(frozen=True, slots=True)
class PtxLoop:
    """A loop of an entry's PTX, from the label in line `first` to the back branch in line `last`. `lines` are the
    (file, line) of the source that its code comes from, files counted from 1; the last is that of the branch."""

    entry: str
    first: int
    last: int
    lines: tuple[tuple[int, int], ...]

    def holds(self, other: PtxLoop) -> bool:
        return other is not self and self.first <= other.first and other.last <= self.last


def find_ptx_loops(ptx: str) -> tuple[PtxLoop, ...]:
    """Return the loops in the order of their ends, without those that only poll a barrier."""
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
                found.append(PtxLoop(entry, first, number, _locations_in_range(places, first)))
        elif match := _ENTRY.search(text):
            entry = match[1]
            labels.clear()
            places.clear()
    return tuple(found)


def _locations_in_range(locations: list[tuple[int, tuple[int, int]]], first: int) -> tuple[tuple[int, int], ...]:
    """Return the locations of the code from line `first` on. If none follows, the last one before it is still in
    force."""
    next_location = next((i for i, (number, _) in enumerate(locations) if number >= first), len(locations))
    locations_behind = locations[next_location:]
    return tuple(place for _, place in (locations_behind or locations[-1:]))


def select_kernel_loops(found: Iterable[PtxLoop], entry: str, file: int, first: int, last: int) -> tuple[PtxLoop, ...]:
    """Return the PTX loops that implement the kernel loop in lines `first` to `last` of a file. There is one for each
    role and each version of its iterations. Its back branch has the line of the loop if code of the loop itself is
    left, such as its counter; else that of the last statement in it."""
    candidates = [
        loop
        for loop in found
        if loop.entry == entry and loop.lines and all(at == file and first <= n <= last for at, n in loop.lines)
    ]
    exact = [loop for loop in candidates if loop.lines[-1] == (file, first)]
    if exact:
        return tuple(loop for loop in exact if not any(loop.holds(other) for other in exact))
    return tuple(loop for loop in candidates if not any(other.holds(loop) for other in candidates))
