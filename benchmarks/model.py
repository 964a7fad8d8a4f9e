"""What the compiler's model predicts of measured kernels, and how far off that is.

    python benchmarks/model.py [--only PATTERN] [--json FILE]                   the published measurements
    python benchmarks/model.py --cases [--only PATTERN] [--results FILE]        our own, of gpu_cases.py and gpu.py

A row of `published/` is predicted by our own kernel of the same structure, on the GPU that it was measured on: the time
that `tilec report` says, of the best of the tiles that its group names. `ratio` is predicted to measured time: below 1
the model is too optimistic. The table marks rows that are held out of every fit (H), and those whose kernel is built
otherwise than ours (~) or whose number was read off a picture (p), to which nothing may be fitted either.

FILE of --results is what `gpu.py` wrote: milliseconds of the very kernels. The model counts cycles of one clock, so a
clock that was read beside a measurement takes the place of the target file's.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gpu_cases
import published_rows

from tilec.driver import build as driver
from tilec.passes.cost.report import Report
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target.table import load_target

FITTED: Mapping[str, Sequence[str]] = {}
"""The constants of the compiler that were fitted to rows, each with the names of those rows. None was: every number of
targets/*.toml has a source of its own, and no source is a row."""


@dataclass(frozen=True)
class Prediction:
    """Microseconds as `tilec report` predicts them; the same if tensor cores drew nothing and the clock stayed; and
    what the levels of the kernel's loops and their schedules give, of which each kernel takes the longer one. What
    binds, and of which tile it is."""

    microseconds: float
    at_full_clock: float
    by_levels: float
    by_schedule: float
    bound: str
    tile: Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """A measurement beside its prediction (None: why there is none is in `refusal`)."""

    group: str
    name: str
    gpu: str
    measured: float | None
    predicted: Prediction | None
    is_held_out: bool = False
    differs: str = ""
    is_plot: bool = False
    source: str = ""
    refusal: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted to measured time."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted.microseconds / self.measured

    @property
    def is_alike(self) -> bool:
        """Whether the kernel that was measured is built as ours is."""
        return not self.differs


def reports(kernel: gpu_cases.Kernel, target: str, gpu: str | None) -> tuple[Report, ...]:
    source = SourceFile(kernel.file.name, kernel.file.read_text(encoding="utf-8"))
    options = CompileOptions(target=target, gpu=gpu, defines=tuple(kernel.constants.items()), **kernel.options)
    return driver.build_reports(driver.build_library(source, options, driver.Observer()))


def predicted(
    kernels: Sequence[gpu_cases.Kernel], target: str, gpu: str | None, clock: int | None, tile: Mapping[str, Any]
) -> Prediction:
    """Of kernels one after the other, at the target's clock or at this one (MHz)."""
    said = [report for kernel in kernels for report in reports(kernel, target, gpu)]
    longest = max(said, key=lambda report: report.predicted.cycles)
    return Prediction(
        sum(report.at(report.predicted, clock) for report in said),
        sum(report.at(report.predicted, report.clock_mhz) for report in said),
        sum(report.at(report.by_levels, clock) for report in said),
        sum(report.at(report.by_schedule, clock) for report in said),
        longest.bound,
        tile,
    )


# ---- published measurements ------------------------------------------------------------------------------------------


def published(pattern: str, note: Callable[[str], None] = lambda line: None) -> Iterator[Judged]:
    """Rows whose group or name matches, each with its prediction."""
    sources, groups = published_rows.read()
    known: dict[object, Prediction | str] = {}
    for name, group in groups.items():
        for row in group.rows:
            if not (fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(row.name, pattern)):
                continue
            key = name, row.ours, row.dtype, row.gpu, row.clock_mhz, tuple(row.shape.items())
            if key not in known:
                note(f"{name}: {row.name}")
                known[key] = best(group.ours[row.ours], row)
            found = known[key]
            yield Judged(
                name, row.name, row.gpu, group.microseconds(row), None if isinstance(found, str) else found,
                row.held_out, row.differs, row.read_from == "plot",
                f"{sources[row.source].document}: {row.where}", found if isinstance(found, str) else "",
            )  # fmt: skip


def best(ours: published_rows.Ours, row: published_rows.Row) -> Prediction | str:
    """By the tile that is predicted to be fastest; or why none can be compiled."""
    found, refusal = [], ""
    for tile in ours.tiles:
        kernels = [
            gpu_cases.Kernel(
                gpu_cases.ROOT / part.file,
                {**row.shape, "dtype": row.dtype, **part.constants, **tile},
                {name: tuple(value) if isinstance(value, list) else value for name, value in part.options.items()},
            )
            for part in ours.kernels
        ]
        try:
            found.append(predicted(kernels, published_rows.target_of(row.gpu), row.gpu, row.clock_mhz, tile))
        except CompileError as error:
            refusal = error.diagnostics[0].title
    return min(found, key=lambda one: one.microseconds) if found else refusal


# ---- our own ---------------------------------------------------------------------------------------------------------


def cases(pattern: str, results: Mapping[str, Any]) -> Iterator[Judged]:
    """Yield the timed cases of `gpu_cases.py`, with what `gpu.py` measured of those that were right.

    The clock that a GPU shows beside a case is the one between launches: under load it is lower, and not used here."""
    measured = {
        case["name"]: case["milliseconds"]["tilec"]["median"] * 1000
        for case in results.get("cases", ())
        if not case["fault"] and "tilec" in case.get("milliseconds", {})
    }
    gpu = gpu_of(results)
    for plan in gpu_cases.plans():
        if plan.kernels and fnmatch.fnmatch(plan.case.name, pattern):
            one = predicted(plan.kernels, gpu_cases.TARGET, gpu, None, {})
            yield Judged(plan.case.kind, plan.case.name, gpu or gpu_cases.TARGET, measured.get(plan.case.name), one)


def gpu_of(results: Mapping[str, Any]) -> str | None:
    """What the target's file calls the GPU that was measured: the name that has the same words."""
    name = results.get("machine", {}).get("name", "").replace("-", " ").split()
    known = (gpu.name for gpu in load_target(gpu_cases.TARGET).gpus)
    return next((gpu for gpu in known if gpu.split("-")[0] in name), None)


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """Of some rows: how many, the geometric mean of predicted to measured time, and the mean of how far each is off."""

    rows: int
    geometric_mean: float
    mape: float


def score(ratios: Sequence[float]) -> Score | None:
    if not ratios:
        return None
    return Score(len(ratios), statistics.geometric_mean(ratios), statistics.mean(abs(ratio - 1) for ratio in ratios))


SELECTIONS: Mapping[str, Callable[[Judged], bool]] = {
    "all": lambda one: True,
    "built as ours": lambda one: one.is_alike,
    "held out": lambda one: one.is_held_out,
    "held out, built as ours": lambda one: one.is_held_out and one.is_alike,
}


def scores(judged: Sequence[Judged]) -> dict[str, dict[str, Score | None]]:
    """By group, and of all groups together, for each of `SELECTIONS`."""
    groups = [*dict.fromkeys(one.group for one in judged), "all groups"]
    return {
        group: {
            name: score([one.ratio for one in judged if one.ratio is not None and among(one)
                         and group in (one.group, "all groups")])
            for name, among in SELECTIONS.items()
        }
        for group in groups
    }  # fmt: skip


def table(judged: Sequence[Judged]) -> list[str]:
    width = max((len(one.name) for one in judged), default=0)
    lines = []
    for group in dict.fromkeys(one.group for one in judged):
        lines.append(f"{group:{width}} {'GPU':10} {'measured, us':>13} {'predicted':>11} {'ratio':>6}      bound by")
        for one in (one for one in judged if one.group == group):
            marks = ("H" if one.is_held_out else " ") + ("~" if one.differs else " ") + ("p" if one.is_plot else " ")
            time = "not measured" if one.measured is None else f"{one.measured:,.1f}"
            if one.predicted is None:
                lines.append(f"{one.name:{width}} {one.gpu:10} {time:>13} {'–':>11} {'':6} {marks} {one.refusal}")
                continue
            ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
            said = f"{one.predicted.microseconds:11,.1f} {ratio:>6} {marks}  {one.predicted.bound}"
            lines.append(f"{one.name:{width}} {one.gpu:10} {time:>13} {said}")
    if any(one.ratio is not None for one in judged):
        lines += ["", *summary(judged)]
    else:
        lines.append("not measured: --results FILE, of benchmarks/gpu.py on a GPU, puts what was measured beside these")
    return lines


def summary(judged: Sequence[Judged]) -> list[str]:
    """Rows, geometric mean of the ratio and MAPE of each group."""
    heads = "".join(f"  {name:>26}" for name in SELECTIONS)
    lines = [f"{'rows, geometric mean, MAPE':26}{heads}"]
    for group, found in scores(judged).items():
        columns = (
            "–" if one is None else f"{one.rows:4} {one.geometric_mean:6.2f} {one.mape:7.1%}" for one in found.values()
        )
        lines.append(f"{group:26}" + "".join(f"  {column:>26}" for column in columns))
    return lines


def record(judged: Sequence[Judged]) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=gpu_cases.ROOT
    )
    return {
        "commit": commit.stdout.strip(),
        "fitted": FITTED,
        "scores": {
            group: {name: None if one is None else asdict(one) for name, one in found.items()}
            for group, found in scores(judged).items()
        },
        "rows": [{**asdict(one), "ratio": one.ratio} for one in judged],
    }


def rounded(value: Any) -> Any:
    """To five digits: more than anybody has measured."""
    if isinstance(value, float):
        return 0.0 if value == 0 else round(value, 4 - math.floor(math.log10(abs(value))))
    if isinstance(value, dict):
        return {name: rounded(member) for name, member in value.items()}
    return [rounded(member) for member in value] if isinstance(value, list | tuple) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="groups or rows whose name matches")
    parser.add_argument("--cases", action="store_true", help="our own cases in place of what others published")
    parser.add_argument("--results", type=Path, metavar="FILE", help="what gpu.py wrote with --json (with --cases)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows and scores")
    asked = parser.parse_args()
    if asked.cases or asked.results is not None:
        results = {} if asked.results is None else json.loads(asked.results.read_text(encoding="utf-8"))
        judged = list(cases(asked.only, results))
    else:
        judged = list(published(asked.only, lambda line: print(line, file=sys.stderr, flush=True)))
    if asked.json is not None:
        asked.json.write_text(json.dumps(rounded(record(judged)), indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(judged)))


if __name__ == "__main__":
    main()
