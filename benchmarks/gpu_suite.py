"""Everything that one asks a GPU, in twelve minutes: what is wrong, and what has changed since the last time.

    python benchmarks/gpu_cases.py FOLDER --suite                         # first, anywhere: compiles all of it
    python benchmarks/gpu_suite.py FOLDER [--out RESULTS] [--only STAGE …] [--against FOLDER] [--dry]

Stages run in order, each within its seconds and with what those before it left: every sample; random kernels; forms of
kernels that are not measured yet; workloads at real sizes, each with other decisions too; kernels beside those of
libraries; the figures that target files rest on; and profiles, by Nsight Compute, of the ten kernels that are farthest
behind. Everything is saved in RESULTS after every case. A stage whose folder is not there is left out, so a suite may
be carried in parts, and run in several calls: profiles are of the results that are in RESULTS. At the end stands one
page.

Here are needed numpy, PyTorch, cuda-python's bindings, click and rich; Triton and `ncu` only if they are to take part.
`--dry` needs no GPU: it reads all that is in the folder, and says what would run.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpu
from gpu_case import Case, cubins, read_cases

sys.path.insert(0, str(Path(__file__).parents[1]))

from tilec.ir.manifest import extract_from_cubin

ROOT = Path(__file__).parents[1]
SECONDS = {
    "samples": 60, "drawn": 90, "candidates": 50, "workloads": 180, "libraries": 150, "calibration": 110,
    "profiles": 80,
}  # fmt: skip
"""Of each stage, in the order in which they run: twelve minutes."""
OF_CASES = ("samples", "drawn", "candidates", "workloads", "libraries")
REPEATS = {"candidates": 20, "workloads": 20, "libraries": 30}
PROBE_REPEATS = 5
WORST = 10
"""So many kernels are profiled."""
PROFILE_SECONDS = 40
ON_PURPOSE = ("ladder", "ablation")
"""Groups whose kernels are slow to show what a decision is worth."""
CHANGED = 1.03
"""A time that differs by less from the last one's is the same."""
LINES = 12
"""Of a section of the page."""
RESULTS = ROOT / "benchmarks" / "results"


# ---- the stages ------------------------------------------------------------------------------------------------------


def run_cases(folder: Path, out: Path, stage: str, pattern: str, deadline: float, seed: int) -> dict[str, Any]:
    """Run a stage of cases, and return what `gpu.py` knows of them."""
    cases = gpu.ordered([case for case in read_cases(folder / stage) if fnmatch.fnmatch(case.name, pattern)])
    asked = {"repeat": REPEATS.get(stage, 1), "seed": seed, "alone": False}
    record = gpu.Record(asked, gpu.machine(), cases, out / f"{stage}.json")
    gpu.run_all(folder / stage, record, deadline)
    record.save()
    return read(out / f"{stage}.json")


def run_calibration(folder: Path, out: Path, deadline: float) -> list[str]:
    """Measure the probes, and return what the command says of those that were not measured or whose fit is refused."""
    command = [sys.executable, "-m", "tilec", "calibrate", "--cubins", str((folder / "calibration").resolve())]
    command += ["--json", str((out / "calibration.json").resolve()), "--repeats", str(PROBE_REPEATS)]
    done = ended(command, deadline - time.monotonic())
    if done is None:
        return ["calibration is out of time: what was measured is in calibration.json"]
    said = [line for line in done.stdout.splitlines() if line.startswith(("not measured: ", "refused: "))]
    return said + (done.stderr.strip().splitlines()[-3:] if done.returncode else [])


