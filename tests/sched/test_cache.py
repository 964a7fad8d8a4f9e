"""The cache: found by content, verified, never in the way. And the JSON that it and others are written in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from loops import KNOWN, gemm, random_problem

from tilec.sched import cache, text
from tilec.sched.budget import Budget
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.problem import Problem
from tilec.sched.solution import Solution
from tilec.sched.solve import solve_problem
from tilec.support.staging import read_entry, write_entry


class Counting:
    """A solver that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, problem: Problem, effort: float, budget: Budget) -> Solution:
        self.calls += 1
        return solve_problem(problem, effort, budget)


def entry(folder: Path) -> Path:
    (path,) = (folder / "schedules").iterdir()
    return path


def test_a_second_time_costs_nothing(tmp_path: Path) -> None:
    solver = Counting()
    first = cache.solve_cached(gemm(), tmp_path, solver=solver)
    assert cache.solve_cached(gemm(), tmp_path, solver=solver) == first
    moved = replace(gemm(), name="elsewhere", ops=tuple(replace(op, line=op.line + 9) for op in gemm().ops))
    assert cache.solve_cached(moved, tmp_path, solver=solver) == first
    assert solver.calls == 1
    assert cache.solve_cached(gemm(3), tmp_path, solver=solver) != first
    cache.solve_cached(gemm(), tmp_path, afresh=True, solver=solver)
    cache.solve_cached(gemm(), tmp_path, effort=2.0, solver=solver)
    assert solver.calls == 4


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": 1, "solution": {}}', "\udcff"])
def test_a_damaged_entry_is_solved_again_and_repaired(tmp_path: Path, damage: str) -> None:
    solver = Counting()
    first = cache.solve_cached(gemm(), tmp_path, solver=solver)
    path = entry(tmp_path)
    whole = path.read_text()
    path.write_bytes(damage.encode("utf-8", "surrogateescape"))
    assert cache.solve_cached(gemm(), tmp_path, solver=solver) == first
    assert (solver.calls, path.read_text()) == (2, whole)


def test_an_entry_that_does_not_hold_is_not_believed(tmp_path: Path) -> None:
    solver = Counting()
    first = cache.solve_cached(gemm(), tmp_path, solver=solver)
    path = entry(tmp_path)
    value = json.loads(read_entry(path, path.stem))
    value["solution"]["schedule"]["start"][2] -= 1
    write_entry(path, path.stem, json.dumps(value).encode())
    assert cache.solve_cached(gemm(), tmp_path, solver=solver) == first
    assert solver.calls == 2


def test_an_entry_under_another_key_is_not_believed(tmp_path: Path) -> None:
    """It may hold, and still not be what this search would have found."""
    solver = Counting()
    cache.solve_cached(gemm(), tmp_path, solver=solver)
    path = entry(tmp_path)
    path.rename(path.with_name(f"{cache.compute_cache_key(gemm(), 2.0)}.json"))
    cache.solve_cached(gemm(), tmp_path, effort=2.0, solver=solver)
    assert solver.calls == 2


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cache.solve_cached(gemm(), blocked).schedule.ii == 512
    assert list(tmp_path.iterdir()) == [blocked]


