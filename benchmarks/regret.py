"""Count what the compiler's decisions cost: each workload as it is decided today, beside all that was measured of it.

    python benchmarks/regret.py [FILE] [--only PATTERN] [--all] [--json OUT] [--jobs N]

FILE holds measured workloads (the newest `workloads.json` of benchmarks/results): times of each kernel as the compiler
decided and with other decisions. No GPU is needed. Every variant is compiled again. The measured time of today's
decisions is that of the variant with the same decisions, and its regret is what it takes longer than the fastest one.
Variants that change the author's constants (`num_stages=3`) or threads (`--consumer-warpgroups`) or the level are no
decisions: with `--all` they count too, for the model only. The model is asked about a variant where its options still
lead to the decisions that were measured.

Of two variants that differ by more than 5 % in measured time, the model has the sign right if it predicts the same one
to be faster. A third of the workloads is held out: no constant of the compiler may be fitted to these.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import statistics
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gpu_cases
from model import gpu_of

from tilec.driver import build as driver
from tilec.support.diagnostics import CompileError
from tilec.support.source import SourceFile

RESULTS = gpu_cases.ROOT / "benchmarks" / "results"
DIFFERENT = 0.05
"""A smaller difference between two measured times says nothing about a model."""
BASE = "as decided"
UNRECORDED = {
    "versions": ("as many as the schedule asks for",),
    "iterations": ("overlapped", "one after the other"),  # of which roles say the same
}
"""What was decided before the decision had a name: files of results are compared without it."""
GIVEN = ("--consumer-warpgroups", "-O2")
"""Options for what the compiler does not decide."""
HELD_OUT_ONE_IN = 3


@dataclass(frozen=True)
class Variant:
    """A workload compiled with the options in `label`: its decisions, its measured time, and the one that the model
    predicts today (None where these options do not lead to these decisions any more), both in microseconds."""

    label: str
    decisions: Mapping[str, str]
    measured: float
    predicted: float | None = None

    @property
    def is_decision(self) -> bool:
        return is_decision(self.label)


@dataclass(frozen=True)
class Workload:
    """A measured kernel. `decided` is the variant with today's decisions: None where none was measured, or where the
    kernel's text is another one today (`is_same`)."""

    name: str
    kernel: str
    today: Mapping[str, str]
    variants: tuple[Variant, ...]
    decided: Variant | None
    is_same: bool = True

    @property
    def is_held_out(self) -> bool:
        return zlib.crc32(self.kernel.encode()) % HELD_OUT_ONE_IN == 0

    @property
    def best(self) -> Variant:
        return min((one for one in self.variants if one.is_decision), key=lambda one: one.measured)

    @property
    def regret(self) -> float | None:
        """Return how much longer than the best measured variant today's takes, as a fraction."""
        return None if self.decided is None else self.decided.measured / self.best.measured - 1

    @property
    def error(self) -> float | None:
        """Return predicted over measured time of today's decisions, minus 1."""
        known = self.decided
        return None if known is None or known.predicted is None else known.predicted / known.measured - 1


def is_decision(label: str) -> bool:
    """Return True unless a variant changes constants of the kernel's author, the author's threads, or the level."""
    words = label.split()
    return not any(word in GIVEN or ("=" in word and not word.startswith("-")) for word in words)


# ---- compiling -------------------------------------------------------------------------------------------------------


def compile_variant(case: Mapping[str, Any], label: str, gpu: str | None) -> tuple[dict[str, str], float] | None:
    """Return the decisions of a variant and its predicted microseconds; None where the compiler refuses it."""
    kernel, constants = find_kernel(case)
    try:
        built = build_variant(case, label, gpu)
        report = driver.build_report(built, find_sizes(kernel), gpu_cases.gpu_inputs.known_contents(kernel, constants))
    except (CompileError, gpu_cases.click.ClickException):
        return None
    return read_decisions(built), report.at(report.predicted)


def build_variant(case: Mapping[str, Any], label: str, gpu: str | None) -> driver.Build:
    """Compile a variant of a measured kernel; raise an error where the compiler refuses it."""
    kernel, constants = find_kernel(case)
    source = SourceFile(Path(kernel).name, (gpu_cases.ROOT / kernel).read_text(encoding="utf-8"))
    words = "" if label.startswith(BASE) else label.removesuffix(f" ({BASE})")
    return driver.build_kernel(source, replace(gpu_cases.options_of(words, constants), gpu=gpu), driver.Observer())


def find_sizes(kernel: str) -> dict[str, int]:
    """Return the sizes that a kernel of the workloads learns at launch."""
    return {name: int(size) for name, size in gpu_cases.gpu_inputs.SCALARS.get(kernel, {}).items() if size >= 1}


def read_decisions(built: driver.Build) -> dict[str, str]:
    """Return the decisions of a build that files of results record."""
    decisions = gpu_cases.describe_decisions(built)
    return {what: chosen for what, chosen in decisions.items() if chosen not in UNRECORDED.get(what, ())}


