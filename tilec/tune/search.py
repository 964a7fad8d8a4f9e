"""Searches for the best variant of a kernel: first the file as written, then batches of the most promising points of
the ranking by the analytical model, until the requested number of trials.

The same space and the same outcomes give the same trials in the same order, however many run at a time: a batch is
complete before the next is chosen. The journal's outcomes are not tried again, so an interrupted search proposes the
same trials when restarted and continues from there. A trial whose process died is not recorded: another machine, or
fewer trials at a time, may succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

from tilec.support.records import dataclass
from tilec.tune.engines import Engine, LostTask
from tilec.tune.journal import Journal
from tilec.tune.outcome import Outcome
from tilec.tune.rank import Candidate, Ranking, rank_predictions
from tilec.tune.space import Point, Space

BATCH_SIZE = 8
"""Trials proposed together."""
_PREDICTION_BATCH_SIZE = 64
"""Points whose predictions are written together."""

Proposer = Callable[[Sequence[Candidate], Mapping[Point, float]], Sequence[Point]]
"""Reorders the remaining candidates, given best first by the model, with the costs known so far."""


class SearchObserver(Protocol):
    """Shows the progress of a search."""

    def show_progress(self, phase: Literal["predicting", "trying"], done: int, total: int) -> None: ...

    def found(self, point: Point, outcome: Outcome, is_new: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class TrialWork:
    """The functions that an engine runs for a point. `predict` returns cycles or the reason why not, `carry_out` the
    outcome. Both run in other processes, on the task that `task` makes of a point. `gpu` is where trials are measured,
    if at all; `lost` is appended to the message of a lost trial."""

    predict: Callable[[Any], int | str]
    carry_out: Callable[[Any], Outcome]
    task: Callable[[Point], Any]
    gpu: str = ""
    lost: str = ""

    def reason(self, lost: LostTask) -> str:
        """Return the message why a trial was lost, with `lost` appended."""
        return f"{lost}{self.lost}"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The ranking by the model alone, and the trials in the order proposed, the `baseline` first."""

    ranking: Ranking
    trials: tuple[tuple[Point, Outcome], ...]
    baseline: Point = ()

    def built(self, gpu: str) -> list[tuple[Point, Outcome]]:
        """Return the trials that could be built, best first for this GPU; ties in the order proposed."""
        return sorted((t for t in self.trials if not t[1].refusal), key=lambda trial: trial[1].rank(gpu))


def propose_by_model(_: Ranking) -> Proposer:
    """Return a proposer that keeps the order of the analytical model."""
    return lambda candidates, known: [candidate.point for candidate in candidates]


def propose_by_surrogate(ranking: Ranking) -> Proposer:
    """Return a proposer that orders candidates by the model, corrected by earlier trials. Needs scikit-learn."""
    from tilec.tune.surrogate import Surrogate

    return Surrogate(ranking.best).propose


def search_space(
    space: Space,
    trials: int,
    work: TrialWork,
    engine: Engine,
    journal: Journal,
    watcher: SearchObserver,
    proposer: Callable[[Ranking], Proposer] = propose_by_model,
    stages: Collection[str] = (),
    baseline: Point = (),
) -> SearchResult:
    """Try at most `trials` points, the `baseline` first, then in the proposer's order; return the ranking and the
    trials.

    The baseline is a point of the space, or the empty point, which changes nothing. Of points that differ only in the
    knobs `stages` and are equal by the model, one is tried and the others come after all other points.
    """
    baseline = tuple(sorted(baseline))
    tried = dict(_try_batch([baseline], 0, trials, work, engine, journal, watcher))
    ranking = _rank_points(space, work, engine, journal, watcher, stages)
    propose, ranked = proposer(ranking), {candidate.point for candidate in ranking.best}
    remaining = [candidate for candidate in ranking.best if candidate.point not in tried]
    total = min(trials, len(remaining) + 1)
    while len(tried) < total:
        costs = {point: outcome.cost(work.gpu) for point, outcome in tried.items() if point in ranked}
        known = {point: cost for point, cost in costs.items() if cost is not None}
        batch = choose_next_batch(remaining, known, propose)[: total - len(tried)]
        for point, outcome in _try_batch(batch, len(tried), total, work, engine, journal, watcher):
            tried[point] = outcome
        remaining = [candidate for candidate in remaining if candidate.point not in tried]
    return SearchResult(ranking, tuple(tried.items()), baseline)


def choose_next_batch(
    remaining: Sequence[Candidate], known: Mapping[Point, float], propose: Proposer
) -> Sequence[Point]:
    """Return up to BATCH_SIZE points to try next, of the remaining candidates in the proposer's order.

    The candidates are given best first by the model; those marked `again` come only if no others are left.
    """
    different = [candidate for candidate in remaining if not candidate.again]
    return propose(different or remaining, known)[:BATCH_SIZE]


def _rank_points(
    space: Space, work: TrialWork, engine: Engine, journal: Journal, watcher: SearchObserver, stages: Collection[str]
) -> Ranking:
    """Return the space's points ranked by predicted cycles; predict what the journal lacks, and record all but lost
    ones.
    """
    points = [tuple(sorted(point)) for point in space.points()]
    known = journal.read_predictions()
    new = [point for point in points if point not in known]
    for first in range(0, len(new), _PREDICTION_BATCH_SIZE):
        together = new[first : first + _PREDICTION_BATCH_SIZE]
        answers: dict[Point, int | str] = {}
        kept: dict[Point, int | str] = {}
        for number, answer in engine.run(work.predict, [work.task(point) for point in together]):
            if isinstance(answer, LostTask):
                answers[together[number]] = work.reason(answer)
            else:
                answers[together[number]] = kept[together[number]] = answer
            watcher.show_progress("predicting", len(points) - len(new) + first + len(answers), len(points))
        journal.predict(kept.items())
        known |= answers
    return rank_predictions(((point, known[point]) for point in points), stages)


def _try_batch(
    batch: Sequence[Point],
    before: int,
    total: int,
    work: TrialWork,
    engine: Engine,
    journal: Journal,
    watcher: SearchObserver,
) -> list[tuple[Point, Outcome]]:
    """Return the outcomes of a batch, in its order; run the trials that the journal lacks, and record all but lost
    ones. Progress counts `before` earlier trials, of `total`.
    """
    journal.propose(batch)
    known = {point: one for point, one in journal.outcomes().items() if point in batch and one.holds(work.gpu)}
    for done, (point, outcome) in enumerate(known.items(), before + 1):
        watcher.found(point, outcome, False)
        watcher.show_progress("trying", done, total)
    new = [point for point in batch if point not in known]
    for number, answer in engine.run(work.carry_out, [work.task(point) for point in new]):
        outcome = Outcome(refusal=work.reason(answer)) if isinstance(answer, LostTask) else answer
        if not isinstance(answer, LostTask):
            journal.note(new[number], answer)
        known[new[number]] = outcome
        watcher.found(new[number], outcome, True)
        watcher.show_progress("trying", before + len(known), total)
    return [(point, known[point]) for point in batch]
