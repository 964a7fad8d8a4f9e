"""The search for the best variant of a kernel: the file as written is tried first, then, of all points ranked by the
analytical model, batches of the most promising ones, until as many as are asked for have been tried.

The same space and the same outcomes propose the same trials in the same order, however many run at a time: a batch is
complete before the next is chosen. What the journal knows is not tried again, so that an interrupted search, started
again, proposes what it proposed before and goes on from there. A trial that took its process with it is not written
there: another machine, or fewer trials at a time, may carry it out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from tilec.support.records import dataclass
from tilec.tune.engines import Engine, Lost
from tilec.tune.journal import Journal
from tilec.tune.outcome import Outcome
from tilec.tune.rank import Candidate, Ranking, rank
from tilec.tune.space import Point, Space

BATCH = 8
"""Trials that are proposed together."""
_PREDICTED_TOGETHER = 64
"""Points whose predictions are written at once."""

Propose = Callable[[Sequence[Candidate], Mapping[Point, float]], Sequence[Point]]
"""From the candidates that are left, best first by the model, and the costs that are known: the same, reordered."""


class Watcher(Protocol):
    """Who shows how far the search is."""

    def predicting(self, done: int, total: int) -> None: ...

    def trying(self, done: int, total: int) -> None: ...

    def found(self, point: Point, outcome: Outcome, is_new: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of an engine for a point: `predict` gives cycles or says why not, `carry_out` the outcome. Both are
    called in other processes, with what `task` makes of a point. `gpu` is where trials are measured, if they are;
    `lost` is said of those whose process ended."""

    predict: Callable[[Any], int | str]
    carry_out: Callable[[Any], Outcome]
    task: Callable[[Point], Any]
    gpu: str = ""
    lost: str = ""

    def reason(self, lost: Lost) -> str:
        return f"{lost}{self.lost}"


@dataclass(frozen=True, slots=True)
class Found:
    """The ranking by the model alone, and the trials in the order in which they were proposed: first the `baseline`."""

    ranking: Ranking
    trials: tuple[tuple[Point, Outcome], ...]
    baseline: Point = ()

    def built(self, gpu: str) -> list[tuple[Point, Outcome]]:
        """Those that could be built, the best first; equally good ones in the order in which they were proposed."""
        return sorted((t for t in self.trials if not t[1].refusal), key=lambda trial: trial[1].rank(gpu))


def by_model(_: Ranking) -> Propose:
    """As the analytical model ranks them."""
    return lambda candidates, known: [candidate.point for candidate in candidates]


def by_surrogate(ranking: Ranking) -> Propose:
    """As the analytical model ranks them, corrected by the trials before. Needs scikit-learn."""
    from tilec.tune.surrogate import Surrogate

    return Surrogate(ranking.best).propose


def search(
    space: Space,
    trials: int,
    work: Work,
    engine: Engine,
    journal: Journal,
    watcher: Watcher,
    proposer: Callable[[Ranking], Propose] = by_model,
    stages: Collection[str] = (),
    baseline: Point = (),
) -> Found:
    """Tries at most so many points, the `baseline` first: a point of the space, or the one that changes nothing of the
    file. Of those that differ in the knobs `stages` only, and are alike by the model, one is tried before the others,
    which come behind all points."""
    baseline = tuple(sorted(baseline))
    tried = dict(_tried([baseline], 0, trials, work, engine, journal, watcher))
    ranking = _ranked(space, work, engine, journal, watcher, stages)
    propose, ranked = proposer(ranking), {candidate.point for candidate in ranking.best}
    left = [candidate for candidate in ranking.best if candidate.point not in tried]
    total = min(trials, len(left) + 1)
    while len(tried) < total:
        costs = {point: outcome.cost(work.gpu) for point, outcome in tried.items() if point in ranked}
        known = {point: cost for point, cost in costs.items() if cost is not None}
        batch = next_batch(left, known, propose)[: total - len(tried)]
        for point, outcome in _tried(batch, len(tried), total, work, engine, journal, watcher):
            tried[point] = outcome
        left = [candidate for candidate in left if candidate.point not in tried]
    return Found(ranking, tuple(tried.items()), baseline)


def next_batch(left: Sequence[Candidate], known: Mapping[Point, float], propose: Propose) -> Sequence[Point]:
    """What to try next of the candidates that are left, best first by the model."""
    different = [candidate for candidate in left if not candidate.again]
    return propose(different or left, known)[:BATCH]


def _ranked(
    space: Space, work: Work, engine: Engine, journal: Journal, watcher: Watcher, stages: Collection[str]
) -> Ranking:
    """All points of the space, the best first."""
    points = [tuple(sorted(point)) for point in space.points()]
    known = journal.predictions()
    new = [point for point in points if point not in known]
    for first in range(0, len(new), _PREDICTED_TOGETHER):
        together = new[first : first + _PREDICTED_TOGETHER]
        answers: dict[Point, int | str] = {}
        kept: dict[Point, int | str] = {}
        for number, answer in engine.run(work.predict, [work.task(point) for point in together]):
            if isinstance(answer, Lost):
                answers[together[number]] = work.reason(answer)
            else:
                answers[together[number]] = kept[together[number]] = answer
            watcher.predicting(len(points) - len(new) + first + len(answers), len(points))
        journal.predict(kept.items())
        known |= answers
    return rank(((point, known[point]) for point in points), stages)


def _tried(
    batch: Sequence[Point],
    before: int,
    total: int,
    work: Work,
    engine: Engine,
    journal: Journal,
    watcher: Watcher,
) -> list[tuple[Point, Outcome]]:
    """The outcomes of a batch, in its order; those that the journal does not know are written there as they come."""
    journal.propose(batch)
    known = {point: one for point, one in journal.outcomes().items() if point in batch and one.holds(work.gpu)}
    for done, (point, outcome) in enumerate(known.items(), before + 1):
        watcher.found(point, outcome, False)
        watcher.trying(done, total)
    new = [point for point in batch if point not in known]
    for number, answer in engine.run(work.carry_out, [work.task(point) for point in new]):
        if isinstance(answer, Lost):
            outcome = Outcome(refusal=work.reason(answer))
        else:
            outcome = answer
            journal.note(new[number], outcome)
        known[new[number]] = outcome
        watcher.found(new[number], outcome, True)
        watcher.trying(before + len(known), total)
    return [(point, known[point]) for point in batch]