def ended(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str] | None:
    """Run a command, and end it with all its children after so many seconds; then return nothing."""
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=max(seconds, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None
    return subprocess.CompletedProcess(list(command), process.returncode, out, errors)


def run_profiles(folder: Path, out: Path, chosen: Sequence[str], deadline: float) -> list[str]:
    """Profile these cases, and return a line for each that has no profile."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return ["no profiles: there is no ncu on the path"]
    found = {case.name: (stage, case) for stage in ("workloads", "libraries") for case in cases_of(folder, stage)}
    (out / "profiles").mkdir(exist_ok=True)
    missing = []
    for name in chosen:
        left = deadline - time.monotonic()
        if left <= 1:
            missing.append(f"no profile of {name}: out of time")
            continue
        stage, case = found[name]
        said = profile(
            ncu, folder / stage, case, out / "profiles" / f"{file_name(name)}.csv", min(left, PROFILE_SECONDS)
        )
        if said:
            missing.append(f"no profile of {name}: {said}")
    return missing


def profile(ncu: str, folder: Path, case: Case, file: Path, seconds: float) -> str:
    """Write what Nsight Compute says of a case's launches, for `tilec compare`; return why there is nothing."""
    entries = [entry.entry for cubin in own_cubins(folder, case) for entry in extract_from_cubin(cubin)]
    command = [ncu, "--csv", "--page", "raw", "--set", "full", "--clock-control", "none", "--target-processes", "all"]
    command += ["--kernel-name", f"regex:^({'|'.join(map(re.escape, entries))})$", "--launch-count", str(len(entries))]
    command += [sys.executable, str(gpu.CHILD), "--once", str(folder.resolve()), case.name]
    done = ended(command, seconds)
    if done is None:
        return f"it took more than {seconds:.0f} s"
    if '"ID"' not in done.stdout:
        said = [*done.stdout.strip().splitlines(), *done.stderr.strip().splitlines()]
        return said[-1] if said else f"ncu ended with code {done.returncode}"
    file.write_text(done.stdout, encoding="utf-8")
    return ""


def own_cubins(folder: Path, case: Case) -> list[bytes]:
    """The cubins that make up one run of a case."""
    return cubins(folder, case)[:1] if case.kind == "variants" else cubins(folder, case)


def cases_of(folder: Path, stage: str) -> list[Case]:
    return read_cases(folder / stage) if (folder / stage / "cases.json").exists() else []


def file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


# ---- what the results say --------------------------------------------------------------------------------------------


def by_name(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {case["name"]: case for case in results.get("cases", ())}


def ours(case: Mapping[str, Any]) -> float:
    """Milliseconds of what the compiler decided; 0 where there is no time."""
    return float(case.get("milliseconds", {}).get("tilec", {}).get("median", 0.0))


def behind(case: Mapping[str, Any]) -> tuple[float, str]:
    """How many times as long a case takes as the best that is known, and what that is: a library, another decision."""
    others = {name: time["median"] for name, time in case.get("milliseconds", {}).items() if name != "tilec"}
    others |= {
        label: one["us"] / 1000 for label, one in case.get("variants", {}).items() if one.get("us") and not one["fault"]
    }
    if not ours(case) or not others:
        return 1.0, ""
    best = min(others, key=lambda name: others[name])
    return ours(case) / others[best], best


def worst(results: Mapping[str, Mapping[str, Any]], most: int = WORST) -> list[str]:
    """The cases that are farthest behind, in order, but for those that are so on purpose."""
    known = {
        case["name"]: behind(case)[0]
        for of_stage in results.values()
        for case in of_stage.get("cases", ())
        if ours(case) and case.get("group") not in ON_PURPOSE
    }
    return sorted(known, key=lambda name: -known[name])[:most]


def faults(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong, and what was not run."""
    found = []
    for stage, of_stage in results.items():
        for case in of_stage.get("cases", ()):
            if case["fault"]:
                found.append(f"WRONG {case['name']}: {case['fault']}")
            found += [
                f"WRONG {case['name']}, {label}: {one['fault']}"
                for label, one in case.get("variants", {}).items() if one["fault"] and not case["fault"]
            ]  # fmt: skip
        if left := of_stage.get("not_run", ()):
            found.append(f"{stage}: {len(left)} not run for want of time, from {left[0]}")
    return found


def changes(now: Mapping[str, Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is right or wrong otherwise than it was, then times, the largest change first."""
    verdicts, times = [], []
    for stage, of_stage in now.items():
        then = by_name(before.get(stage, {}))
        for name, case in by_name(of_stage).items():
            if name not in then:
                continue
            if bool(case["fault"]) != bool(then[name]["fault"]):
                verdicts.append(f"{name}: {'wrong now, was right' if case['fault'] else 'right now, was wrong'}")
            a, b = ours(case), ours(then[name])
            if a and b and max(a / b, b / a) > CHANGED:
                words = f"{a / b:.2f} times the time" if a > b else f"{b / a:.2f} times as fast"
                times.append((max(a / b, b / a), f"{name}: {1000 * b:.4g} µs → {1000 * a:.4g} µs, {words}"))
    return verdicts + [line for _, line in sorted(times, reverse=True)]


def figure_changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    found = []
    for name, runs in now.get("figures", {}).items():
        a, b = statistics.median(runs), statistics.median(before.get("figures", {}).get(name, runs))
        if a != b and (min(a, b) <= 0 or max(a / b, b / a) > CHANGED):
            found.append(f"{name}: {b:.4g} → {a:.4g}")
    return found


def summary(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for stage, of_stage in results.items():
        cases = of_stage.get("cases", ())
        right = sum(not case["fault"] for case in cases)
        lines.append(f"{stage}: {right} of {len(cases) + len(of_stage.get('not_run', ()))} right")
    return lines


def ranking(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    known = {case["name"]: case for of_stage in results.values() for case in of_stage.get("cases", ())}
    pairs = [(name, *behind(known[name])) for name in worst(results)]
    return [f"{name}: {times:.2f} times as long as {best}" for name, times, best in pairs if times > CHANGED]


def page(
    results: Mapping[str, Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]], remarks: Sequence[str],
    seconds: float, where: str,
) -> str:  # fmt: skip
    """One page: what is wrong, what changed, what is farthest behind."""
    cased = {stage: of_stage for stage, of_stage in results.items() if stage in OF_CASES}
    machine = next((of_stage["machine"] for of_stage in cased.values() if of_stage.get("machine")), {})
    then = next((of_stage["machine"] for of_stage in before.values() if of_stage.get("machine")), {})
    head = f"{machine.get('name', 'no name')}, driver {machine.get('driver_version', '?')}, {seconds:.0f} s"
    lines = [head, "; ".join(summary(cased))]
    lines += section("wrong", [*faults(cased), *remarks])
    title = f"changed since {then.get('date', '?')} ({then.get('name', '?')})" if before else "no earlier results"
    figures = figure_changes(results.get("calibration", {}), before.get("calibration", {}))
    lines += section(title, changes(cased, before))
    lines += section("figures that changed", figures)
    lines += section("farthest behind", ranking(cased))
    return "\n".join([*lines, f"all of it is in {where}"])


def section(title: str, lines: Sequence[str]) -> list[str]:
    more = [f"  and {len(lines) - LINES} more"] if len(lines) > LINES else []
    return [f"{title}:", *(f"  {line[:160]}" for line in lines[:LINES]), *more] if lines else [f"{title}: nothing"]


# ---- the command -----------------------------------------------------------------------------------------------------


def dry(folder: Path, stages: Sequence[str], pattern: str, note: Callable[[str], None] = print) -> None:
    """Read everything that the stages would, without a GPU. Raises where a file is missing or is another build's."""
    for stage in stages:
        if stage in OF_CASES:
            cases = [case for case in cases_of(folder, stage) if fnmatch.fnmatch(case.name, pattern)]
            kernels = [
                entry for case in cases for cubin in cubins(folder / stage, case) for entry in extract_from_cubin(cubin)
            ]
            for case in cases:
                if case.arrays and not (folder / stage / case.arrays).exists():
                    raise FileNotFoundError(f"{case.name} has no arrays in {folder / stage}")
            note(f"{stage}: {len(cases)} cases, {len(kernels)} kernels, {SECONDS[stage]} s")
        elif stage == "calibration":
            count = len(list((folder / stage).glob("*.cubin")))
            note(f"{stage}: {count} probes, {SECONDS[stage]} s")
        else:
            note(f"{stage}: of the {WORST} that are farthest behind, {SECONDS[stage]} s")


def latest(but: Path) -> Path | None:
    """The newest folder of results of a GPU."""
    dated = [path for path in RESULTS.glob("*-20??-??-??") if path.is_dir() and path.resolve() != but.resolve()]
    return max(dated, key=lambda path: path.name[-10:], default=None)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="where results go (FOLDER/results)")
    parser.add_argument("--only", nargs="+", choices=tuple(SECONDS), default=tuple(SECONDS), metavar="STAGE")
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="cases whose name matches")
    parser.add_argument("--against", type=Path, help="earlier results (the newest of benchmarks/results)")
    parser.add_argument("--seconds", type=float, default=sum(SECONDS.values()), help="of all stages (720)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="of the inputs")
    parser.add_argument("--dry", action="store_true", help="read everything, run nothing")
    given = parser.parse_args(words)
    out = given.out or given.folder / "results"
    stages = [
        stage for stage in SECONDS if stage in given.only and (stage == "profiles" or (given.folder / stage).is_dir())
    ]
    if given.dry:
        dry(given.folder, stages, given.cases)
        return 0
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    out.mkdir(parents=True, exist_ok=True)
    against = given.against or latest(out)
    before = {} if against is None else {stage: read(against / f"{stage}.json") for stage in SECONDS}
    results: dict[str, dict[str, Any]] = {}
    remarks: list[str] = []
    began = time.monotonic()
    end = began + given.seconds
    allowed = began
    for stage in stages:
        allowed += SECONDS[stage]  # what a stage does not need is the next one's
        deadline = min(allowed, end)
        try:
            if stage in OF_CASES:
                results[stage] = run_cases(given.folder, out, stage, given.cases, deadline, given.seed)
            elif stage == "calibration":
                remarks += run_calibration(given.folder, out, deadline)
                results[stage] = read(out / "calibration.json")
            else:
                known = {stage: results.get(stage) or read(out / f"{stage}.json") for stage in OF_CASES}
                remarks += run_profiles(given.folder, out, worst(known), deadline)
        except gpu.NoGpu as missing:
            print(f"{stage}: {missing}")
            return 1
        text = page(results, {k: v for k, v in before.items() if v}, remarks, time.monotonic() - began, str(out))
        (out / "page.txt").write_text(text + "\n", encoding="utf-8")
    print((out / "page.txt").read_text(encoding="utf-8"), end="")
    return 1 if faults({stage: results[stage] for stage in OF_CASES if stage in results}) else 0


if __name__ == "__main__":
    sys.exit(main())
