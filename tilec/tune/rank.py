"""Ranks the variants of a kernel by what a model predicts for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tilec.support.records import dataclass
from tilec.tune.space import Point


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant and its predicted cycles. `again`: one before it is as fast, and differs in stages only."""

    point: Point
    cycles: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Rejection:
    """A variant that cannot be built, and why."""

    point: Point
    reason: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best candidates first, and those that were refused, in the order of the space."""

    best: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]


def rank(predictions: Iterable[tuple[Point, int | str]], stages: Collection[str] = ()) -> Ranking:
    """From the cycles of each point, or why it cannot be built. Equally fast candidates stay in their order. Of those
    that differ in the knobs `stages` only, the first stands for the others."""
    candidates: list[Candidate] = []
    rejected: list[Rejection] = []
    for point, found in predictions:
        if isinstance(found, str):
            rejected.append(Rejection(point, found))
        else:
            candidates.append(Candidate(point, found))
    best: list[Candidate] = []
    seen: set[tuple[int, Point]] = set()
    for candidate in sorted(candidates, key=lambda candidate: candidate.cycles):
        rest = candidate.cycles, tuple(knob for knob in candidate.point if knob[0] not in stages)
        best.append(replace(candidate, again=rest in seen))
        seen.add(rest)
    return Ranking(tuple(best), tuple(rejected))
