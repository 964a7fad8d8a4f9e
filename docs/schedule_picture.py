"""Draws the solved schedule of a loop, of which a schedule trace has the record, as an SVG.

Time goes from left to right, from the first cycle of the first iteration on. A row shows when the warps of a role
issue, or when a unit of the machine is held, and a colour is an iteration: what is in one column runs at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tilec.simulate.text import UNIT_NAMES

_WIDTH, _LEFT, _ROW, _TOP = 960, 176, 20, 44
_STEADY_INTERVALS = 2
"""So many are drawn after those in which the pipeline fills."""
_MOST_INTERVALS = 8
_COLOURS = 4
_LEAST_HELD = 5
"""In percent of the interval: a unit that is held for less has no row."""
_MOST_UNITS = 5
_MOST_LOADS = 4
"""So many have rows of their own."""
_WIDTH_OF_A_LETTER = 6.5

_NAMES = {**UNIT_NAMES, "tc_and_mma": "tensor cores"}

_STYLE = (
    "svg{font:11px system-ui,sans-serif}text{fill:#1b1f24}.d{fill:#59616a}.m{stroke:#c3cad2}"
    ".i0{fill:#2f6fde}.i1{fill:#c98a12}.i2{fill:#2a9d62}.i3{fill:#9a4fc4}.n{fill:#fff;font-size:10px}.o{opacity:.55}"
    "@media(prefers-color-scheme:dark){text{fill:#e4e8ed}.d{fill:#a0a9b3}.m{stroke:#49515b}"
    ".i0{fill:#6ea1ff}.i1{fill:#e5b44f}.i2{fill:#5ccb92}.i3{fill:#c58be6}.n{fill:#111}}"
)


@dataclass(frozen=True)
class Piece:
    """A time, in cycles of the first iteration, in which something is held. `name` stands in it where there is room."""

    start: int
    end: int
    name: str = ""


@dataclass(frozen=True)
class Row:
    title: str
    pieces: tuple[Piece, ...]
    overlaps: bool = False
    """Whether pieces of two iterations may lie over one another, so that they must be seen through."""


def draw_schedule(loop: Mapping[str, Any], kernel: str) -> str:
    """Return the SVG of a member of `tilec.loops` of a trace. It needs nothing else."""
    interval, stages = int(loop["ii"]), int(loop["stages"])
    intervals = min(stages + _STEADY_INTERVALS, _MOST_INTERVALS)
    rows = _rows(loop)
    scale = (_WIDTH - _LEFT) / (intervals * interval)
    bottom = _TOP + len(rows) * _ROW
    label = f"{kernel}: {intervals} iterations, one every {interval:,} cycles, {stages} stage{'s' * (stages != 1)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 30}" role="img" '
        f'aria-label="{escape(label)}">',
        f"<style>{_STYLE}</style>",
        f'<text y="14" font-weight="600">{escape(label)}</text>',
    ]
    for number in range(intervals + 1):
        x = _LEFT + round(number * interval * scale)
        anchor = "end" if number == intervals else "middle" if number else "start"
        parts.append(f'<path class="m" d="M{min(x, _WIDTH - 1)} {_TOP - 4}V{bottom}"/>')
        parts.append(f'<text class="d" x="{x}" y="{_TOP - 10}" text-anchor="{anchor}">{number * interval:,}</text>')
    for number, row in enumerate(rows):
        y = _TOP + number * _ROW
        parts.append(f'<text y="{y + 14}">{escape(row.title)}</text>')
        for iteration in range(intervals):
            parts += _draw_iteration(row, iteration, iteration * interval, scale, y)
    for number in range(min(intervals, _COLOURS)):
        x = 150 * number
        parts.append(f'<rect class="i{number}" x="{x}" y="{bottom + 13}" width="10" height="10"/>')
        same = ", ".join(str(one) for one in range(number, intervals, _COLOURS))
        parts.append(f'<text x="{x + 15}" y="{bottom + 22}">iteration {same}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rows(loop: Mapping[str, Any]) -> list[Row]:
    """Return the loads of the loop, from issue to arrival, the roles in the order of their first statements, and the
    units that are held longest."""
    ops: Sequence[Mapping[str, Any]] = loop["ops"]
    filled = {op for ring in loop["rings"] for op in ring["producers"]}
    loads = [(op["name"], Piece(op["start"], op["start"] + op["latency"])) for op in ops if op["id"] in filled]
    rows = [Row(name, (piece,), overlaps=True) for name, piece in loads]
    if len(loads) > _MOST_LOADS:
        rows = [Row("loads on their way", tuple(piece for _, piece in loads), overlaps=True)]
    for role in dict.fromkeys(op["role"] for op in ops):
        mine = (op for op in ops if op["role"] == role and op["issue"])
        pieces = (Piece(op["start"], op["start"] + op["issue"], op["name"]) for op in mine)
        rows.append(Row("all warps" if role == "all" else role, tuple(pieces)))
    held = {
        slot["name"]: slot["percent"]
        for slot in loop["slots"]
        if slot["percent"] >= _LEAST_HELD and not slot["name"].startswith("issue (")
    }
    for unit in sorted(held, key=lambda name: -held[name])[:_MOST_UNITS]:
        rows.append(Row(f"{_NAMES.get(unit, unit)}, {held[unit]}%", tuple(_held(ops, unit, int(loop["ii"])))))
    return rows


def _held(ops: Sequence[Mapping[str, Any]], unit: str, interval: int) -> Iterator[Piece]:
    """Yield when the first iteration holds a unit; a trace says it modulo the interval."""
    for op in ops:
        for use in op["rows"]:
            if use["slot"] == unit:
                start = op["start"] + (use["rows"][0][0] - op["phase"]) % interval
                yield Piece(start, start + sum(end - first for first, end in use["rows"]))


def _draw_iteration(row: Row, iteration: int, after: int, scale: float, y: int) -> Iterator[str]:
    """Yield one path with all pieces of an iteration, and the names for which there is room."""
    drawn: list[tuple[int, int]] = []
    names = []
    for piece in sorted(row.pieces, key=lambda piece: piece.start):
        left = _LEFT + round((piece.start + after) * scale)
        right = min(max(_LEFT + round((piece.end + after) * scale), left + 1), _WIDTH)
        if left >= _WIDTH:
            continue
        if drawn and left <= drawn[-1][1]:
            drawn[-1] = drawn[-1][0], max(right, drawn[-1][1])
        else:
            drawn.append((left, right))
            if name := _fitting(piece.name, right - left - 4):
                names.append(f'<text class="n" x="{left + 3}" y="{y + 13}">{escape(name)}</text>')
    if drawn:
        path = "".join(f"M{left} {y + 2}h{right - left}v16h-{right - left}z" for left, right in drawn)
        yield f'<path class="i{iteration % _COLOURS}{" o" * row.overlaps}" d="{path}"/>'
    yield from names


def _fitting(name: str, width: int) -> str:
    """Return as many words of a name as there is room for."""
    words = name.split()
    while words and len(" ".join(words)) * _WIDTH_OF_A_LETTER > width:
        words.pop()
    return " ".join(words)
