"""`tilec schedule`: of kernels and of problems from elsewhere, shown and drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import GEMM, VECTOR_ADD, tilec
from drawn import rows, traces, tree, under


def exchange(name: str = "pair", **changed: Any) -> str:
    """Writes a problem in the exchange form into the current folder."""
    ops = [{"name": "a", "resource": "r", "duration": 2}, {"name": "b", "resource": "r", "duration": 3}]
    problem = {"name": name, "ops": ops, "edges": [[0, 1, 4, 0], [1, 0, 3, 1]], "limits": {"r": 1}} | changed
    Path("problem.json").write_text(json.dumps(problem))
    return "problem.json"


def test_a_problem_is_solved_and_its_schedule_written(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("schedule", "--problem", exchange(), "--json", "-o", "out.json") == 0
    (line,) = capfd.readouterr().out.splitlines()
    said = json.loads(line)
    assert list(said) == ["name", "ii", "mii", "proven", "seconds"]
    assert {**said, "seconds": 0} == {"name": "pair", "ii": 7, "mii": 7, "proven": True, "seconds": 0}
    written = json.loads(Path("out.json").read_text())
    assert (written["ii"], written["start"], written["status"]) == (7, [0, 4], "optimal")
    assert tilec("schedule", "--problem", exchange(), "--time-limit", "20") == 0
    assert capfd.readouterr().out.startswith("pair: II 7 cycles, proven optimal, MII 7, ")


def test_the_problems_of_a_kernel_are_problems_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(GEMM, "--emit", "problem", "-o", "gemm.problem.json") == 0
    assert tilec("schedule", "--problem", "gemm.problem.json", "--json", "--scheduler", "heuristic") == 0
    assert json.loads(capfd.readouterr().out)["ii"] == 512


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"edges": [[0, 2, 4, 0]]}, "edges[0]: expected ops below 2, found [0, 2]"),
        ({"edges": [[0, 1, 4]]}, "edges[0]: expected [src, dst, latency, distance], found [0, 1, 4]"),
        ({"edges": [[0, 1, 4, 0], [1, 0, 3, 0]]}, "a cycle of dependences lies within one iteration"),
        ({"ops": [{"name": "a"}]}, "ops[0]: 'resource' is missing"),
        ({"limits": {"r": "one"}}, "limits.r: expected a whole number, found 'one'"),
        ({"name": 3}, "name: expected a string, found 3"),
    ],
)
def test_what_is_no_problem(changed: dict[str, Any], says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("schedule", "--problem", exchange(**changed), "-o", "out.json") == 1
    shown = " ".join(capfd.readouterr().err.split())
    assert "bad-problem" in shown and says in shown and "Traceback" not in shown
    assert not Path("out.json").exists()


def test_options_that_go_with_a_problem(capfd: pytest.CaptureFixture[str]) -> None:
    Path("broken.json").write_text("{")
    assert tilec("schedule", "--problem", "broken.json") == 1
    assert "error[bad-problem]" in capfd.readouterr().err
    assert tilec("schedule") == 2
    assert tilec("schedule", GEMM, "--json") == 2
    assert tilec("schedule", GEMM, "--problem", exchange()) == 2
    assert "give either a kernel or --problem" in capfd.readouterr().err


def test_light_specialisation_only_divides(capfd: pytest.CaptureFixture[str]) -> None:
    for threshold, is_light in (("512", False), ("511", True), ("0", True)):
        assert tilec(GEMM, "--max-scheduled-ii", threshold, "--emit", "schedule,cubin", "-o", "light") == 0
        loop = json.loads(Path("light.trace.json").read_text())["tilec"]["loops"][0]
        assert {op["role"] for op in loop["ops"]} == {"producer", "consumer"}
        assert (loop["stages"] == 1 and loop["ii"] > 1000) if is_light else loop["ii"] == 512
        assert loop["status"] == ("serial" if is_light else "optimal")
        assert loop["proof"].startswith("no search" if is_light else "every II below 512 is refuted")
    assert capfd.readouterr().err == ""


def test_schedule_shows_the_pipeline(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("schedule", GEMM) == 0
    shown = capfd.readouterr().out
    for part in ("II ", "optimal", "bounds", "by the roofline", "rings", "A_shared", "reservation table"):
        assert part in shown
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert tilec("schedule", VECTOR_ADD) == 0
    assert "no pipelined loop" in capfd.readouterr().out
    assert tilec("schedule", GEMM, "--pipeline-strategy", "none") == 0
    assert "serially with strategy none" in capfd.readouterr().out


def drawn(problem: object, capfd: pytest.CaptureFixture[str], *more: str) -> tuple[str, str]:
    """What `schedule --problem` shows, and the page that it writes."""
    Path("p.json").write_text(json.dumps(problem))
    assert tilec("schedule", "--problem", "p.json", "--html", "p.html", *more) == 0
    return capfd.readouterr().out, Path("p.html").read_text()


def exchanged(count: int) -> dict[str, object]:
    """A chain of ops that take turns at three units."""
    ops = [{"name": f"op{i}", "resource": f"unit{i % 3}", "duration": 1 + i % 4} for i in range(count)]
    edges = [[i, i + 1, 2, 0] for i in range(count - 1)]
    return {"name": f"chain of {count}", "ops": ops, "edges": edges, "limits": {f"unit{i}": 1 for i in range(3)}}


@pytest.mark.weekly
@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_problems_of_any_size_are_drawn(count: int, capfd: pytest.CaptureFixture[str]) -> None:
    shown, page = drawn(exchanged(count), capfd, "--time-limit", "20")
    assert shown.startswith(f"chain of {count}: II ")
    assert ("reservation table" in shown) == ("iterations: " in shown) == (count > 0)
    # A bound on three hundred ops does not name all of them.
    assert count < 300 or "76 more" in shown
    assert max(len(line) for line in shown.splitlines()) <= 160
    ((loop,),) = (trace["loops"] for trace in traces(page))
    assert len(loop["ops"]) == count
    names = [node.get("aria-label") for node in tree(page).iter("svg")]
    assert names.count("reservation table") == 1


def test_a_problem_that_leaves_roles_open_is_drawn_with_those_decided(capfd: pytest.CaptureFixture[str]) -> None:
    slots = [{"name": "unit"}, {"name": "left"}, {"name": "right"}]
    roles = [{"name": "left", "slot": 1}, {"name": "right", "slot": 2}]
    ops = [{"name": n, "uses": [], "issue": 40, "latency": 50, "roles": [0, 1]} for n in ("a", "b")]
    problem = {"name": "open", "ops": ops, "edges": [], "slots": slots, "roles": roles}
    shown, page = drawn({"schema": 1, "problem": problem}, capfd)
    assert "II 40 cycles, proven optimal" in shown
    held = [line for line in shown.splitlines() if line.startswith(("left ", "right "))]
    assert [row.split()[0] for row in held] == ["left", "right"] and all("100%" in row for row in held)
    assert re.search(r"^0 left +0", shown, re.MULTILINE) and re.search(r"^0 right +1", shown, re.MULTILINE)
    ((loop,),) = (trace["loops"] for trace in traces(page))
    assert [op["role"] for op in loop["ops"]] == ["left", "right"]
    assert [row[2] for row in rows(under(tree(page), "Statements", "table"))[1:]] == ["left", "right"]


def test_what_the_pool_of_named_barriers_counts(capfd: pytest.CaptureFixture[str]) -> None:
    """Three numbers, of the block and of its two roles, and nothing that is carried."""
    assert tilec("schedule", GEMM) == 0
    shown = capfd.readouterr().out
    (row,) = (line.split() for line in shown.splitlines() if line.startswith("named_barriers "))
    assert row[1:] == ["3", "0", "0", "3", "16", "0"]
    assert "named_barriers: counts barrier numbers, not the waits at them" in shown
