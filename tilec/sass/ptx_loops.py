"""The loops of PTX text, as lines of it: by these the loops of machine code are known again."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilec.support.records import dataclass

_ENTRY = re.compile(r"\.entry\s+(\w+)")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\b")
_LABEL = re.compile(r"\s*([$\w]+):\s*$")
_WORK = re.compile(r"(?!\s*(\.loc|mbarrier\.(try|test)_wait|@?!?%\w+ bra|nanosleep|[$\w]+:|//|$))")
"""What does something in a loop beside waiting."""
_BRANCH = re.compile(r"\s*@!?%\w+\s+bra(?:\.uni)?\s+([$\w]+)\s*;")


@dataclass(frozen=True, slots=True)
class PtxLoop:
    """The lines from `first`, a label, to `last`, the branch back to it, of an entry. `lines` are those of the source,
    each with its file, counted from 1, that the code in it comes from; that of the branch is the last."""

    entry: str
    first: int
    last: int
    lines: tuple[tuple[int, int], ...]

    def holds(self, other: PtxLoop) -> bool:
        return other is not self and self.first <= other.first and other.last <= self.last


def ptx_loops(ptx: str) -> tuple[PtxLoop, ...]:
    """In the order of their ends; waits for a barrier, which poll, are left out."""
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
            if first is not None and any(_WORK.match(line) for line in lines[first : number - 1]):
                found.append(PtxLoop(entry, first, number, _within(places, first)))
        elif match := _ENTRY.search(text):
            entry = match[1]
            labels.clear()
            places.clear()
    return tuple(found)


def _within(places: list[tuple[int, tuple[int, int]]], first: int) -> tuple[tuple[int, int], ...]:
    """The last that stands before `first`, which is still in force there unless another one follows at once, and all
    behind it."""
    behind = next((i for i, (number, _) in enumerate(places) if number >= first), len(places))
    inside = places[behind:]
    return tuple(place for _, place in (inside or places[-1:]))


def loops_of(found: Iterable[PtxLoop], entry: str, file: int, first: int, last: int) -> tuple[PtxLoop, ...]:
    """Those that run a loop of the kernel, which stands in lines `first` to `last` of a file: one for each role and
    each way in which its iterations differ. The branch back has the line of the loop where something of the loop itself
    is left, such as its counter; else that of the last statement in it."""
    inside = [
        loop
        for loop in found
        if loop.entry == entry and loop.lines and all(at == file and first <= n <= last for at, n in loop.lines)
    ]
    exact = [loop for loop in inside if loop.lines[-1] == (file, first)]
    if exact:
        return tuple(loop for loop in exact if not any(loop.holds(other) for other in exact))
    return tuple(loop for loop in inside if not any(other.holds(loop) for other in inside))
