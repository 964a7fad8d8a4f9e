"""How many trials a search needs to come within 1 % of the best variant of all, on the modelled objective.

    python benchmarks/tuning.py [--only PATTERN,…] [--target NAME] [--jobs N] [--journals FOLDER] [--json FILE]

Every point of the space that `tilec tune --space auto` makes of a kernel of samples/alcop is compiled, those too that
the model would refuse. What each costs is what `tilec tune` ranks by where there is no GPU: the larger of what the
model predicts of the kernel as it was built, from its levels and from its solved intervals. Then searches of the same
points are counted: in the order of the space (grid), in random order (the expected number: (n + 1) / (k + 1) where k of
n are good enough), as the analytical model ranks them before anything is solved, and that corrected by what was learnt.
Points that the model refuses cost the last two no trial. Nothing is measured: the objective is the model's, refined.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import statistics
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tilec.frontend.syntax.parse import parse_file
from tilec.support import options
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.tune import trial
from tilec.tune.auto import build_auto_space
from tilec.tune.engines import LocalEngine, LostTask
from tilec.tune.journal import Journal
from tilec.tune.knobs import apply_point
from tilec.tune.outcome import Outcome
from tilec.tune.rank import Ranking, rank_predictions
from tilec.tune.search import Proposer, choose_next_batch, propose_by_model, propose_by_surrogate
from tilec.tune.space import Point

FOLDER = Path(__file__).parents[1] / "samples" / "alcop"
NEAR = 0.99
"""Of the best variant's speed."""
WAYS = ("grid", "random", "model", "surrogate")


@dataclass(frozen=True)
class Row:
    """Of a kernel: the points of its space, how many can be built, how many are as good as the best but for 1 %, the
    best one, and the trials that each way needs to find such a one."""

    name: str
    points: int
    built: int
    good: int
    best: dict[str, Any]
    best_cycles: int
    trials: dict[str, float]


def first_good(order: Sequence[Point], good: set[Point]) -> int:
    """How many trials it takes until one is good."""
    return next(number for number, point in enumerate(order, 1) if point in good)


def guided(ranking: Ranking, propose: Proposer, costs: Mapping[Point, float | None]) -> list[Point]:
    """The order in which a search tries all that the model does not refuse."""
    left, tried = list(ranking.best), list[Point]()
    while left:
        known = {point: cost for point in tried if (cost := costs[point]) is not None}
        tried += choose_next_batch(left, known, propose)
        done = set(tried)
        left = [candidate for candidate in left if candidate.point not in done]
    return tried


def counted(name: str, predictions: Mapping[Point, int | str], outcomes: Mapping[Point, Outcome]) -> Row:
    """From what is known of all points, in the order of the space."""
    points = list(predictions)
    built = {point: one for point, one in outcomes.items() if not one.refusal}
    best = min(built, key=lambda point: (built[point].rank(""), points.index(point)))
    least = built[best].rank("")
    good = {p for p, one in built.items() if (one.rank("")[0], NEAR * one.cycles) <= least}
    ranking = rank_predictions(predictions.items(), stages=("num_stages",))
    costs = {point: outcomes[point].cost("") for point in points}
    proposers: dict[str, Callable[[Ranking], Proposer]] = {"model": propose_by_model, "surrogate": propose_by_surrogate}
    trials: dict[str, float] = {"grid": first_good(points, good), "random": (len(points) + 1) / (len(good) + 1)}
    for way, proposer in proposers.items():
        trials[way] = first_good(guided(ranking, proposer(ranking), costs), good)
    return Row(name, len(points), len(built), len(good), dict(best), built[best].cycles, trials)


def tried(
    row: Mapping[str, Any], target: str, jobs: int, journal: Journal
) -> tuple[dict[Point, Any], dict[Point, Any]]:
    """The predictions and outcomes of the whole space; what the journal knows is not tried again."""
    path = FOLDER / f"{row['sample']}.tl"
    text = path.read_text(encoding="utf-8")
    sizes = tuple((key, value) for key, value in row.items() if key != "sample")
    base = CompileOptions(target=target, defines=sizes, cache_dir=options.cache_folder())
    space = build_auto_space(parse_file(SourceFile(path.name, text), None), path.name)
    points = [tuple(sorted(point)) for point in space.points()]
    engine = LocalEngine(jobs)

    def task(point: Point) -> trial.Variant:
        return trial.Variant(path.name, text, apply_point(point, base))

    try:
        predictions = journal.read_predictions()
        new = [point for point in points if point not in predictions]
        for number, predicted in engine.run(trial.predict_variant, [task(point) for point in new]):
            assert not isinstance(predicted, LostTask), predicted
            predictions[new[number]] = predicted
        journal.predict((point, predictions[point]) for point in new)
        journal.propose(points)
        known = journal.outcomes()
        new = [point for point in points if point not in known]
        for number, outcome in engine.run(trial.try_variant, [task(point) for point in new]):
            known[new[number]] = Outcome(refusal=str(outcome)) if isinstance(outcome, LostTask) else outcome
            journal.note(new[number], known[new[number]])
    finally:
        engine.close()
    return {point: predictions[point] for point in points}, {point: known[point] for point in points}


def table(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'kernel':14} {'points':>6} {'built':>6} {'good':>5} {'best, cycles':>12}  trials: {'  '.join(WAYS)}"]
    for row in rows:
        counts = "  ".join(f"{row.trials[way]:{len(way)}.0f}" for way in WAYS)
        lines.append(f"{row.name:14} {row.points:6} {row.built:6} {row.good:5} {row.best_cycles:12,}          {counts}")
    for way in WAYS[:2]:
        ratio = statistics.geometric_mean(row.trials[way] / row.trials["surrogate"] for row in rows)
        lines.append(f"{way} search needs {ratio:.1f} times the trials of the guided one (geomean)")
    lines.append("all modelled, nothing measured; the paper measured, on an A100: 40 times fewer trials")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN,…")
    parser.add_argument("--target", default="sm_80", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--journals", type=Path, default=Path(), metavar="FOLDER", help="go on from, and keep, a file a kernel"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    kernels = tomllib.loads((FOLDER / "kernels.toml").read_text(encoding="utf-8"))
    rows = []
    for name, row in kernels.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in given.only.split(",")):
            continue
        about = {"kernel": f"{name} of the benchmark", "target": given.target}
        journal = Journal(str(given.journals / f"{name}.{given.target}.sqlite"), about)
        rows.append(counted(name, *tried(row, given.target, given.jobs, journal)))
        journal.close()
        print(table(rows[-1:])[1], flush=True)
    if given.json is not None:
        whole = {
            "what": "modelled, not measured: trials until 99 % of the exhaustive best",
            "date": datetime.date.today().isoformat(),
            "target": given.target,
            "rows": [asdict(row) for row in rows],
        }
        given.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
