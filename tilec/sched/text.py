"""Problems and solutions as JSON and back: `.problem.json` files, the cache, and problems from elsewhere."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any, TypeVar

from tilec.sched.check import faults
from tilec.sched.problem import Edge, Op, Problem, Slot, Use
from tilec.sched.solution import Solution

SCHEMA = 1
T = TypeVar("T")


class TextError(ValueError):
    """The JSON does not say what it should; the message names the place."""


def to_json(problem: Problem) -> dict[str, Any]:
    return {"schema": SCHEMA, "problem": encode(problem)}


def from_json(json: object) -> Problem:
    """Reads what `to_json` wrote, or a person; raises `TextError` for anything else."""
    problem = decode(Problem, _member(json, "problem"), "problem")
    wrong = next(faults(problem), None)
    if wrong is not None:
        raise TextError(wrong)
    return problem


def solution_to_json(solution: Solution) -> dict[str, Any]:
    return {"schema": SCHEMA, "solution": encode(solution)}


def solution_from_json(json: object) -> Solution:
    return decode(Solution, _member(json, "solution"), "solution")


def problems_from_json(json: object) -> list[tuple[Problem, int | None]]:
    """The problems of a file, in any of the forms that there are, each with the best II that the file knows of."""
    if isinstance(json, list):
        return [(from_json(member), None) for member in json]
    if isinstance(json, dict) and "problem" in json:
        return [(from_json(json), None)]
    best = json.get("best") if isinstance(json, dict) else None
    return [(from_neutral(json), best.get("ii") if isinstance(best, dict) else None)]


def from_neutral(json: object) -> Problem:
    """A problem in the form in which modulo-scheduling instances are exchanged: ops with one resource and a duration,
    edges as [src, dst, latency, distance], limits per resource. A resource without a limit of at least 1 has none."""
    if not isinstance(json, dict) or not all(key in json for key in ("name", "ops", "edges", "limits")):
        raise TextError("expected an object with name, ops, edges and limits")
    given = _neutral(json)
    names = [name for name, limit in given["limits"].items() if limit is not None and limit >= 1]
    json = {**given, "limits": {name: given["limits"][name] for name in names}}
    slots = tuple(Slot(name, json["limits"][name]) for name in names)
    # The exchange form knows latencies of edges only; an op's own is the longest of them.
    latency = [0] * len(json["ops"])
    for src, _, cycles, _ in json["edges"]:
        latency[src] = max(latency[src], cycles)
    ops = []
    for index, op in enumerate(json["ops"]):
        is_timed = op["resource"] in names and op["duration"] > 0
        uses = (Use(names.index(op["resource"]), op["duration"]),) if is_timed else ()
        ops.append(Op(op["name"], uses, 0, latency[index]))
    edges = tuple(Edge(src, dst, cycles, distance) for src, dst, cycles, distance in json["edges"])
    problem = Problem(json["name"], tuple(ops), edges, slots)
    wrong = next(faults(problem), None)
    if wrong is not None:
        raise TextError(wrong)
    return problem


def _neutral(json: dict[str, Any]) -> dict[str, Any]:
    """The exchange form once its parts are known to be what they should be."""

    def expect(is_so: bool, place: str, what: str, found: object) -> None:
        if not is_so:
            raise TextError(f"{place}: expected {what}, found {found!r}")

    expect(type(json["name"]) is str, "name", "a string", json["name"])
    expect(type(json["limits"]) is dict, "limits", "an object", json["limits"])
    for name, limit in json["limits"].items():
        expect(limit is None or type(limit) is int, f"limits.{name}", "a whole number", limit)
    for key in ("ops", "edges"):
        expect(type(json[key]) is list, key, "an array", json[key])
    for index, op in enumerate(json["ops"]):
        whole = type(op) is dict and {"name", "resource", "duration"} <= {*op}
        expect(whole, f"ops[{index}]", "an object with name, resource and duration", op)
        expect(type(op["name"]) is str, f"ops[{index}].name", "a string", op["name"])
        named = op["resource"] is None or type(op["resource"]) is str
        expect(named, f"ops[{index}].resource", "a string or null", op["resource"])
        is_time = type(op["duration"]) is int and op["duration"] >= 0
        expect(is_time, f"ops[{index}].duration", "a whole number of cycles", op["duration"])
    for index, edge in enumerate(json["edges"]):
        is_edge = type(edge) is list and len(edge) == 4 and all(type(number) is int for number in edge)
        expect(is_edge, f"edges[{index}]", "[src, dst, latency, distance]", edge)
        inside = all(0 <= op < len(json["ops"]) for op in edge[:2])
        expect(inside, f"edges[{index}]", f"ops below {len(json['ops'])}", edge)
    return json


def _member(json: object, name: str) -> object:
    if not isinstance(json, dict) or name not in json:
        raise TextError(f"expected an object with '{name}'")
    if json.get("schema") != SCHEMA:
        raise TextError(f"schema is {json.get('schema')!r}, this version reads {SCHEMA}")
    return json[name]


# --- any of our frozen dataclasses ---


def encode(value: object) -> Any:
    """Dataclasses as objects, tuples as arrays, the rest as it is; without an `Op.file` that says nothing."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: encode(member) for name, member in members if (name, member) != ("file", "")}
    if isinstance(value, tuple):
        return [encode(member) for member in value]
    return value


def decode(wanted: type[T], json: object, place: str) -> T:
    """The inverse of `encode`, checked against the field types of `wanted`."""
    if not isinstance(json, dict):
        raise TextError(f"{place}: expected an object, found {json!r}")
    # Classes are hashable; the type checker is not told so for a type variable.
    hints, required = _fields(wanted)  # type: ignore[arg-type]
    for name in json:
        if name not in hints:
            raise TextError(f"{place}: '{name}' is not known here")
    for name in required:
        if name not in json:
            raise TextError(f"{place}: '{name}' is missing")
    return wanted(**{name: _decode(hints[name], member, f"{place}.{name}") for name, member in json.items()})


@cache
def _fields(wanted: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    fields = dataclasses.fields(wanted)
    hints = typing.get_type_hints(wanted)
    required = tuple(field.name for field in fields if field.default is dataclasses.MISSING)
    return {field.name: hints[field.name] for field in fields}, required


def _decode(hint: Any, json: object, place: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return decode(hint, json, place)
    if origin is tuple:
        if not isinstance(json, list):
            raise TextError(f"{place}: expected an array, found {json!r}")
        return tuple(_decode(arguments[0], member, f"{place}[{index}]") for index, member in enumerate(json))
    if origin is typing.Literal:
        if json not in arguments:
            raise TextError(f"{place}: expected one of {', '.join(map(repr, arguments))}, found {json!r}")
        return json
    if origin is types.UnionType:
        (inner,) = (argument for argument in arguments if argument is not types.NoneType)
        return None if json is None else _decode(inner, json, place)
    # True is an int to Python, not to us.
    if type(json) is not hint:
        raise TextError(f"{place}: expected {hint.__name__}, found {json!r}")
    return json
