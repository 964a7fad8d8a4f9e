"""Draws the replay as an SVG, with a row for each unit that is held and for one warp of each warpgroup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from tilec.simulate.grid import Simulation
from tilec.simulate.state import TimelineSlice
from tilec.simulate.text import UNIT_NAMES, group_warps_by_work
from tilec.support.records import dataclass

_WIDTH = 960
_LEFT = 150
_ROW = 18
_TOP = 46
_MAX_PASSES = 24
"""Passes of a loop up to which the whole replay is drawn; of a longer loop, only a few passes."""
_SHOWN_PASSES = 4
_WARPS_PER_GROUP = 4
_SHORT_LIFE = 0.05
"""Fraction of the longest life of a warp; warps with shorter lives have no row."""
_TICKS = 6

_KINDS = {
    "tensor cores": ("tensor", "waits for the tensor cores"),
    "mbarrier": ("mbarrier", "for an mbarrier"),
    "barrier": ("barrier", "for a named barrier"),
    "memory": ("memory", "for memory"),
    "other": ("other", "for a result, a pipe or the scheduler"),
}
"""The CSS class and the legend text of a wait, by the beginning of its cause."""

_STYLE = """
svg { font: 11px system-ui, sans-serif; }
text { fill: #1b1f24; } .dim { fill: #59616a; } .mark { stroke: #d7dce2; }
.unit { fill: #87919c; } .tensor { fill: #2f6fde; } .mbarrier { fill: #c98a12; } .barrier { fill: #9a4fc4; }
.memory { fill: #1f9aa8; }
.other { fill: #c84848; } .issue { fill: #2a9d62; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e8ed; } .dim { fill: #a0a9b3; } .mark { stroke: #343a42; }
.unit { fill: #8b96a3; } .tensor { fill: #6ea1ff; } .mbarrier { fill: #e5b44f; } .barrier { fill: #c58be6; }
.memory { fill: #5cc8d4; }
.other { fill: #f08080; } .issue { fill: #5ccb92; } }
"""


@dataclass(frozen=True, slots=True)
class PictureRow:
    """A line of the picture: its title, the class of its background, and pieces (start, end, CSS class)."""

    title: str
    background: str
    pieces: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class CycleWindow:
    """The cycles that are drawn, and the passes of the innermost loop that begin in them."""

    start: float
    end: float
    passes: tuple[float, ...]

    @property
    def cycles(self) -> float:
        """Return the number of cycles in the window."""
        return self.end - self.start


def choose_window(found: Simulation) -> CycleWindow:
    """Return the window of the first cluster of a short replay, else of a few passes in the middle of its most frequent
    loop."""
    marks = max(found.first.marks.values(), key=len, default=[])
    if len(marks) <= _MAX_PASSES:
        return CycleWindow(0.0, found.first.ends[0], tuple(marks))
    middle = len(marks) // 2
    passes = tuple(marks[middle : middle + _SHOWN_PASSES + 1])
    return CycleWindow(passes[0], passes[-1], passes)


def build_rows(found: Simulation, shown: CycleWindow) -> list[PictureRow]:
    """Return the picture's rows of the first multiprocessor: each unit, then one warp in four of each role, but no
    short-lived ones."""
    by_track: dict[str, list[TimelineSlice]] = {}
    for each in found.first.slices:
        if each.sm == 0 and each.end > shown.start and each.start < shown.end:
            by_track.setdefault(each.track, []).append(each)
    narrowest = shown.cycles / (_WIDTH - _LEFT) / 2
    made = [
        PictureRow(
            UNIT_NAMES.get(track, track),
            "",
            _merge_pieces([(s.start, s.end, "unit") for s in slices], shown, narrowest),
        )
        for track, slices in sorted(by_track.items())
        if not track.startswith("warp ")
    ]
    longest = max(found.first.lifetime.values(), default=0.0)
    for _, warps in group_warps_by_work(found):
        lasting = [warp for warp in warps if found.first.lifetime.get(warp, 0.0) >= _SHORT_LIFE * longest]
        for warp in lasting[::_WARPS_PER_GROUP]:
            waits = [(s.start, s.end, _classify_cause(s.name)) for s in by_track.get(f"warp {warp}", ())]
            made.append(PictureRow(f"warp {warp}", "issue", _merge_pieces(waits, shown, narrowest)))
    return made


def _classify_cause(cause: str) -> str:
    """Return the CSS class of a wait by its cause, "other" by default."""
    beginning = next((each for each in _KINDS if cause.startswith(each)), None)
    if beginning is not None:
        return _KINDS[beginning][0]
    is_memory = any(word in cause for word in ("memory", "DRAM", "L2", "copies", "loads"))
    return "memory" if is_memory else "other"


def _merge_pieces(
    pieces: Iterable[tuple[float, float, str]], shown: CycleWindow, narrowest: float
) -> tuple[tuple[float, float, str], ...]:
    """Return the pieces inside the window, in order; those of one class with no visible gap between them are merged."""
    made: list[tuple[float, float, str]] = []
    for start, end, kind in sorted(pieces):
        start, end = max(start, shown.start), min(end, shown.end)
        if made and made[-1][2] == kind and start - made[-1][1] <= narrowest:
            made[-1] = made[-1][0], max(end, made[-1][1]), kind
        elif end > start:
            made.append((start, end, kind))
    return tuple(made)


def draw_picture(found: Simulation, name: str) -> str:
    """Return a self-contained SVG of the replay of one multiprocessor. Cycles run from left to right; thin lines mark
    passes of the innermost loop."""
    shown = choose_window(found)
    lines = build_rows(found, shown)
    height = _TOP + len(lines) * _ROW + 56
    label = f"{name}: cycles {shown.start:,.0f} to {shown.end:,.0f} of the replay of one multiprocessor"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}">',
        f"<style>{_STYLE}</style>",
        f'<text x="0" y="14" font-weight="600">{escape(label)}</text>',
    ]
    bottom = _TOP + len(lines) * _ROW
    parts += (f'<path class="mark" d="M{_map_to_x(at, shown):.1f} {_TOP - 4}V{bottom}"/>' for at in shown.passes)
    for number in range(_TICKS + 1):
        at = shown.start + shown.cycles * number / _TICKS
        anchor = "end" if number == _TICKS else "middle" if number else "start"
        x = _map_to_x(at, shown)
        parts.append(f'<text class="dim" x="{x:.1f}" y="{_TOP - 10}" text-anchor="{anchor}">{at:,.0f}</text>')
    for number, row in enumerate(lines):
        parts += _draw_row(row, _TOP + number * _ROW, shown)
    parts += _draw_legend(lines, bottom + 24)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _map_to_x(at: float, shown: CycleWindow) -> float:
    """Return the horizontal position of a cycle in the picture."""
    return _LEFT + (at - shown.start) / max(shown.cycles, 1.0) * (_WIDTH - _LEFT)


def _draw_row(row: PictureRow, y: int, shown: CycleWindow) -> Iterator[str]:
    """Yield the SVG elements of a row at height `y`: title, background and pieces."""
    yield f'<text x="0" y="{y + 12}">{escape(row.title)}</text>'
    height = _ROW - 4
    if row.background:
        yield f'<rect class="{row.background}" x="{_LEFT}" y="{y + 2}" width="{_WIDTH - _LEFT}" height="{height}"/>'
    for start, end, kind in row.pieces:
        x, width = _map_to_x(start, shown), (end - start) / max(shown.cycles, 1.0) * (_WIDTH - _LEFT)
        yield f'<rect class="{kind}" x="{x:.1f}" y="{y + 2}" width="{max(width, 0.3):.1f}" height="{height}"/>'


def _draw_legend(lines: Sequence[PictureRow], y: int) -> Iterator[str]:
    """Yield the SVG elements of coloured squares and meanings: held unit, running warp, and each class of wait in the
    picture."""
    kinds = {kind for row in lines for *_, kind in row.pieces}
    keys = [("unit", "a unit is held"), ("issue", "a warp runs")]
    keys += [(kind, words) for kind, words in _KINDS.values() if kind in kinds]
    at = [(0, y), (160, y), (320, y), (560, y), (0, y + 18), (160, y + 18), (320, y + 18)]
    for (kind, words), (x, line) in zip(keys, at, strict=False):
        yield f'<rect class="{kind}" x="{x}" y="{line - 9}" width="10" height="10"/>'
        yield f'<text x="{x + 15}" y="{line}">{escape(words)}</text>'
