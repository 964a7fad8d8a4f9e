"""Compare what `tilec simulate` says with measured times: each workload as the compiler decides it today.

    python benchmarks/simulate_error.py OUT.jsonl [FILE] [--only PATTERN]… [--limit SECONDS]

FILE holds measured workloads (the newest `workloads.json` of benchmarks/results). OUT.jsonl gets a line for each
workload, and those that it has already are not simulated again: delete it, or some of its lines, after a change. A
simulation that takes longer than the limit (60 s of processor time) is given up, and its line says so.

Workloads whose decisions of today were not measured are left out. Measured times are between two events, so that the
target's launch is added to the simulated ones. The replay reads numbers of tensors where they decide how long loops run
or which bytes are loaded; they are made by the recipes of the measurement. H marks a workload that is held out: no
constant may be fitted to it.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import gpu_cases
import gpu_inputs
import numpy as np
import regret
from model import gpu_of
from regret import BASE

from tilec.driver import build as driver, simulate
from tilec.simulate.grid import Simulation
from tilec.simulate.text import measure_busy_units
from tilec.support.diagnostics import CompileError
from tilec.target.table import Target, load_target

sys.path.insert(0, str(gpu_cases.ROOT / "docs"))

from model_picture import CLASSES

SHOWN_UNITS = 3


class TooLongError(Exception):
    """A simulation takes longer than the limit."""


# ---- one workload ----------------------------------------------------------------------------------------------------


def make_contents(case: Mapping[str, Any], built: driver.Build) -> dict[str, int | tuple[int, ...]]:
    """Return the elements of the tensors of 32-bit integers that a kernel reads: lengths, lists and places in memory.
    Those that were random in the measurement are other random numbers here."""
    kernel, constants = regret.find_kernel(case)
    found = gpu_inputs.known_contents(kernel, constants)
    recipes = gpu_inputs.recipes(kernel, constants)
    generator = np.random.default_rng(0)
    for tensor in built.manifest.tensors:
        recipe = recipes.get(tensor.name, {})
        if tensor.role != "in" or not tensor.dtype.endswith("int32") or tensor.name in found:
            continue
        shape = [size for size in tensor.shape if isinstance(size, int)]
        if recipe.get("make") == "integers":
            drawn = generator.integers(recipe["low"], recipe["high"], np.prod(shape))
        elif recipe.get("make") == "lists":
            rows = int(np.prod(shape[:-1]))
            drawn = generator.random((rows, recipe["of"])).argsort(-1)[:, : shape[-1]].ravel()
        else:
            continue
        found[tensor.name] = tuple(drawn.tolist())
    return found


def simulate_workload(case: Mapping[str, Any], target: Target, limit: float) -> dict[str, Any]:
    """Return the line of a workload: measured and simulated microseconds, or why it has none."""
    kernel, _ = regret.find_kernel(case)
    line: dict[str, Any] = {"name": case["name"], "kernel": kernel, "held_out": is_held_out(kernel)}
    try:
        built = regret.build_variant(case, BASE, target.gpu)
    except CompileError as error:
        return {**line, "left_out": error.diagnostics[0].title}
    refused = dict.fromkeys(regret.list_measured(case))
    known = regret.read_workload(case, {**refused, BASE: (regret.read_decisions(built), 0.0)})
    if known.decided is None:
        return {**line, "left_out": f"not measured with today's decisions: {regret.describe_unmatched(known)}"}
    start = time.process_time()
    try:
        with_limit(limit)
        found = simulate.simulate_build(
            built, target, sizes=regret.find_sizes(kernel), contents=make_contents(case, built)
        )
    except TooLongError:
        return {**line, "left_out": f"the simulation takes more than {limit:.0f} s"}
    finally:
        with_limit(0)
    return {
        **line, "measured": known.decided.measured, **describe_simulation(found, target),
        "seconds": round(time.process_time() - start, 1),
    }  # fmt: skip


def is_held_out(kernel: str) -> bool:
    """Return whether no constant may be fitted to workloads of this kernel."""
    return regret.Workload("", kernel, {}, (), None).is_held_out


def with_limit(seconds: float) -> None:
    """Raise `TooLongError` after so many seconds of processor time; 0 takes the limit away."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def describe_simulation(found: Simulation, target: Target) -> dict[str, Any]:
    """Return what a line says of a simulation."""
    launch = target.find_limit("launch_cycles") / target.limit("clock_mhz")
    return {
        "simulated": found.seconds * 1e6 + launch, "cycles": found.cycles, "waves": found.waves,
        "busy": {unit: round(part, 3) for unit, part in measure_busy_units(found)[:SHOWN_UNITS]},
        "clock": found.clock_mhz,
        "missing": round(found.missed / max(found.loaded, 1), 3), "notes": found.notes,
    }  # fmt: skip


# ---- all of them -----------------------------------------------------------------------------------------------------


def find_class(kernel: str) -> str:
    """Return the class of workloads that a kernel is of, as docs/cost-model.md counts them."""
    return next(name for name, begins in CLASSES if kernel.startswith(begins))


def list_errors(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of workloads, worst first, the mean errors by class, and what is left out."""
    known = [line for line in lines if "simulated" in line]
    errors = {line["name"]: line["simulated"] / line["measured"] - 1 for line in known}
    yield f"{'workload':44} {'measured':>9} {'simulated':>9} {'error':>6}  busy"
    for line in sorted(known, key=lambda line: -abs(errors[line["name"]])):
        busy = ", ".join(f"{unit} {part:.0%}" for unit, part in line["busy"].items())
        mark = "H" if line["held_out"] else " "
        yield (
            f"{line['name'][:42]:42} {mark} {line['measured']:9,.1f} {line['simulated']:9,.1f} "
            f"{errors[line['name']]:+6.0%}  {busy}"
        )
    for title, some in (
        *((name, [line for line in known if find_class(line["kernel"]) == name]) for name, _ in CLASSES),
        ("held out", [line for line in known if line["held_out"]]),
        ("all", known),
    ):
        if some:
            own = [errors[line["name"]] for line in some]
            mean, signed = statistics.mean(map(abs, own)), statistics.mean(own)
            yield f"{title}: {len(some)} workloads, mean error {mean:.1%}, of which too high {signed:+.1%}"
    for line in lines:
        if "left_out" in line:
            yield f"left out: {line['name']}: {line['left_out']}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, help="a line of JSON for each workload is added here")
    parser.add_argument("file", type=Path, nargs="?", help="measured workloads (the newest of benchmarks/results)")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="workloads whose name matches")
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="the longest simulation (60)")
    given = parser.parse_args(words)
    results = json.loads((given.file or regret.find_newest()).read_text(encoding="utf-8"))
    target = load_target(gpu_cases.TARGET, gpu=gpu_of(results))
    patterns = given.only or ["*"]
    wanted = [
        case
        for case in results["cases"]
        if not case["fault"] and case.get("variants") and any(fnmatch.fnmatch(case["name"], one) for one in patterns)
    ]
    known = read_lines(given.out)
    for case in wanted:
        if case["name"] not in known:
            known[case["name"]] = line = simulate_workload(case, target, given.limit)
            with given.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
    for text in list_errors([known[case["name"]] for case in wanted]):
        print(text)
    return 0


def read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Return the lines that a file has already, by the names of their workloads."""
    texts = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line["name"]: line for line in map(json.loads, texts)}


if __name__ == "__main__":
    sys.exit(main())
