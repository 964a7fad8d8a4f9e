"""CPU time to compile each sample for each target, and how many times that of the GEMM sample it is.

    python benchmarks/compile_samples.py [--repeat 3] [--only attention] [--json FILE]

Every measurement is a process of its own, from fork to exit. Solve: schedules have to be found; warm: they are known.
The smallest of the repetitions counts, which take turns over all samples, so that a busy moment hits them all alike: a
machine's load and speed are in the seconds, and hardly in the ratios. A sample that a target refuses is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from compile_time import ROOT, caches, machine, run, tilec

TARGETS = ("sm_80", "sm_90a", "sm_100a")
GEMM = "gemm"

Key = tuple[str, str, str]
"""Sample, target, and `solve` or `warm`."""


def measure(only: str, repeat: int) -> dict[Key, float]:
    """The smallest CPU seconds of each."""
    folder = ROOT / "samples"
    names = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.tl"))
    least: dict[Key, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        environment = caches(Path(scratch) / "kept")
        commands = {}
        for target in TARGETS:
            compiler = tilec(sys.executable, target)
            environment |= dict(compiler.environment)
            for name in (name for name in names if only in name or name == GEMM):
                file = str(folder / f"{name}.tl")
                command = (*compiler.start[:-1], file, "--target", target, "-Wno-all", "-o", str(out))
                # Fills the cache, and the page cache; says which samples the target has.
                if subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0:
                    commands[name, target] = command
        for _ in range(repeat):
            for (name, target), command in commands.items():
                for state, option in (("solve", ("--no-cache",)), ("warm", ())):
                    _, cpu, _ = run((*command, *option), environment, out)
                    key = name, target, state
                    least[key] = min(cpu, least.get(key, cpu))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", metavar="TEXT", help="samples whose names have this, and the GEMM")
    parser.add_argument("--json", metavar="FILE", help="also write the results here")
    asked = parser.parse_args()

    load = os.getloadavg()[0]
    least = measure(asked.only, asked.repeat)
    results = []
    print(f"{'sample':36} {'target':8} {'solve s':>8} {'× GEMM':>7} {'warm s':>8} {'× GEMM':>7}")
    for name, target in dict.fromkeys((name, target) for name, target, _ in least):
        seconds = {state: least[name, target, state] for state in ("solve", "warm")}
        ratio = {state: seconds[state] / least[GEMM, target, state] for state in seconds}
        said = " ".join(f"{seconds[state]:8.2f} {ratio[state]:7.2f}" for state in seconds)
        print(f"{name:36} {target:8} {said}")
        row = {state: {"cpu": round(seconds[state], 3), "times_gemm": round(ratio[state], 2)} for state in seconds}
        results.append({"sample": name, "target": target, **row})
    if asked.json:
        record = {"machine": machine(load), "repeat": asked.repeat, "results": results}
        Path(asked.json).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
