"""Ranks the variants of a kernel by their predicted cycles."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tilec.support.records import dataclass
from tilec.tune.space import Point


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant and its predicted cycles. `again`: an earlier candidate is as fast and differs only in stages."""

    point: Point
    cycles: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Rejection:
    """A variant that cannot be built, and the reason."""

    point: Point
    reason: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """The candidates, best first, and the rejected variants in the order of the space."""

    best: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]


def rank_predictions(predictions: Iterable[tuple[Point, int | str]], stages: Collection[str] = ()) -> Ranking:
    """Return the points ranked by predicted cycles, and those that cannot be built with their reasons.

    A text is the reason why a point cannot be built. Ties keep their order. Of candidates that differ only in the knobs
    `stages`, all but the first are marked `again`.
    """
    found = list(predictions)
    candidates = [Candidate(point, cycles) for point, cycles in found if not isinstance(cycles, str)]
    rejected = [Rejection(point, reason) for point, reason in found if isinstance(reason, str)]
    best: list[Candidate] = []
    seen: set[tuple[int, Point]] = set()
    for candidate in sorted(candidates, key=lambda candidate: candidate.cycles):
        rest = candidate.cycles, tuple(knob for knob in candidate.point if knob[0] not in stages)
        best.append(replace(candidate, again=rest in seen))
        seen.add(rest)
    return Ranking(tuple(best), tuple(rejected))
