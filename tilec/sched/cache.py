"""Keeps solved schedules in a folder, keyed by the content of their problem.

A hit is verified like any schedule and needs no solver: ortools is not imported. Entries that cannot be read or do not
verify are solved again and overwritten. A folder that cannot be written is no error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tilec.sched import text
from tilec.sched.budget import WORK_FOR_ANSWERS, Budget
from tilec.sched.lower_bounds.bounds import compute_bounds
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.sched.solve import solve_problem
from tilec.sched.verify import find_violations
from tilec.support import readers
from tilec.support.staging import read_entry, write_entry

# Raise the first whenever the same problem may get another answer; the second is the version that pyproject.toml pins.
SOLVER = 20
ORTOOLS = "9.15.6755"
Solver = Callable[[Problem, float, Budget], Solution]


def solve_cached(
    problem: Problem,
    folder: Path | None,
    effort: float = 1.0,
    afresh: bool = False,
    solver: Solver = solve_problem,
    scheduler: str = "exact",
    budget: Budget | None = None,
) -> Solution:
    """Return the problem's solution from the cache folder, or solve it and write it there; without a folder only solve.

    `afresh` ignores kept solutions. `scheduler` names the `solver`; each solver has its own entries. A hit is charged
    to the budget like a solve, so that later results do not depend on the folder. An answer that took less than the
    work left equals the answer of an unlimited search; any other is kept under the work that was left.
    """
    budget = budget or Budget()
    if folder is None:
        return solver(problem, effort, budget)

    def locate_entry(left: int | None) -> Path:
        """Return the path of the problem's cache entry for a search that ends after `left` work (None: unlimited)."""
        return folder / "schedules" / f"{compute_cache_key(problem, effort, scheduler, left)}.json"

    left = budget.balance
    for limit in () if afresh else dict.fromkeys((None, left)):
        known = _read_solution(locate_entry(limit), problem)
        if known is not None and (left is None or limit is not None or known.work < left):
            budget.spend(known.work)
            return known
    solution = solver(problem, effort, budget)
    path = locate_entry(None if left is None or solution.work < left else left)
    write_entry(path, path.stem, json.dumps(text.solution_to_json(solution)).encode())
    return solution


def compute_cache_key(problem: Problem, effort: float, scheduler: str = "exact", left: int | None = None) -> str:
    """Return a hash of everything a solution depends on: problem, effort, solver, and `left`, the work limit.

    The problem's name and the lines of its ops are left out, so that an edit elsewhere in the file does not solve a
    loop again.
    """
    anonymous = replace(problem, name="", ops=tuple(replace(op, line=0, file="") for op in problem.ops))
    content: dict[str, object] = {"problem": text.problem_to_json(anonymous), "effort": effort, "left": left}
    content |= {"solver": SOLVER, "scheduler": scheduler, "ortools": ORTOOLS}
    content |= {} if left is None else {"answers": WORK_FOR_ANSWERS}
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _read_solution(path: Path, problem: Problem) -> Solution | None:
    """Return the solution in a cache file; None if it is missing, unreadable or does not verify for the problem."""
    try:
        solution = text.solution_from_json(readers.parse_json(read_entry(path, path.stem).decode()))
    except (OSError, ValueError):
        return None
    if solution.bounds != compute_bounds(problem) or any(find_violations(problem, solution.schedule)):
        return None
    return solution
