"""What is read from a file is what its type says, whatever stands there; and a problem that passes can be solved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

import pytest

from tilec.cli.commands.problem import read_problems
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Role, Slot, Use, Value
from tilec.sched.solve import Scheduler, solve_problem
from tilec.sched.text import problem_to_json
from tilec.support import schema
from tilec.support.diagnostics import CompileError
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Inner:
    width: Annotated[int, schema.Range(1, 8)]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    KIND: ClassVar[str] = "round"
    radius: float


@dataclass(frozen=True, slots=True)
class Square:
    KIND: ClassVar[str] = "square"
    side: Annotated[int, schema.Conversion(int | str, int)]


@dataclass(frozen=True, slots=True)
class Outer:
    inner: tuple[Inner, ...]
    kind: Literal["a", "b"] = "a"
    share: float | None = None
    pair: tuple[int, str] = (0, "")
    forms: Mapping[str, Round | Square] = field(default_factory=dict)
    sizes: int | tuple[int, ...] = 0
    limits: Annotated[dict[str, int], schema.Constraint(lambda limits: "x" not in limits, "no x")] | None = None


def test_a_value_is_made_from_its_types() -> None:
    given = {"inner": [{"width": 8}], "kind": "b", "share": 1, "pair": [3, "z"], "limits": {"y": 2}}
    made = schema.read_value(Outer, given, "it")
    assert made == Outer((Inner(8),), "b", 1.0, (3, "z"), limits={"y": 2})
    assert schema.to_plain(made) == given


def test_objects_say_of_which_kind_they_are() -> None:
    given = {"inner": [], "forms": {"a": {"kind": "round", "radius": 2.5}, "b": {"kind": "square", "side": "3"}}}
    made = schema.read_value(Outer, given, "it")
    assert made == Outer((), forms={"a": Round(2.5), "b": Square(3)})
    assert schema.read_value(Outer, schema.to_plain(made), "it") == made


def test_versions() -> None:
    assert schema.check_schema_version({"schema": 2, "x": 1}, 1, 2) == {"x": 1}
    for given, says in (
        ([], "expected an object or table, found []"),
        ({}, "schema is None, this version reads 1, 2"),
        ({"schema": True}, "schema is True, this version reads 1, 2"),
    ):
        with pytest.raises(schema.SchemaError, match=re.escape(says)):
            schema.check_schema_version(given, 1, 2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "it: expected an object or table, found []"),
        ({}, "it: 'inner' is missing"),
        ({"inner": [], "x": 1}, "it: unknown member 'x'"),
        ({"inner": {}}, "it.inner: expected an array, found {}"),
        ({"inner": [{"width": 9}]}, "it.inner[0].width: expected a whole number from 1 to 8, found 9"),
        ({"inner": [{"width": 2.0}]}, "it.inner[0].width: expected a whole number, found 2.0"),
        ({"inner": [{"width": True}]}, "it.inner[0].width: expected a whole number, found True"),
        ({"inner": [{"width": 1, "name": None}]}, "it.inner[0].name: expected a string, found None"),
        ({"inner": [], "kind": []}, "it.kind: expected one of 'a', 'b', found []"),
        ({"inner": [], "share": "1"}, "it.share: expected a number, found '1'"),
        ({"inner": [], "share": 10**400}, "it.share: expected a number, found a number of 1329 bits"),
        ({"inner": [], "pair": [1]}, "it.pair: expected an array of 2, found [1]"),
        ({"inner": [], "pair": [1 << 70, ""]}, "it.pair[0]: expected a whole number of 64 bits, found a number of 71"),
        ({"inner": [], "share": float("inf")}, "it.share: expected a number that is finite, found inf"),
        ({"inner": [], "sizes": ["1"]}, "it.sizes[0]: expected a whole number, found '1'"),
        ({"inner": [], "sizes": "1"}, "it.sizes: expected a whole number, found '1'"),
        ({"inner": [], "forms": []}, "it.forms: expected an object or table, found []"),
        ({"inner": [], "forms": {"a": 1}}, "it.forms.a: expected an object or table, found 1"),
        ({"inner": [], "forms": {"a": {}}}, "it.forms.a.kind: expected one of 'round', 'square', found None"),
        ({"inner": [], "forms": {"a": {"kind": "round"}}}, "it.forms.a: 'radius' is missing"),
        ({"inner": [], "forms": {"a": {"kind": "square", "side": "z"}}}, "it.forms.a.side: invalid literal"),
        ({"inner": [], "limits": {"x": 1}}, "it.limits: expected no x, found {'x': 1}"),
        ({"inner": [], "limits": {"y": 1.5}}, "it.limits.y: expected a whole number, found 1.5"),
    ],
)
def test_what_does_not_fit_is_named(given: object, says: str) -> None:
    with pytest.raises(schema.SchemaError) as caught:
        schema.read_value(Outer, given, "it")
    assert str(caught.value).startswith(says)


def test_a_made_value_is_held_against_its_types() -> None:
    assert list(schema.find_faults(Outer((Inner(3),)), "")) == []
    assert list(schema.find_faults(Outer((Inner(3), Inner(0))), "")) == [
        "inner[1].width: expected a whole number from 1 to 8, found 0"
    ]


# ---- problems --------------------------------------------------------------------------------------------------------


def everything() -> Problem:
    """Two ops in two roles, with something of everything that a problem may have."""
    ops = (
        Op("load", (Use(0, 3, 1),), 2, 7, roles=(0, 1), wait=1),
        Op("sum", (Use(1, 5),), 1, 4, roles=(1,), line=3),
    )
    return Problem(
        "pair", ops, (Edge(0, 1, 7, 0, "data", 2), Edge(1, 0, 1, 1)), tuple(map(Slot, ("port", "unit", "i", "j"))),
        (Pool("registers", 900), Pool("smem", 4096, 64, 4000)), (Ring("T", (0,), (1,), 512, 1, 3),), 4,
        (Value("v", (0,), (1,), 6, 0),), (Role("left", 2), Role("right", 3)), ((1,),), 0, 1 << 16, False, ((0, 1),),
    )  # fmt: skip


NEUTRAL = {
    "name": "three",
    "ops": [{"name": n, "resource": r, "duration": d} for n, r, d in (("a", "r", 2), ("b", "s", 1), ("c", None, 0))],
    "edges": [[0, 1, 3, 0], [1, 2, 1, 0], [2, 0, 2, 1]],
    "limits": {"r": 1, "s": 2, "t": None},
}
STRANGE: tuple[Any, ...] = (
    0, 1, -1, 1.0, -0.5, 1e308, 1 << 31, 1 << 62, 1 << 64, -(1 << 63), 10**30, None, True, False, "", [], {}, [1],
    [1.0], [[1]], {"x": 1}, [None],
)  # fmt: skip


def _strange(value: Any) -> Iterator[Any]:
    """The value with each part of it, one at a time, as something else, missing, or twice."""
    yield from STRANGE
    if isinstance(value, dict):
        for key, member in value.items():
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: made} for made in _strange(member))
    elif isinstance(value, list):
        for at, member in enumerate(value):
            yield value[:at] + value[at + 1 :]
            yield [*value, member]
            yield from ([*value[:at], made, *value[at + 1 :]] for made in _strange(member))


@pytest.mark.parametrize("given", [problem_to_json(everything()), NEUTRAL], ids=["own", "exchanged"])
@pytest.mark.parametrize("scheduler", ["heuristic", "exact"])
def test_every_problem_that_is_read_can_be_solved(given: Any, scheduler: Scheduler) -> None:
    """Or is refused, whatever stands in place of one of its values. The solver is asked about a tenth."""
    accepted = 0
    for number, made in enumerate(_strange(json.loads(json.dumps(given)))):
        try:
            problems, _ = read_problems(json.dumps(made), "p.json")
        except CompileError:
            continue
        if scheduler == "exact" and number % 10:
            continue
        for problem in problems:
            try:
                accepted += bool(solve_problem(problem, effort=0.01, scheduler=scheduler).schedule.ii)
            except Unschedulable:
                continue
    assert accepted
