"""Solves modulo-scheduling problems from a folder, and those of every loop in samples/, and prints what was proven and
how long it took.

    python benchmarks/scheduler.py [FOLDER [PATTERN]]

Each file is JSON: either the problems of a kernel as `tilec --emit problem` writes them, or one in the exchange form
(name, ops with one resource and a duration, edges as [src, dst, latency, distance], limits per resource). A file may
state the best known II as {"best": {"ii": …}}; it is printed beside ours, with the II of iterative modulo scheduling
and of the best heuristic arm (`--scheduler=heuristic`). Seconds are the smallest of three runs, import excluded: by
the clock, and of the processor, which are nearer the truth on a machine that does other things. A folder that is not
there is skipped. Exits with 1 if a schedule does not hold, if its II is larger than the best known or, where one is
known, not proven, or if a heuristic beats a proof.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

from tilec.driver import build as driver
from tilec.sched.explain import explain_solution
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.sched.solve import solve_problem
from tilec.sched.text import problems_from_json
from tilec.sched.verify import find_violations
from tilec.support import files
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions

RUNS = 3
SAMPLES = Path(__file__).parents[1] / "samples"
TARGETS = ("sm_90a", "sm_100a", "sm_80")


def timed(problem: Problem) -> tuple[Solution, float, float]:
    """The solution, seconds by the clock and of the processor."""
    wall = processor = float("inf")
    for _ in range(RUNS):
        start, busy = time.perf_counter(), time.process_time()
        solution = solve_problem(problem)
        wall, processor = min(wall, time.perf_counter() - start), min(processor, time.process_time() - busy)
    return solution, wall, processor


def report(problem: Problem, known: int | None) -> bool:
    """Prints a line; says whether all is well."""
    title = f"{problem.name:44} {len(problem.ops):4}"
    try:
        solution, wall, processor = timed(problem)
    except Unschedulable as error:
        print(f"{title} unschedulable: {error.reason}")
        return False
    ii, status = solution.schedule.ii, solution.schedule.status
    by_heuristics = explain_solution(problem, solve_problem(problem, scheduler="heuristic"))
    modulo = next((trial.ii for trial in by_heuristics.trials if trial.arm == "modulo"), None)
    best = by_heuristics.schedule.ii
    broken = [*find_violations(problem, solution.schedule), *find_violations(problem, by_heuristics.schedule)]
    if best < ii and status == "optimal":
        broken.append(f"a heuristic reaches {best}, below what was proven")
    is_worse = known is not None and (ii > known or status != "optimal")
    remark = f"  {broken[0]}" if broken else "  worse than known, or not proven" if is_worse else ""
    numbers = f"{solution.bounds.mii:6} {ii:6} {known or '':>6}  {status:9} {modulo or '–':>6} {best:6}"
    print(f"{title} {numbers} {wall:8.3f} {processor:8.3f}{remark}", flush=True)
    return not broken and not is_worse


def sampled() -> list[tuple[Problem, int | None]]:
    """Return the problem of each pipelined loop of the samples, compiled for the first of `TARGETS` that has them."""
    problems = []
    for path in sorted(SAMPLES.rglob("*.tl")):
        for target in TARGETS:
            with suppress(CompileError):
                plan = driver.plan_kernel(
                    files.read_source(str(path)), CompileOptions(target=target), driver.Observer()
                )
                problems += [(loop.loop.problem, None) for loop in plan.loops]
                break
    return problems


def main(folder: Path | None, pattern: str) -> int:
    # Once, so that no problem is charged for loading the solver.
    solve_problem(Problem("warm-up", (), (), ()))
    heads = f"{'MII':>6} {'II':>6} {'known':>6}  {'proof':9} {'modulo':>6} {'arms':>6} {'seconds':>8} {'cpu':>8}"
    print(f"{'problem':44} {'ops':>4} {heads}")
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
