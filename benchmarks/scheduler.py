"""Solves modulo-scheduling problems from a folder and prints what was proven and how long it took.

    python benchmarks/scheduler.py FOLDER [PATTERN]

Each file is JSON: either the problems of a kernel as `tilec --emit problem` writes them, or one in the exchange form
(name, ops with one resource and a duration, edges as [src, dst, latency, distance], limits per resource). A file may
state the best known II as {"best": {"ii": …}}; it is printed beside ours. Seconds are the smallest of three runs,
import excluded.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tilec.sched.bounds import Unschedulable
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.sched.solve import solve
from tilec.sched.text import problems_from_json
from tilec.sched.verify import violations

RUNS = 3


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
    is_worse = known is not None and ii > known
    remark = f"  {broken[0]}" if broken else "  worse than known" if is_worse else ""
    print(f"{title} {solution.bounds.mii:6} {ii:6} {known or '':>6}  {status:9} {seconds:8.3f}{remark}")
    return not broken and not is_worse


def main(folder: Path, pattern: str) -> int:
    # Once, so that no problem is charged for loading the solver.
    solve(Problem("warm-up", (), (), ()))
    print(f"{'problem':44} {'ops':>4} {'MII':>6} {'II':>6} {'known':>6}  {'proof':9} {'seconds':>8}")
    found = [
        problem
        for path in sorted(folder.glob(pattern))
        for problem in problems_from_json(json.loads(path.read_text(encoding="utf-8")))
    ]
    wrong = sum(not report(problem, known) for problem, known in found)
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) == 3 else "*.json"))
