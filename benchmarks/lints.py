"""Count how often `too-few-stages` is right: what it says of measured kernels, beside what their stages changed.

    python benchmarks/lints.py [FILE] [--only PATTERN] [--jobs N]

FILE holds measured workloads, as for `regret.py`, with variants such as `num_stages=3`. Each of these numbers is
compiled as if the author had written it, up to the schedules; no GPU is needed. The advice is right if the measured
variant with the stages that it names (or the most that were measured on the way there) is faster by `FASTER`. Advice
counts only where today's decisions are those that were measured, with both numbers. A third of the workloads is held
out, as in `regret.py`.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gpu_cases
import regret
from model import gpu_of

from tilec.driver import build as driver
from tilec.support.diagnostics import CompileError
from tilec.support.source import SourceFile

FASTER = 0.01
"""A smaller difference between two measured times is noise."""
WORTH = 0.05
"""Kernels that lose so much by their stages are those that the lint should find."""


@dataclass(frozen=True)
class Compiled:
    """A kernel with a number of stages as it is compiled today, and the advice: other stages, and the share of the time
    that they are predicted to save."""

    stages: int
    decisions: Mapping[str, str]
    advised: int | None = None
    share: float = 0.0


@dataclass(frozen=True)
class Case:
    """A workload with some number of stages. `changed` is the measured time with the advised stages over that with its
    own (None: no advice), and `best` that with the best larger number (None: none was measured)."""

    name: str
    compiled: Compiled
    changed: float | None
    best: float | None
    is_held_out: bool
    is_comparable: bool


def compile_stages(case: Mapping[str, Any], gpu: str | None) -> dict[str, Compiled]:
    """Return the measured variants that differ in stages only, by their labels, as compiled today."""
    kernel, constants = regret.find_kernel(case)
    text, found = (gpu_cases.ROOT / kernel).read_text(encoding="utf-8"), {}
    for label in filter(is_about_stages, regret.list_measured(case)):
        observer = driver.Observer()
        try:
            options = replace(gpu_cases.options_of("" if label == regret.BASE else label, constants), gpu=gpu)
            planned = driver.plan_kernel(SourceFile(Path(kernel).name, text), options, observer)
        except (CompileError, gpu_cases.click.ClickException):
            continue
        stages = max((one.loop.loop.num_stages or 0 for one in planned.loops), default=0)
        decisions = {decision.what: decision.chosen for decision in planned.decisions}
        title = next((each.title for each in observer.warnings if each.code == "too-few-stages"), "")
        advice = re.search(r"num_stages=(\d+) .* (\d+)%", title)
        found[label] = Compiled(stages, decisions)
        if advice is not None:
            found[label] = Compiled(stages, decisions, int(advice[1]), int(advice[2]) / 100)
    return found


def is_about_stages(label: str) -> bool:
    return label == regret.BASE or re.fullmatch(r"num_stages=\d+", label) is not None


def read_cases(case: Mapping[str, Any], compiled: Mapping[str, Compiled]) -> Iterator[Case]:
    """Yield the workload with each of its measured numbers of stages."""
    times, kernel = regret.list_measured(case), regret.find_kernel(case)[0]
    is_held_out = regret.Workload(case["name"], kernel, {}, (), None).is_held_out
    for label, one in compiled.items():
        if not one.stages:
            continue
        more = {other.stages: name for name, other in compiled.items() if other.stages > one.stages}
        best = min((times[name] / times[label] for name in more.values()), default=None)
        changed, other = None, label
        if one.advised is not None and more:
            other = more[max((stages for stages in more if stages <= one.advised), default=min(more))]
            changed = times[other] / times[label]
        known = all(regret.recorded_decisions(case, name) == compiled[name].decisions for name in (label, other))
        yield Case(case["name"], one, changed, best, is_held_out, known)


def count_lines(cases: Sequence[Case]) -> Iterator[str]:
    """Yield precision and recall of the held out cases, of the others, and of all."""
    known = [one for one in cases if one.is_comparable]
    halves = {
        "held out": [one for one in known if one.is_held_out],
        "others": [one for one in known if not one.is_held_out],
        "all": known,
    }
    for name, some in halves.items():
        said = [(one.changed, one.compiled.share) for one in some if one.changed is not None]
        right = [pair for pair in said if pair[0] <= 1 - FASTER]
        lossy = [one for one in some if one.best is not None and one.best <= 1 - WORTH]
        found = [one for one in lossy if one.compiled.advised is not None]
        saved = statistics.mean((1 - changed) / share for changed, share in said) if said else 0.0
        yield (
            f"{name}: {len(some)} kernels; {len(right)} of {len(said)} warnings right, {saved:.0%} of the predicted "
            f"time saved; {len(found)} of {len(lossy)} found that lose {WORTH:.0%}"
        )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="measured workloads (the newest of benchmarks/results)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="workloads whose name matches")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="compile in so many processes (2)")
    given = parser.parse_args(words)
    results = json.loads((given.file or regret.find_newest()).read_text(encoding="utf-8"))
    measured = [
        case
        for case in results["cases"]
        if fnmatch.fnmatch(case["name"], given.only) and not case["fault"] and len(case.get("variants") or ()) > 1
    ]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        compiled = list(pool.map(partial(compile_stages, gpu=gpu_of(results)), measured))
    cases = [one for case, known in zip(measured, compiled, strict=True) for one in read_cases(case, known)]
    for one in sorted((one for one in cases if one.changed is not None), key=lambda one: -one.compiled.share):
        stages, mark = f"{one.compiled.stages} → {one.compiled.advised}", "H" if one.is_held_out else " "
        other = "" if one.is_comparable else ", with other decisions than today's"
        said = f"predicted {1 - one.compiled.share:.2f}, measured {one.changed:.2f}"
        print(f"{one.name[:42]:42} {mark} stages {stages}: {said}{other}")
    for line in count_lines(cases):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
