"""Draws predicted against measured times of workloads as an SVG, from what `benchmarks/regret.py --json` has written.

    python docs/model_picture.py benchmarks/results/…/predicted.json > docs/pictures/model.svg

Both axes are logarithmic. A point on the diagonal is predicted exactly; the lines beside it are 10 % away.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

SIZE, LEFT, TOP, LEGEND = 460, 64, 28, 190
NEAR = 0.10
"""The error of the lines beside the diagonal."""
CLASSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("samples/flash_attention.tl", "samples/attention/")),
    ("products", ("samples/gemm.tl", "samples/gemm", "samples/alcop/", "benchmarks/kernels/", "samples/models/conv2d",
                  "samples/models/warp_specialised_gemm")),
    ("recurrent models", ("samples/models/",)),
    ("rows and elements", ("",)),
)  # fmt: skip
"""The classes of workloads, each with the beginnings of its kernels' paths; the first that fits counts."""
_STYLE = (
    "svg{font:11px system-ui,sans-serif}text{fill:#1b1f24}.d{fill:#59616a}.m{stroke:#c3cad2;fill:none}"
    ".c0{fill:#2f6fde}.c1{fill:#c98a12}.c2{fill:#9a4fc4}.c3{fill:#2a9d62}"
    "@media(prefers-color-scheme:dark){text{fill:#e4e8ed}.d{fill:#a0a9b3}.m{stroke:#49515b}"
    ".c0{fill:#6ea1ff}.c1{fill:#e5b44f}.c2{fill:#c58be6}.c3{fill:#5ccb92}}"
)


@dataclass(frozen=True)
class Point:
    """A workload: the number of its class, and its measured and predicted microseconds."""

    name: str
    number: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Return predicted over measured time, minus 1."""
        return self.predicted / self.measured - 1


def read_points(workloads: Iterable[Mapping[str, Any]]) -> Iterator[Point]:
    """Yield the workloads that were measured with the decisions that the compiler takes today."""
    for one in workloads:
        decided = one["decided"]
        if decided is not None and decided["predicted"] is not None:
            number = next(n for n, (_, begins) in enumerate(CLASSES) if one["kernel"].startswith(begins))
            yield Point(one["name"], number, decided["measured"], decided["predicted"])


def count_errors(points: Sequence[Point]) -> Iterator[tuple[str, int, float, float, Point]]:
    """Yield each class with its number of workloads, the mean error with and without its sign, and its worst one."""
    for number, (name, _) in enumerate(CLASSES):
        own = [point for point in points if point.number == number]
        if own:
            errors = [point.error for point in own]
            yield name, len(own), mean(errors), mean(map(abs, errors)), max(own, key=lambda point: abs(point.error))


def draw_points(points: Sequence[Point]) -> str:
    """Return the SVG."""
    least = math.floor(math.log10(min(min(p.measured, p.predicted) for p in points)))
    most = math.ceil(math.log10(max(max(p.measured, p.predicted) for p in points)))

    def place(value: float) -> float:
        return SIZE * (math.log10(value) - least) / (most - least)

    def position(point: Point) -> str:
        return f'cx="{LEFT + place(point.measured):.1f}" cy="{TOP + SIZE - place(point.predicted):.1f}"'

    label = f"Predicted against measured time of {len(points)} workloads"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + SIZE + LEGEND} {TOP + SIZE + 44}" role="img" '
        f'aria-label="{escape(label)}">',
        f"<style>{_STYLE}</style>",
        f'<text x="{LEFT}" y="16" font-weight="600">{escape(label)}</text>',
    ]
    for power in range(least, most + 1):
        x, y = LEFT + place(10**power), TOP + SIZE - place(10**power)
        parts.append(f'<path class="m" d="M{x:.1f} {TOP}V{TOP + SIZE}M{LEFT} {y:.1f}H{LEFT + SIZE}"/>')
        parts.append(f'<text class="d" x="{x:.1f}" y="{TOP + SIZE + 16}" text-anchor="middle">{10**power:,}</text>')
        parts.append(f'<text class="d" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    for factor, dash in ((1.0, ""), (1 + NEAR, ' stroke-dasharray="3 3"'), (1 - NEAR, ' stroke-dasharray="3 3"')):
        shift = SIZE * math.log10(factor) / (most - least)
        first, last = max(0.0, -shift), SIZE - max(0.0, shift)
        parts.append(
            f'<path class="m"{dash} d="M{LEFT + first:.1f} {TOP + SIZE - first - shift:.1f}'
            f'L{LEFT + last:.1f} {TOP + SIZE - last - shift:.1f}"/>'
        )
    for point in points:
        title = (
            f"{point.name}: {point.measured:,.0f} µs measured, {point.predicted:,.0f} predicted ({point.error:+.0%})"
        )
        circle = f'<circle class="c{point.number}" {position(point)} r="3.5"><title>{escape(title)}</title></circle>'
        parts.append(circle)
    parts.append(f'<text x="{LEFT + SIZE / 2}" y="{TOP + SIZE + 36}" text-anchor="middle">measured, µs</text>')
    middle = TOP + SIZE / 2
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">predicted, µs</text>'
    )
    for row, (name, count, _, size, _) in enumerate(count_errors(points)):
        number = [title for title, _ in CLASSES].index(name)
        y = TOP + 20 * row + 8
        parts.append(f'<circle class="c{number}" cx="{LEFT + SIZE + 18}" cy="{y - 4}" r="4"/>')
        parts.append(f'<text x="{LEFT + SIZE + 28}" y="{y}">{escape(name)}: {count}, off by {size:.0%}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    (file,) = sys.argv[1:]
    points = list(read_points(json.loads(Path(file).read_text(encoding="utf-8"))["workloads"]))
    sys.stdout.write(draw_points(points))
    for name, count, signed, size, worst in count_errors(points):
        row = f"| {name} | {count} | {size:.0%} | {signed:+.0%} | {worst.name}: {worst.error:+.0%} |"
        print(row, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
