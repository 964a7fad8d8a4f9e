"""The parts of the nodes of tile IR and warp IR, by the types of their fields: lists of statements, expressions, and
the variables that they declare.

Traversals and rewriters use it, so that a new kind of node, or a new field, is known to all of them. Operations of tile
IR, whose fields each file of `ops` types freely, describe themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any

from tilec.ir.operations.interfaces import OperationInterface
from tilec.support.records import dataclass

LISTS, HOLDERS = ("tuple[Stmt, ...]", "tuple[Operation, ...]"), ("tuple[Phase, ...]",)
EXPRESSIONS = {"Expr": False, "tuple[Expr, ...]": True}
VARIABLES = {"Var": False, "Var | None": False, "tuple[Var, ...]": True}
"""By type of field: True if it holds several."""


Fields = tuple[tuple[str, bool], ...]
"""The names of fields, each with whether it holds a tuple of parts."""


@dataclass(frozen=True, slots=True)
class PartFields:
    """The fields of a class that hold such parts, in order, none for an operation of tile IR; `read` returns the parts
    of a node."""

    fields: Fields
    read: Callable[[Any], tuple[Any, ...]]

    @classmethod
    def of(cls, kind: Any, types: dict[str, bool]) -> PartFields:
        if issubclass(kind, OperationInterface):
            return cls((), lambda node: ())
        found = tuple((f.name, types[f.type]) for f in fields(kind) if f.type in types)
        return cls(found, _make_part_reader(found))


def statement_list_fields(node: Any) -> Fields:
    """Return the fields of a node that hold lists of statements (True), or nodes with such lists that are no statements
    (False), in execution order."""
    kind: Any = type(node)
    return _statement_list_fields(kind)


def statement_lists(node: Any) -> tuple[Any, ...]:
    """Return the lists of statements directly inside a node, in execution order."""
    kind: Any = type(node)
    return _make_list_reader(kind)(node)


def expression_fields(node: Any) -> PartFields:
    """Return the fields that hold expressions in nodes of this node's class."""
    kind: Any = type(node)
    return _expression_fields(kind)


def declaration_fields(node: Any) -> PartFields:
    """Return the fields that hold declared variables in nodes of this node's class."""
    kind: Any = type(node)
    return _declaration_fields(kind)


@cache
def _expression_fields(kind: Any) -> PartFields:
    return PartFields.of(kind, EXPRESSIONS)


@cache
def _declaration_fields(kind: Any) -> PartFields:
    return PartFields.of(kind, VARIABLES)


@cache
def _statement_list_fields(kind: Any) -> Fields:
    found = [(f.name, f.type in LISTS) for f in fields(kind) if f.type in LISTS + HOLDERS]
    return tuple(sorted(found, key=lambda item: item[1]))


@cache
def _make_list_reader(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    found = _statement_list_fields(kind)
    if all(is_list for _, is_list in found):
        return _make_part_reader(tuple((name, False) for name, _ in found))

    def gather_lists(node: Any) -> tuple[Any, ...]:
        inside: list[Any] = []
        for name, is_list in found:
            value = getattr(node, name)
            inside += (value,) if is_list else (body for holder in value for body in statement_lists(holder))
        return tuple(inside)

    return gather_lists


def _make_part_reader(parts: Fields) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these fields of a node: a bare attrgetter wherever that is enough."""
    if not parts:
        return lambda node: ()
    read = attrgetter(*(name for name, _ in parts))
    if len(parts) == 1:
        return read if parts[0][1] else lambda node: (read(node),)
    if not any(is_many for _, is_many in parts):
        return read

    def gather_parts(node: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        for (_, is_many), value in zip(parts, read(node), strict=True):
            found += value if is_many else (value,)
        return tuple(found)

    return gather_parts
