"""Proposes the next trials by gradient boosting on the errors of the analytical model.

It predicts a factor on the model's cycles (the logarithm of cost over cycles) from the knobs; without data it equals
the model. Needs scikit-learn (`pip install '.[tune]'`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from tilec.tune.rank import Candidate
from tilec.tune.space import Point, Value

MIN_KNOWN_COSTS = 6
"""Known costs below which the model alone proposes."""
UNCHANGED_OPTION = -1.0
"""The feature of an option that a point does not set."""
TREES, DEPTH, RATE = 60, 3, 0.1


def is_installed() -> bool:
    return find_spec("sklearn") is not None


class Surrogate:
    """The surrogate model of one search, for the candidates of one ranking."""

    def __init__(self, ranking: Sequence[Candidate]) -> None:
        self.cycles = {candidate.point: max(candidate.cycles, 1) for candidate in ranking}
        words = {(name, str(value)) for point in self.cycles for name, value in point if not _is_number(value)}
        self.codes = {word: float(code) for code, word in enumerate(sorted(words))}
        self.names = sorted({name for point in self.cycles for name, _ in point})

    def propose(self, remaining: Sequence[Candidate], known: Mapping[Point, float]) -> list[Point]:
        """Return the points of the remaining candidates, best first by the model with learnt corrections.

        Ties are in the order of the model, and below six known costs that order stays.
        """
        points = [candidate.point for candidate in remaining]
        if len(known) < MIN_KNOWN_COSTS or not points:
            return points
        from sklearn.ensemble import GradientBoostingRegressor

        forest = GradientBoostingRegressor(n_estimators=TREES, max_depth=DEPTH, learning_rate=RATE, random_state=0)
        forest.fit(
            [self.features(point) for point in known],
            [math.log(max(cost, 1e-9) / self.cycles[point]) for point, cost in known.items()],
        )
        factors: Any = forest.predict([self.features(point) for point in points])
        costs = [math.log(self.cycles[p]) + round(float(factor), 9) for p, factor in zip(points, factors, strict=True)]
        return [point for _, _, point in sorted(zip(costs, range(len(points)), points, strict=True))]

    def features(self, point: Point) -> list[float]:
        """Return a point's features: each knob's number by logarithm or word by index, and the model's cycles."""
        given = dict(point)
        return [*(self._encode_value(name, given.get(name)) for name in self.names), math.log(self.cycles[point])]

    def _encode_value(self, name: str, value: Value | None) -> float:
        """Return the feature of a knob's value: a scaled number, a word's index, or UNCHANGED_OPTION if not set."""
        if value is None:
            return UNCHANGED_OPTION
        return _scale_number(value) if _is_number(value) else self.codes[name, str(value)]


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scale_number(value: Value) -> float:
    """Return log2(1 + |value|) with the sign of the value."""
    return math.copysign(math.log2(1 + abs(float(value))), float(value))
