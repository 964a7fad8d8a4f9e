"""Solves modulo-scheduling problems from a folder, and those of every loop in samples/, and prints what was proven and
how long it took.

    python benchmarks/scheduler.py [FOLDER [PATTERN]]

Each file is JSON: either the problems of a kernel as `tilec --emit problem` writes them, or one in the exchange form
(name, ops with one resource and a duration, edges as [src, dst, latency, distance], limits per resource). A file may
state the best known II as {"best": {"ii": …}}; it is printed beside ours. Seconds are the smallest of three runs,
import excluded. A folder that is not there is skipped. Exits with 1 if a schedule does not hold, or its II is larger
than the best known or, where one is known, not proven.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tilec import driver, files
from tilec.options import CompileOptions
from tilec.sched.bounds import Unschedulable
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.sched.solve import solve
from tilec.sched.text import problems_from_json
from tilec.sched.verify import violations

RUNS = 3
SAMPLES = Path(__file__).parents[1] / "samples"


def timed(problem: Problem) -> tuple[Solution, float]:
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        solution = solve(problem)
        best = min(best, time.perf_counter() - start)
    return solution, best


def report(problem: Problem, known: int | None) -> bool:
    """Prints a line; says whether all is well."""
    title = f"{problem.name:44} {len(problem.ops):4}"
    try:
        solution, seconds = timed(problem)
    except Unschedulable as error:
        print(f"{title} unschedulable: {error.reason}")
        return False
    ii, status = solution.schedule.ii, solution.schedule.status
    broken = list(violations(problem, solution.schedule))
    is_worse = known is not None and (ii > known or status != "optimal")
    remark = f"  {broken[0]}" if broken else "  worse than known, or not proven" if is_worse else ""
    print(f"{title} {solution.bounds.mii:6} {ii:6} {known or '':>6}  {status:9} {seconds:8.3f}{remark}")
    return not broken and not is_worse


def sampled() -> list[tuple[Problem, int | None]]:
    """The problem of every pipelined loop of the samples, compiled as they stand."""
    problems = []
    for path in sorted(SAMPLES.glob("*.tl")):
        plan = driver.plan(files.read_source(str(path)), CompileOptions(), driver.Observer())
        problems += [(loop.loop.problem, None) for loop in plan.loops]
    return problems


def main(folder: Path | None, pattern: str) -> int:
    # Once, so that no problem is charged for loading the solver.
    solve(Problem("warm-up", (), (), ()))
    print(f"{'problem':44} {'ops':>4} {'MII':>6} {'II':>6} {'known':>6}  {'proof':9} {'seconds':>8}")
    paths = [] if folder is None else sorted(folder.glob(pattern))
    found = [p for path in paths for p in problems_from_json(json.loads(path.read_text(encoding="utf-8")))]
    found += sampled()
    wrong = sum(not report(problem, known) for problem, known in found)
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit(__doc__)
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    sys.exit(main(given, sys.argv[2] if len(sys.argv) == 3 else "*.json"))
