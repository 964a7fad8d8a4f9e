"""`tilec schedule --problem`: solves scheduling problems that are given as such, not as kernels."""

from __future__ import annotations

import json
import time
from math import inf
from typing import Any

from tilec.sched.bounds import Unschedulable
from tilec.sched.budget import Budget
from tilec.sched.cp import load_solver
from tilec.sched.explain import explain_solution
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.sched.solve import Scheduler, solve_problem
from tilec.sched.text import TextError, problems_from_json
from tilec.sched.trace import build_trace
from tilec.support import files, progress, readers
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """A line of JSON instead of tables; a file for the schedules, and one for a page that draws them."""

    as_json: bool
    output: str | None
    html: str | None


def solve_file(path: str, wanted: Wanted, seconds: float | None, scheduler: Scheduler) -> None:
    """Prints what was found for each problem of the file, and writes it where it is wanted. With a limit of `seconds`
    the answers depend on the clock; each problem has them to itself."""
    files.check_outputs([out for out in (wanted.output, wanted.html) if out is not None], [path])
    problems, is_list = problems_of(files.read_text(path), path)
    load_solver()  # The seconds are those of solving.
    solved = [(problem, _solved(problem, seconds, scheduler, wanted.as_json)) for problem in problems]
    written: dict[str, bytes] = {}
    if wanted.output is not None:
        records = [_record(problem, solution) for problem, solution in solved]
        text = json.dumps(records if is_list else records[0], indent=1, ensure_ascii=False)
        written[wanted.output] = f"{text}\n".encode()
    if wanted.html is not None:
        from tilec.report.viewer import build_viewer_page

        written[wanted.html] = build_viewer_page([build_trace(solved)["tilec"]]).encode()
    files.write_all(written)


def problems_of(text: str, path: str) -> tuple[list[Problem], bool]:
    """The problems that a file has, and whether they stand in an array."""
    try:
        value = readers.parse_json(text)
    except ValueError as error:
        raise_error("bad-problem", f"{path} is not JSON: {error}")
    try:
        return [problem for problem, _ in problems_from_json(value)], isinstance(value, list)
    except TextError as error:
        raise_error("bad-problem", f"{path} is no scheduling problem: {error}")


def _solved(problem: Problem, seconds: float | None, scheduler: Scheduler, as_json: bool) -> Solution:
    """Solves one, and shows it."""
    began = time.monotonic()
    try:
        limit = inf if seconds is None else seconds
        budget = Budget(
            None, lambda: began + limit - time.monotonic(), lambda ii: progress.report_detail(f"interval {ii}")
        )
        with progress.report_during(f"solving {problem.name}"):
            solution = solve_problem(problem, budget=budget, scheduler=scheduler)
        found = time.monotonic()
        with progress.report_during(f"why {problem.name} has no better schedule"):
            solution = explain_solution(problem, solution, budget)
    except Unschedulable as refusal:
        raise_error("unschedulable", f"no schedule of {problem.name} exists: {refusal.reason}")
    taken = round(found - began, 4)
    schedule = solution.schedule
    is_proven = schedule.status == "optimal"
    line = {"name": problem.name, "ii": schedule.ii, "mii": solution.bounds.mii, "proven": is_proven, "seconds": taken}
    if as_json:
        print(json.dumps(line, ensure_ascii=False))
    else:
        proof = "proven optimal" if is_proven else "not proven optimal"
        print(f"{problem.name}: II {schedule.ii} cycles, {proof}, MII {solution.bounds.mii}, {taken:.3f} s\n")
        from tilec.cli.console import console, show_tables
        from tilec.report.tables import build_schedule_tables

        show_tables(build_schedule_tables(problem, solution, console().width))
    return solution


def _record(problem: Problem, solution: Solution) -> dict[str, Any]:
    """The schedule by op index, as the file that was read counts them. Without the seconds: equal problems, solved
    without a limit, are equal bytes."""
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