def find_kernel(case: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the file of a case's kernel, and the constants that it was compiled with."""
    held = case if "kernel" in case else case["parameters"]
    return held["kernel"], held["constants"]


def compile_case(case: Mapping[str, Any], gpu: str | None) -> dict[str, tuple[dict[str, str], float] | None]:
    """Return what `compile_variant` does of each measured variant of a case, by its label."""
    labels = [label for label in list_measured(case) if label != BASE]
    return {label: compile_variant(case, label, gpu) for label in (BASE, *labels)}


def list_measured(case: Mapping[str, Any]) -> dict[str, float]:
    """Return the microseconds of each variant that was right, by its label. The base was measured twice: its mean."""
    times = {label: one["us"] for label, one in case["variants"].items() if one.get("us") and not one.get("fault")}
    again = [times.pop(label) for label in list(times) if label.startswith(f"{BASE}, again")]
    return {**times, BASE: statistics.mean([times[BASE], *again])}


def read_workload(case: Mapping[str, Any], compiled: Mapping[str, tuple[dict[str, str], float] | None]) -> Workload:
    """Put together what was measured of a case and what the compiler decides and predicts today."""
    found, is_same = [], is_text_measured(case)
    for label, measured in list_measured(case).items():
        now = compiled[label]
        decisions = recorded_decisions(case, label)
        if decisions is None:
            decisions = {} if now is None else now[0]
        predicted = None if now is None or now[0] != decisions or not is_same else now[1]
        found.append(Variant(label, decisions, measured, predicted))
    base = compiled[BASE]
    assert base is not None, f"{case['name']} does not compile"
    alike = [one for one in found if is_same and one.is_decision and one.decisions == base[0]]
    decided = replace(alike[0], predicted=base[1]) if alike else None
    return Workload(case["name"], find_kernel(case)[0], base[0], tuple(found), decided, is_same)


def is_text_measured(case: Mapping[str, Any]) -> bool:
    """Return whether the kernel of a case has the text with which it was measured; True where that was not recorded."""
    held = case if "kernel" in case else case["parameters"]
    return "text" not in held or held["text"] == gpu_cases.digest_text(gpu_cases.ROOT / held["kernel"])


def recorded_decisions(case: Mapping[str, Any], label: str) -> dict[str, str] | None:
    """Return the decisions of a variant when it was measured; None where they were not recorded."""
    one = case["variants"][label]
    if "decisions" in one:
        return dict(one["decisions"])
    if "decisions" not in case:
        return None
    after = {**case["decisions"], **{what: pair[1] for what, pair in one.get("changed", {}).items()}}
    return {what: chosen for what, chosen in after.items() if chosen is not None}


# ---- what is counted -------------------------------------------------------------------------------------------------


def list_differences(workload: Workload) -> Iterator[tuple[Variant, Variant]]:
    """Yield today's variant with each other one whose measured time differs from its by more than `DIFFERENT`."""
    if workload.decided is not None:
        for other in workload.variants:
            if other.predicted is not None and abs(other.measured / workload.decided.measured - 1) > DIFFERENT:
                yield workload.decided, other


def list_pairs(workload: Workload) -> Iterator[tuple[Variant, Variant]]:
    """Yield any two variants whose measured times differ by more than `DIFFERENT`."""
    known = [variant for variant in workload.variants if variant.predicted is not None]
    for number, one in enumerate(known):
        for other in known[number + 1 :]:
            if abs(other.measured / one.measured - 1) > DIFFERENT:
                yield one, other


def is_ordered_rightly(one: Variant, other: Variant) -> bool:
    """True if the model, too, predicts the faster one to be faster."""
    if one.predicted is None or other.predicted is None or one.predicted == other.predicted:
        return False
    return (one.predicted < other.predicted) == (one.measured < other.measured)


@dataclass(frozen=True)
class Score:
    """Of some workloads: fractions of time lost (geometric mean and worst), of rightly predicted signs and orders, and
    the mean absolute error of predicted times."""

    workloads: int
    unmatched: int
    geometric_mean: float
    worst: float
    worst_name: str
    signs: int
    sign_right: float
    order_right: float
    mape: float


def count_score(workloads: Sequence[Workload]) -> Score:
    known = [(one.regret, one.name) for one in workloads if one.regret is not None]
    worst, name = max(known, default=(0.0, "–"))
    signs = [is_ordered_rightly(*pair) for one in workloads for pair in list_differences(one)]
    orders = [is_ordered_rightly(*pair) for one in workloads for pair in list_pairs(one)]
    errors = [abs(one.error) for one in workloads if one.error is not None]
    return Score(
        len(workloads), len(workloads) - len(known),
        statistics.geometric_mean([1 + regret for regret, _ in known]) - 1 if known else 0.0, worst, name,
        len(signs), statistics.mean(signs) if signs else 1.0, statistics.mean(orders) if orders else 1.0,
        statistics.mean(errors) if errors else 0.0,
    )  # fmt: skip


# ---- what is printed -------------------------------------------------------------------------------------------------


def list_lines(workloads: Sequence[Workload]) -> Iterator[str]:
    """Yield the table, the worst regret first, and what the fastest variant decides otherwise."""
    yield f"{'workload':44} {'measured':>9} {'best':>9} {'regret':>7} {'predicted':>9} {'error':>6}  the best is"
    for one in sorted(workloads, key=lambda one: -(one.regret or 0.0)):
        mark = "H" if one.is_held_out else " "
        if one.decided is None:
            yield f"{one.name[:42]:42} {mark} not measured with today's decisions: {describe_unmatched(one)}"
            continue
        predicted = "–" if one.decided.predicted is None else f"{one.decided.predicted:,.1f}"
        error = "–" if one.error is None else f"{one.error:+.0%}"
        best = one.best.label if one.regret else ""
        yield (
            f"{one.name[:42]:42} {mark} {one.decided.measured:9,.1f} {one.best.measured:9,.1f} {one.regret:7.1%} "
            f"{predicted:>9} {error:>6}  {best}"
        )


def describe_unmatched(workload: Workload) -> str:
    """Return where today's decisions differ from those of the measured variant that is nearest to them."""
    if not workload.is_same:
        return "the kernel's text is another one today"
    pairs = {one.label: list_changes(one.decisions, workload.today) for one in workload.variants if one.is_decision}
    nearest = min(pairs, key=lambda label: len(pairs[label]))
    return f"{nearest}, but {'; '.join(pairs[nearest])}"


def list_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = dict.fromkeys((*before, *after))
    return [f"{n}: {before.get(n)} → {after.get(n)}" for n in names if before.get(n) != after.get(n)]


def list_wrong_signs(workloads: Sequence[Workload]) -> Iterator[str]:
    """Yield each difference whose sign the model has wrong, the largest first."""
    wrong = [
        (abs(other.measured / base.measured - 1), one.name, base, other)
        for one in workloads
        for base, other in list_differences(one)
        if not is_ordered_rightly(base, other)
    ]
    for _, name, base, other in sorted(wrong, key=lambda row: -row[0]):
        said = "refused" if not (base.predicted and other.predicted) else f"{other.predicted / base.predicted:.2f}"
        yield f"{name[:42]:42} {other.label:42} measured {other.measured / base.measured:.2f}, predicted {said}"


def list_totals(workloads: Sequence[Workload]) -> Iterator[str]:
    halves = {
        "held out": [one for one in workloads if one.is_held_out],
        "others": [one for one in workloads if not one.is_held_out],
        "all": list(workloads),
    }
    for name, some in halves.items():
        found = count_score(some)
        yield (
            f"{name}: {found.workloads} workloads ({found.unmatched} not measured as decided today), "
            f"two variants in the right order in {found.order_right:.0%}, error of predicted times {found.mape:.0%}"
        )
        yield f"  geometric mean {found.geometric_mean:.1%}"
        yield f"  worst {found.worst:.1%} ({found.worst_name})"
        yield f"  sign right in {found.sign_right:.0%} of {found.signs}"


def find_newest() -> Path:
    """Return the newest file of workloads that were measured with other decisions, too."""
    files = sorted(RESULTS.glob("*-20??-??-??*/workloads.json"), key=lambda path: path.parent.name.partition("-")[2])
    return next(file for file in reversed(files) if has_alternatives(file))


def has_alternatives(file: Path) -> bool:
    """Return whether a file of measured workloads has more than one variant of some."""
    return any(len(case.get("variants", ())) > 1 for case in json.loads(file.read_text(encoding="utf-8"))["cases"])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="measured workloads (the newest of benchmarks/results)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="workloads whose name matches")
    parser.add_argument("--all", action="store_true", help="also variants of what the compiler does not decide")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all of it here")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="compile in so many processes (2)")
    given = parser.parse_args(words)
    file = given.file or find_newest()
    results = json.loads(file.read_text(encoding="utf-8"))
    cases = [
        case
        for case in results["cases"]
        if fnmatch.fnmatch(case["name"], given.only) and not case["fault"] and case.get("variants")
    ]
    if not given.all:
        for case in cases:
            case["variants"] = {label: one for label, one in case["variants"].items() if is_decision(label)}
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        compiled = list(pool.map(partial(compile_case, gpu=gpu_of(results)), cases))
    workloads = [read_workload(case, known) for case, known in zip(cases, compiled, strict=True)]
    print(f"{file}: {len(workloads)} workloads, {sum(len(one.variants) for one in workloads)} variants")
    for line in (*list_lines(workloads), "", "signs that the model has wrong:", *list_wrong_signs(workloads), ""):
        print(line)
    for line in list_totals(workloads):
        print(line)
    if given.json:
        rows = [asdict(one) for one in workloads]
        name = os.path.relpath(file, gpu_cases.ROOT)  # the same on every machine
        given.json.write_text(json.dumps({"file": name, "workloads": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
