"""The trace: what viewers need, what people read, and the way back."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from loops import KNOWN, gemm, random_problem

from tilec.sched import explain
from tilec.sched.explain import list_families
from tilec.sched.model.model import Answer, Model
from tilec.sched.objective import record_given_schedule
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule
from tilec.sched.solution import Solution
from tilec.sched.solve import solve_problem
from tilec.sched.trace import TraceError, build_trace, dump_trace, read_schedules
from tilec.sched.verify import find_violations


@pytest.fixture(scope="module")
def loops() -> list[tuple[Problem, Solution]]:
    problems = [gemm(3), *(problem for problem, _ in KNOWN)]
    return [(problem, solve_problem(problem)) for problem in problems]


def test_the_first_key_tells_viewers_the_format(loops: list[tuple[Problem, Solution]]) -> None:
    assert dump_trace(build_trace(loops)).startswith('{"traceEvents": [')


def test_slices_of_a_track_nest(loops: list[tuple[Problem, Solution]]) -> None:
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    value = json.loads(dump_trace(build_trace(loops)))
    for event in value["traceEvents"]:
        if event["ph"] == "X":
            assert event["dur"] > 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) > 20
    for slices in tracks.values():
        for start, end in slices:
            for other_start, other_end in slices:
                apart = end <= other_start or other_end <= start
                nested = (start <= other_start and other_end <= end) or (other_start <= start and end <= other_end)
                assert apart or nested


def test_every_track_has_a_name(loops: list[tuple[Problem, Solution]]) -> None:
    events = build_trace(loops)["traceEvents"]
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} == named


def test_the_record(loops: list[tuple[Problem, Solution]]) -> None:
    record = build_trace(loops[:1], "gemm", "sm_90a")["tilec"]
    loop = record["loops"][0]
    assert (record["schema"], record["kernel"], record["target"]) == (1, "gemm", "sm_90a")
    assert (loop["ii"], loop["mii"], loop["status"], loop["proof"]) == (
        675,
        675,
        "optimal",
        "every II below 675 is refuted",
    )
    assert [(bound["kind"], bound["name"]) for bound in loop["bounds"] if bound["binds"]] == [("density", "port")]
    assert [(a["from"], a["ii"], a["outcome"], a["how"]) for a in loop["attempts"]] == [
        (674, 674, "refuted", "bound"),
        (675, 675, "found", "heuristic"),
    ]
    assert loop["roofline"] == {"memory_cycles": 1184, "compute_cycles": 512, "stages": 3}
    assert {trial["arm"]: trial["ii"] for trial in loop["heuristics"]}["modulo"] == 675
    assert loop["rings"][0] | {"lifetime": 2024, "depth": 3, "total_bytes": 98304} == loop["rings"][0]
    held = {"reserved": 1024, "rings": 98304, "values": 0, "peak": 1024 + 98304, "carried": 0, "most_carried": None}
    assert loop["pools"] == [{"name": "smem", "capacity": 232448, **held}]
    product = loop["ops"][2]
    assert (product["line"], product["start"], product["stage"], product["phase"]) == (7, 1440, 2, 90)
    assert product["rows"] == [{"slot": "tensor", "rows": [[90, 602]]}]
    assert all(edge["slack"] >= 0 for edge in loop["edges"])


def test_neighbours_that_met_one_fate_are_one_entry() -> None:
    problem = random_problem(238)
    solution = solve_problem(problem)
    (loop,) = build_trace([(problem, solution)])["tilec"]["loops"]
    ranges = [(entry["from"], entry["ii"]) for entry in loop["attempts"]]
    assert any(first < last for first, last in ranges)
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]
    assert sum(entry["effort"] for entry in loop["attempts"]) == sum(attempt.effort for attempt in solution.attempts)


def test_each_refuted_interval_names_the_families_that_are_enough() -> None:
    """By the solver, by windows and by bounds; a range shares them."""
    for seed, expected in (
        (231, [(6, 7, "solver", ["dependences", "stages", "slot s0"])]),
        (397, [(6, 7, "bound", ["dependences", "slot s0"])]),
        (47, [(5, 6, "bound", ["dependences", "pool pool", "rings", "slot s0", "slot s1"])]),
    ):
        problem = random_problem(seed)
        solution = solve_problem(problem)
        (loop,) = build_trace([(problem, solution)])["tilec"]["loops"]
        first, *others, found = loop["attempts"]
        assert first["families"] == [bound.family for bound in solution.bounds.binding]
        assert [(a["from"], a["ii"], a["how"], a["families"]) for a in others] == expected
        assert found["families"] == []
        assert loop["refutation"]["families"] == expected[-1][-1]


@pytest.mark.parametrize("seed", [7, 47, 231, 397])
def test_families_are_enough_and_none_is_too_many(seed: int) -> None:
    """Without the others there is still no schedule; without any one of them there is, or its proof is elsewhere."""
    problem = random_problem(seed)
    attempt = next(
        a
        for a in reversed(explain.explain_solution(problem, solve_problem(problem)).attempts)
        if a.outcome == "refuted"
    )
    others = frozenset(list_families(problem)) - {*attempt.families}
    assert Model(problem, attempt.ii, None, others).feasible(1.0).outcome == "refuted"
    if attempt.how == "solver":
        for family in attempt.families[1:]:
            assert Model(problem, attempt.ii, None, others | {family}).feasible(1.0).outcome == "found"


def test_a_dear_proof_names_all_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """One proof says what it takes to find more, and none is looked for."""
    asked: list[bool] = []

    class Counted(Model):
        def feasible(self, effort: float, hard: bool = False) -> Answer:
            asked.append(hard)
            return super().feasible(effort, hard)

    monkeypatch.setattr(explain, "Model", Counted)
    monkeypatch.setattr(explain, "_CHEAP_PROOF_EFFORT", -1.0)
    problem = random_problem(231)
    attempts = [
        a
        for a in explain.explain_solution(problem, solve_problem(problem)).attempts
        if a.how == "solver" and a.outcome == "refuted"
    ]
    every = ("dependences", *list_families(problem))
    assert attempts and asked == [True]
    assert all(attempt.families == every for attempt in attempts)


def test_rows_run_past_the_end_of_the_table() -> None:
    late = Schedule(600, (0, 256, 1440), (0, 2, 1), (4,), "given")
    assert not list(find_violations(gemm(), late))
    product = build_trace([(gemm(), record_given_schedule(gemm(), late))])["tilec"]["loops"][0]["ops"][2]
    assert product["rows"] == [{"slot": "tensor", "rows": [[240, 600], [0, 152]]}]


def test_round_trip(loops: list[tuple[Problem, Solution]]) -> None:
    read = read_schedules(dump_trace(build_trace(loops)))
    assert read == [replace(solution.schedule, status="given") for _, solution in loops]


def test_a_given_schedule_can_be_traced(loops: list[tuple[Problem, Solution]]) -> None:
    again = [
        (p, record_given_schedule(p, s))
        for (p, _), s in zip(loops, read_schedules(dump_trace(build_trace(loops))), strict=True)
    ]
    record = build_trace(again)["tilec"]["loops"][0]
    assert record["proof"] == "the schedule was given; no II below 675 is possible"
    assert read_schedules(dump_trace(build_trace(again))) == [solution.schedule for _, solution in again]


def edited(change: Any) -> str:
    value = build_trace([(gemm(), solve_problem(gemm()))])
    change(value["tilec"]["loops"][0])
    return dump_trace(value)


def test_an_edited_start_moves_the_op_in_the_order_too() -> None:
    # One interval later for the second load: the ring no longer covers it, the order is as before.
    (schedule,) = read_schedules(edited(lambda loop: loop["ops"][2].update(start=1536)))
    assert schedule.order == (0, 2, 1)
    assert list(find_violations(gemm(), schedule)) == [
        "ring A+B has depth 4 but needs 5: a version lives 2120 cycles, from 0 to 2120, at II 512"
    ]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{", "not JSON"),
        ("{}", "'tilec' is missing"),
        ('{"tilec": {"schema": 9}}', "schema is 9, this version reads 1"),
        (edited(lambda loop: loop.pop("ii")), "'ii' is missing"),
        (edited(lambda loop: loop.update(ii=0)), "ii: expected a whole number from 1"),
        (
            edited(lambda loop: loop["ops"][1].update(start="soon")),
            "ops.1..start: expected a whole number, found 'soon'",
        ),
        (edited(lambda loop: loop.update(order=[0, 1])), "order: expected each of the 3 ops once"),
        (
            edited(lambda loop: loop["rings"][0].update(depth=True)),
            "rings.0..depth: expected a whole number, found True",
        ),
    ],
)
def test_what_is_no_trace(source: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        read_schedules(source)