def test_a_folder_that_may_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in it is found; what is not is solved each time, and nothing is said. Permissions do not stop everyone,
    so writing fails as it would."""
    solver = Counting()
    cache.solve_cached(gemm(), tmp_path, solver=solver)
    before = sorted(tmp_path.rglob("*"))

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("write_text", "mkdir", "replace", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    assert cache.solve_cached(gemm(), tmp_path, solver=solver).schedule.ii == 512
    assert solver.calls == 1
    for _ in range(2):
        assert cache.solve_cached(gemm(3), tmp_path, solver=solver).schedule.ii == 675
    assert solver.calls == 3 and sorted(tmp_path.rglob("*")) == before


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    cache.solve_cached(gemm(), tmp_path)
    assert entry(tmp_path).name == f"{cache.compute_cache_key(gemm(), 1.0)}.json"


def test_a_hit_needs_no_solver(tmp_path: Path) -> None:
    cache.solve_cached(gemm(), tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom loops import gemm\nfrom tilec.sched import cache\n"
        f"assert cache.solve_cached(gemm(), Path({str(tmp_path)!r})).schedule.ii == 512\n"
        "assert 'ortools' not in sys.modules"
    )
    search = os.pathsep.join((str(Path(__file__).parent), str(Path.cwd())))
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": search}, check=False)
    assert done.returncode == 0


def test_many_builds_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    """Eight threads and three processes solve and read the same loops: all get the same, and nothing is left over."""
    code = (
        "from pathlib import Path\nfrom loops import gemm\nfrom tilec.sched import cache\n"
        f"for _ in range(20): assert cache.solve_cached(gemm(), Path({str(tmp_path)!r}), afresh=_ % 2 == 0)"
        ".schedule.ii == 512\n"
    )
    search = os.pathsep.join((str(Path(__file__).parent), str(Path.cwd())))
    environment = {**os.environ, "PYTHONPATH": search}
    others = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: cache.solve_cached(gemm(), tmp_path, afresh=at % 2 == 0), range(40)))
    assert [other.wait() for other in others] == [0, 0, 0]
    assert all(solution == found[0] for solution in found)
    path = entry(tmp_path)
    assert json.loads(read_entry(path, path.stem))["solution"]["schedule"]["ii"] == 512


def test_another_solver_has_entries_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = Counting()
    cache.solve_cached(gemm(), tmp_path, solver=solver)
    cache.solve_cached(gemm(), tmp_path, solver=solver, scheduler="heuristic")
    monkeypatch.setattr(cache, "SOLVER", cache.SOLVER + 1)
    cache.solve_cached(gemm(), tmp_path, solver=solver)
    assert solver.calls == 3


def test_the_key_says_which_solver_it_is() -> None:
    assert version("ortools") == cache.ORTOOLS


# --- JSON ---


@pytest.mark.parametrize("seed", range(20))
def test_problems_round_trip(seed: int) -> None:
    problem = random_problem(seed)
    assert text.problem_from_json(json.loads(json.dumps(text.problem_to_json(problem)))) == problem


def test_solutions_round_trip() -> None:
    for problem in (gemm(2), KNOWN[2][0]):
        solution = solve_problem(problem)
        assert text.solution_from_json(json.loads(json.dumps(text.solution_to_json(solution)))) == solution


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("ops", 0, "latency"), "long", "problem.ops[0].latency: expected a whole number, found 'long'"),
        (("ops", 0, "latency"), True, "problem.ops[0].latency: expected a whole number, found True"),
        (("ops", 0, "uses"), None, "problem.ops[0].uses: expected an array, found None"),
        (("edges", 1), [], "problem.edges[1]: expected an object or table, found []"),
        (("edges", 1, "dst"), 7, "edge 1 goes from op 1 to op 7, there are 3 ops"),
        (
            ("edges", 1, "distance"),
            -2,
            "problem.edges[1].distance: expected a whole number from -1 to 1048576, found -2",
        ),
        (
            ("ops", 2, "latency"),
            2**21,
            "problem.ops[2].latency: expected a whole number from 0 to 1048576, found 2097152",
        ),
        (("slots", 0, "width"), 0, "problem.slots[0].width: expected a whole number from 1 to 2147483647, found 0"),
        (("slots", 0, "wide"), 0, "problem.slots[0]: unknown member 'wide'"),
        (("rings", 0, "consumers"), [], "ring A+B has 2 producers and 0 consumers"),
        (("rings", 0, "pool"), 3, "ring A+B lives in pool 3, there are 1"),
        (
            ("pools", 0, "capacity"),
            -1,
            "problem.pools[0].capacity: expected a whole number from 0 to 2147483647, found -1",
        ),
        (("max_stages",), 0, "problem.max_stages: expected a whole number from 1 to 2147483647, found 0"),
        (
            ("edges", 2, "distance"),
            0,
            "a cycle of dependences lies within one iteration, in or before these ops: gemm",
        ),
        (
            ("edges", 2, "distance"),
            -1,
            "a cycle of dependences has a total distance of 0 or less",
        ),
    ],
)
def test_what_is_no_problem(path: tuple[str | int, ...], value: object, says: str) -> None:
    json_value = text.problem_to_json(gemm())
    at = json_value["problem"]
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(text.TextError) as caught:
        text.problem_from_json(json_value)
    assert str(caught.value) == says


def test_missing_members() -> None:
    for value, says in (
        ([], "expected an object or table"),
        ({"schema": 1}, "'problem' is missing"),
        ({"problem": {}}, "schema is None, this version reads 1"),
        ({"schema": 1, "problem": {}}, "problem: 'name' is missing"),
    ):
        with pytest.raises(text.TextError, match=says):
            text.problem_from_json(value)


def test_the_exchange_form() -> None:
    problem = text.problem_from_neutral(
        {
            "name": "pair",
            "ops": [
                {"name": "a", "resource": "r", "duration": 2},
                {"name": "b", "resource": "r", "duration": 3},
                {"name": "c", "resource": None, "duration": 0},
            ],
            "edges": [[0, 1, 4, 0], [1, 0, 2, 1], [1, 2, 5, 0]],
            "limits": {"r": 1},
        }
    )
    assert [(op.latency, len(op.uses)) for op in problem.ops] == [(4, 1), (5, 1), (0, 0)]
    assert solve_problem(problem).schedule.ii == 7
    with pytest.raises(text.TextError, match="expected an object with name"):
        text.problem_from_neutral({"name": "pair"})


def test_unschedulable_problems_are_not_kept(tmp_path: Path) -> None:
    with pytest.raises(Unschedulable):
        cache.solve_cached(gemm(capacity=1024), tmp_path)
    assert not (tmp_path / "schedules").exists()
