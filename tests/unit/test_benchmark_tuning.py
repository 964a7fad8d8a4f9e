"""benchmarks/tuning.py: trials are counted as a search would make them."""

from __future__ import annotations

import tuning

from tilec.tune.outcome import Outcome
from tilec.tune.rank import rank_predictions
from tilec.tune.search import BATCH_SIZE, propose_by_model
from tilec.tune.space import Point, build_space

POINTS = list(build_space([("x", list(range(20)))]).points())


def known(point: Point) -> Outcome:
    """The best is 1000 cycles at 12; 13 is within 1 %, 14 is not, 3 would be faster if it did not spill."""
    x = int(point[0][1])
    if x == 5:
        return Outcome(refusal="too large")
    cycles = {12: 1000, 13: 1009, 14: 1011, 3: 900}.get(x, 2000)
    return Outcome(by_levels=cycles, spilled_bytes=4 if x == 3 else 0)


def test_trials_are_counted() -> None:
    # The model has 15 first, then 14 and so on down, then the others; 0 it refuses.
    predictions: dict[Point, int | str] = {p: 100 - int(p[0][1]) for p in POINTS[1:16]} | dict.fromkeys(
        POINTS[16:], 500
    )
    row = tuning.counted("k", {POINTS[0]: "no", **predictions}, {point: known(point) for point in POINTS})
    assert (row.points, row.built, row.good) == (20, 19, 2)
    assert (row.best, row.best_cycles) == ({"x": 12}, 1000)
    assert row.trials == {"grid": 13, "random": 7.0, "model": 3, "surrogate": 3}
    lines = tuning.table([row])
    assert "random search needs 2.3 times the trials" in lines[3]
    assert "nothing measured" in lines[-1]


def test_a_guided_search_tries_all_that_is_left() -> None:
    ranking = rank_predictions((point, int(point[0][1])) for point in POINTS)
    order = tuning.guided(ranking, propose_by_model(ranking), dict.fromkeys(POINTS, 1.0))
    assert order == POINTS and len(order) > BATCH_SIZE
