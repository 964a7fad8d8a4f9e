"""`tilec schedule --problem`: solve scheduling problems from a file, without a kernel."""

from __future__ import annotations

import json
import time
from math import inf
from typing import Any

from tilec.sched.bounds import Unschedulable
from tilec.sched.budget import Budget
from tilec.sched.cp import load_solver
from tilec.sched.explain import explained
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.sched.solve import Scheduler, solve
from tilec.sched.text import TextError, problems_from_json
from tilec.sched.trace import trace
from tilec.support import files, progress, readers
from tilec.support.diagnostics import fail
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """The outputs: one line of JSON instead of tables, a file for the schedules, and a page that draws them."""

    as_json: bool
    output: str | None
    html: str | None


def solve_file(path: str, wanted: Wanted, seconds: float | None, scheduler: Scheduler) -> None:
    """Solve each problem of the file, print the results and write them. With a limit of `seconds` for each problem the
    results depend on the clock."""
    files.check_outputs([out for out in (wanted.output, wanted.html) if out is not None], [path])
    problems, is_list = problems_of(files.read_text(path), path)
    load_solver()  # not part of the seconds
    solved = [(problem, _solved(problem, seconds, scheduler, wanted.as_json)) for problem in problems]
    written: dict[str, bytes] = {}
    if wanted.output is not None:
        records = [_record(problem, solution) for problem, solution in solved]
        text = json.dumps(records if is_list else records[0], indent=1, ensure_ascii=False)
        written[wanted.output] = f"{text}\n".encode()
    if wanted.html is not None:
        from tilec.report.viewer import page

        written[wanted.html] = page([trace(solved)["tilec"]]).encode()
    files.write_all(written)


def problems_of(text: str, path: str) -> tuple[list[Problem], bool]:
    """Return the problems in a file, and whether they are in an array."""
    try:
        value = readers.json_value(text)
    except ValueError as error:
        fail("bad-problem", f"{path} is not JSON: {error}")
    try:
        return [problem for problem, _ in problems_from_json(value)], isinstance(value, list)
    except TextError as error:
        fail("bad-problem", f"{path} is no scheduling problem: {error}")


def _solved(problem: Problem, seconds: float | None, scheduler: Scheduler, as_json: bool) -> Solution:
    """Solve a problem and print the result."""
    began = time.monotonic()
    try:
        limit = inf if seconds is None else seconds
        budget = Budget(None, lambda: began + limit - time.monotonic(), lambda ii: progress.refine(f"interval {ii}"))
        with progress.doing(f"solving {problem.name}"):
            solution = solve(problem, budget=budget, scheduler=scheduler)
        found = time.monotonic()
        with progress.doing(f"why {problem.name} has no better schedule"):
            solution = explained(problem, solution, budget)
    except Unschedulable as refusal:
        fail("unschedulable", f"no schedule of {problem.name} exists: {refusal.reason}")
    spent = round(found - began, 4)
    schedule = solution.schedule
    is_proven = schedule.status == "optimal"
    line = {"name": problem.name, "ii": schedule.ii, "mii": solution.bounds.mii, "proven": is_proven, "seconds": spent}
    if as_json:
        print(json.dumps(line, ensure_ascii=False))
    else:
        proof = "proven optimal" if is_proven else "not proven optimal"
        print(f"{problem.name}: II {schedule.ii} cycles, {proof}, MII {solution.bounds.mii}, {spent:.3f} s\n")
        from tilec.cli.console import console, show_tables
        from tilec.report.tables import schedule_tables

        show_tables(schedule_tables(problem, solution, console().width))
    return solution


def _record(problem: Problem, solution: Solution) -> dict[str, Any]:
    """Return the schedule as JSON, with ops by their index in the file. It has no times, so that equal problems without
    a limit give equal bytes."""
    schedule = solution.schedule
    return {
        "name": problem.name,
        "ii": schedule.ii,
        "mii": solution.bounds.mii,
        "proven": schedule.status == "optimal",
        "status": schedule.status,
        "start": list(schedule.start),
        "stage": list(schedule.stage),
        "order": list(schedule.order),
        "depth": list(schedule.depth),
        "role": [None if role is None else problem.roles[role].name for role in schedule.role],
        "bounds": [{"ii": bound.ii, "kind": bound.kind, "because": bound.culprit} for bound in solution.bounds.each],
        "heuristics": {trial.arm: trial.ii for trial in solution.trials},
    }
