"""What the tuner learns from trials: where the analytical model is off, and nothing where it is not."""

from __future__ import annotations

from itertools import product

from tilec.tune.rank import Candidate, rank_predictions
from tilec.tune.search import propose_by_model, propose_by_surrogate
from tilec.tune.space import Point, build_space
from tilec.tune.surrogate import MIN_KNOWN_COSTS, Surrogate

SPACE = build_space([("--cluster", ["none", "2x1"]), ("block", [16, 32, 64, 128]), ("stages", [2, 3, 4, 6])])


def model(point: Point) -> int:
    knobs = dict(point)
    return 1000 + 4 * abs(int(knobs["block"]) - 128) + 10 * int(knobs["stages"])


def truth(point: Point) -> float:
    """Large blocks are slower than the model has it, and clusters help, of which it knows nothing."""
    knobs = dict(point)
    return (
        model(point) * {64: 1.6, 128: 2.5}.get(int(knobs["block"]), 1.0) * (0.9 if knobs["--cluster"] == "2x1" else 1.0)
    )


RANKING = rank_predictions((point, model(point)) for point in SPACE.points())


def test_it_begins_as_the_model() -> None:
    surrogate, first = Surrogate(RANKING.best), [candidate.point for candidate in RANKING.best]
    assert surrogate.propose(RANKING.best, {}) == first
    known = {point: truth(point) for point in first[: MIN_KNOWN_COSTS - 1]}
    assert surrogate.propose(RANKING.best, known) == first


def test_where_the_model_is_right_it_stays_with_it() -> None:
    left = RANKING.best[8:]
    known = {candidate.point: float(candidate.cycles) for candidate in RANKING.best[:8]}
    assert Surrogate(RANKING.best).propose(left, known) == [candidate.point for candidate in left]


def trials_to_the_best(surrogate: bool) -> int:
    propose = (propose_by_surrogate if surrogate else propose_by_model)(RANKING)
    best, known, left = min(map(truth, SPACE.points())), dict[Point, float](), list[Candidate](RANKING.best)
    while best not in known.values():
        batch = propose(left, known)[:2]
        known |= {point: truth(point) for point in batch}
        left = [candidate for candidate in left if candidate.point not in known]
    return len(known)


def test_it_needs_fewer_trials_than_the_model_alone() -> None:
    assert trials_to_the_best(surrogate=True) < trials_to_the_best(surrogate=False)


def test_it_proposes_the_same_again() -> None:
    known = {candidate.point: truth(candidate.point) for candidate in RANKING.best[:12]}
    proposals = [Surrogate(RANKING.best).propose(RANKING.best[12:], known) for _ in range(2)]
    assert proposals[0] == proposals[1]
    assert sorted(proposals[0], key=str) == sorted((c.point for c in RANKING.best[12:]), key=str)


def test_features_are_numbers_of_their_own() -> None:
    surrogate = Surrogate(RANKING.best)
    features = {tuple(surrogate.features(point)) for point in SPACE.points()}
    assert len(features) == len(list(product(*(axis.values for axis in SPACE.axes))))
