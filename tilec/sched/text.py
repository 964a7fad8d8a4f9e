"""Problems and solutions as JSON and back: `.problem.json` files, the cache, and problems from elsewhere."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, NamedTuple

from tilec.sched.check import find_problem_faults
from tilec.sched.problem import UNLIMITED, Cycles, Distance, Edge, Latency, Op, Problem, Slot, Use
from tilec.sched.solution import Solution
from tilec.support import schema
from tilec.support.records import dataclass

SCHEMA = 1


TextError = schema.SchemaError
"""The JSON does not have the expected form; the message names the place."""


@dataclass(frozen=True, slots=True)
class OpenRecord:
    """A record of a file that may have further members, which are ignored."""

    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class _ProblemFile(OpenRecord):
    problem: Problem


@dataclass(frozen=True, slots=True)
class _SolutionFile(OpenRecord):
    solution: Solution


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Return a problem as JSON, which `problem_from_json` reads back equal."""
    return {"schema": SCHEMA, "problem": encode_json(problem)}


def problem_from_json(json: object) -> Problem:
    """Return the problem of a JSON value; raise `TextError` if it is none or breaks a promise of `sched.check`."""
    problem = schema.read_record(_ProblemFile, schema.check_schema_version(json, SCHEMA), "").problem
    wrong = next(find_problem_faults(problem), None)
    if wrong is not None:
        raise TextError(wrong)
    return problem


def solution_to_json(solution: Solution) -> dict[str, Any]:
    """Return a solution as JSON, which `solution_from_json` reads back equal."""
    return {"schema": SCHEMA, "solution": encode_json(solution)}


def solution_from_json(json: object) -> Solution:
    """Return the solution of a JSON value that `solution_to_json` made; raise `ValueError` for anything else."""
    return schema.read_record(_SolutionFile, schema.check_schema_version(json, SCHEMA), "").solution


def problems_from_json(json: object) -> list[tuple[Problem, int | None]]:
    """Return the problems of a list, a problem or an exchange form, each with the best II recorded there, else None.

    Raise `TextError` for anything else.
    """
    if isinstance(json, list):
        return [(problem_from_json(member), None) for member in json]
    if isinstance(json, dict) and "problem" in json:
        return [(problem_from_json(json), None)]
    best = json.get("best") if isinstance(json, dict) else None
    return [(problem_from_neutral(json), best.get("ii") if isinstance(best, dict) else None)]


@dataclass(frozen=True, slots=True)
class _NeutralOp(OpenRecord):
    name: str
    resource: str | None
    duration: Cycles


class _NeutralEdge(NamedTuple):
    src: int
    dst: int
    latency: Latency
    distance: Distance


@dataclass(frozen=True, slots=True)
class _Neutral(OpenRecord):
    """A problem in the exchange form."""

    name: str
    ops: tuple[_NeutralOp, ...]
    edges: tuple[_NeutralEdge, ...]
    limits: dict[str, Annotated[int, schema.Range(-UNLIMITED, UNLIMITED)] | None]


def problem_from_neutral(json: object) -> Problem:
    """Return the problem of a modulo-scheduling instance in the exchange form; raise `TextError` for another form.

    It has ops with one resource and a duration, edges as [src, dst, latency, distance], limits per resource. A resource
    without a limit of at least 1 is unlimited.
    """
    if not isinstance(json, dict) or not all(key in json for key in ("name", "ops", "edges", "limits")):
        raise TextError("expected an object with name, ops, edges and limits")
    given = schema.read_record(_Neutral, json, "")
    limits = {name: limit for name, limit in given.limits.items() if limit is not None and limit >= 1}
    names = list(limits)
    # The exchange form has latencies of edges only; an op's latency is the longest of its edges.
    latency = [0] * len(given.ops)
    for index, (src, dst, cycles, _) in enumerate(given.edges):
        if not (0 <= src < len(latency) and 0 <= dst < len(latency)):
            raise TextError(f"edges[{index}]: expected ops below {len(latency)}, found [{src}, {dst}]")
        latency[src] = max(latency[src], cycles)
    made = []
    for op, longest in zip(given.ops, latency, strict=True):
        is_timed = op.resource in names and op.duration > 0
        uses = (Use(names.index(str(op.resource)), op.duration),) if is_timed else ()
        made.append(Op(op.name, uses, 0, longest))
    slots = tuple(Slot(name, width) for name, width in limits.items())
    problem = Problem(given.name, tuple(made), tuple(Edge(*edge) for edge in given.edges), slots)
    wrong = next(find_problem_faults(problem), None)
    if wrong is not None:
        raise TextError(wrong)
    return problem


_LEFT_OUT = (("file", ""), ("banks", ""))
"""Members that most ops and slots do not have."""


def encode_json(value: object) -> Any:
    """Return dataclasses as dictionaries, tuples as lists, other values unchanged; without an empty file or banks."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: encode_json(member) for name, member in members if (name, member) not in _LEFT_OUT}
    if isinstance(value, tuple):
        return [encode_json(member) for member in value]
    return value
