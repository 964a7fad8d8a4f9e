"""`tilec schedule --problem`: solve scheduling problems from a file, without a kernel."""

from __future__ import annotations

import json
import time
from math import inf
from typing import Any

from tilec.sched.budget import Budget
from tilec.sched.cp import load_solver
from tilec.sched.explain import explain_solution
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.sched.solve import Scheduler, solve_problem
from tilec.sched.text import TextError, problems_from_json
from tilec.sched.trace import build_trace
from tilec.support import files, progress, readers
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class ProblemOutputs:
    """The outputs: one line of JSON instead of tables, a file for the schedules, and a page that draws them."""

    as_json: bool
    output: str | None
    html: str | None


def solve_problem_file(path: str, wanted: ProblemOutputs, seconds: float | None, scheduler: Scheduler) -> None:
    """Solve each scheduling problem of a JSON file, print the results, and write schedules and a page if asked.

    With a limit of `seconds` for each problem the results depend on the clock.
    """
    files.check_outputs([out for out in (wanted.output, wanted.html) if out is not None], [path])
    problems, is_list = read_problems(files.read_text(path), path)
    load_solver()  # not part of the seconds
    solved = [(problem, _solve_and_show(problem, seconds, scheduler, wanted.as_json)) for problem in problems]
    written: dict[str, bytes] = {}
    if wanted.output is not None:
        records = [_record_solution(problem, solution) for problem, solution in solved]
        text = json.dumps(records if is_list else records[0], indent=1, ensure_ascii=False)
        written[wanted.output] = f"{text}\n".encode()
    if wanted.html is not None:
        from tilec.report.viewer import build_viewer_page

        written[wanted.html] = build_viewer_page([build_trace(solved)["tilec"]]).encode()
    files.write_all(written)


def read_problems(text: str, path: str) -> tuple[list[Problem], bool]:
    """Return the scheduling problems in JSON text, and whether they are in an array; raise `bad-problem`."""
    try:
        value = readers.parse_json(text)
    except ValueError as error:
        raise_error("bad-problem", f"{path} is not JSON: {error}")
    try:
        return [problem for problem, _ in problems_from_json(value)], isinstance(value, list)
    except TextError as error:
        raise_error("bad-problem", f"{path} is not a scheduling problem: {error}")


def _solve_and_show(problem: Problem, seconds: float | None, scheduler: Scheduler, as_json: bool) -> Solution:
    """Return the solution of a problem, printed with its explanation; raise `unschedulable` if there is none.

    It is printed as one JSON line or as tables.
    """
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
    spent = round(found - began, 4)
    schedule = solution.schedule
    is_proven = schedule.status == "optimal"
    line = {"name": problem.name, "ii": schedule.ii, "mii": solution.bounds.mii, "proven": is_proven, "seconds": spent}
    if as_json:
        print(json.dumps(line, ensure_ascii=False))
    else:
        proof = "proven optimal" if is_proven else "not proven optimal"
        print(f"{problem.name}: II {schedule.ii} cycles, {proof}, MII {solution.bounds.mii}, {spent:.3f} s\n")
        from tilec.cli.console import make_console, show_tables
        from tilec.report.tables import build_schedule_tables

        show_tables(build_schedule_tables(problem, solution, make_console().width))
    return solution


def _record_solution(problem: Problem, solution: Solution) -> dict[str, Any]:
    """Return a problem's schedule, bounds and heuristic results as a JSON object, with ops by index.

    It has no times, so that equal problems without a limit give equal bytes.
    """
    schedule = solution.schedule
    return {
        "name": problem.name,
        "ii": schedule.ii,
        "mii": solution.bounds.mii,
        "proven": schedule.status == "optimal",
        "status": schedule.status,
        **{name: list(getattr(schedule, name)) for name in ("start", "stage", "order", "depth")},
        "role": [None if role is None else problem.roles[role].name for role in schedule.role],
        "bounds": [{"ii": bound.ii, "kind": bound.kind, "because": bound.culprit} for bound in solution.bounds.each],
        "heuristics": {trial.arm: trial.ii for trial in solution.trials},
    }
