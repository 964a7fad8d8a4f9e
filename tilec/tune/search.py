"""Ranks the variants of a kernel by what a model predicts for them."""

from __future__ import annotations

from collections.abc import Callable

from tilec.records import dataclass
from tilec.tune.space import Point, Space


class Refused(Exception):
    """Raised by a predictor for a variant that cannot be built; says why."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant and its predicted cycles."""

    point: Point
    cycles: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A variant that cannot be built, and why."""

    point: Point
    reason: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best candidates first; how many were predicted in all; and those that were refused, in the order tried."""

    best: tuple[Candidate, ...]
    predicted: int
    rejected: tuple[Rejection, ...]


def search(space: Space, predict: Callable[[Point], int], keep: int = 1) -> Ranking:
    """Tries every point, because a prediction is cheap and spaces are small. Equally fast candidates stay in the order
    of the space."""
    candidates: list[Candidate] = []
    rejected: list[Rejection] = []
    for point in space.points():
        try:
            candidates.append(Candidate(point, predict(point)))
        except Refused as refusal:
            rejected.append(Rejection(point, str(refusal)))
    ranked = sorted(candidates, key=lambda candidate: candidate.cycles)
    return Ranking(tuple(ranked[:keep]), len(candidates), tuple(rejected))
