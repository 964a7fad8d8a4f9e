"""The parts of the nodes of tile IR and warp IR, by the types of their fields: lists of statements, expressions, and
the variables that they declare.

Traversals and rewriters use it, so that a new kind of node, or a new field, is known to all of them. Operations of tile
IR, whose fields each file of `ops` types freely, describe themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache, wraps
from operator import attrgetter
from typing import Any, TypeVar

from tilec.ir.operations.interfaces import OperationInterface
from tilec.support.records import dataclass

LISTS, HOLDERS = ("tuple[Stmt, ...]", "tuple[Operation, ...]"), ("tuple[Phase, ...]",)
EXPRESSIONS = {"Expr": False, "tuple[Expr, ...]": True}
VARIABLES = {"Var": False, "Var | None": False, "tuple[Var, ...]": True}
"""By type of field: True if it holds several."""


Found = TypeVar("Found")
Fields = tuple[tuple[str, bool], ...]
"""The names of fields, each with whether it holds a tuple of parts."""


@dataclass(frozen=True, slots=True)
class PartFields:
    """The fields of a class that hold such parts, in order, none for an operation of tile IR; `read` returns the parts
    of a node."""

    fields: Fields
    read: Callable[[Any], tuple[Any, ...]]


def _cache_by_class(describe: Callable[[Any], Found]) -> Callable[[Any], Found]:
    """Return a function of a node that returns `describe(its class)`, computed once for each class."""
    described: Callable[[Any], Found] = cache(describe)
    return wraps(describe)(lambda node: described(type(node)))


def _find_part_fields(kind: Any, types: dict[str, bool]) -> PartFields:
    """Return the fields of a node's class whose annotation is in `types`, with their reader; none for operations of
    tile IR."""
    inspected = () if issubclass(kind, OperationInterface) else fields(kind)
    found = tuple((f.name, types[f.type]) for f in inspected if f.type in types)
    return PartFields(found, make_part_reader(found))


@_cache_by_class
def expression_fields(kind: Any) -> PartFields:
    """Return the fields of a node's class that hold expressions, with a reader of them; none for operations of tile
    IR."""
    return _find_part_fields(kind, EXPRESSIONS)


@_cache_by_class
def declaration_fields(kind: Any) -> PartFields:
    """Return the fields of a node's class that hold declared variables, with a reader of them."""
    return _find_part_fields(kind, VARIABLES)


@_cache_by_class
def statement_list_fields(kind: Any) -> Fields:
    """Return the fields that hold lists of statements (True) or holders of such lists (False), holders first."""
    found = [(f.name, f.type in LISTS) for f in fields(kind) if f.type in LISTS + HOLDERS]
    return tuple(sorted(found, key=lambda item: item[1]))


@_cache_by_class
def _list_reader(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the statement lists directly inside a node of this class, those of holders
    included."""
    is_list = {f.name: f.type in LISTS for f in fields(kind) if f.type in LISTS + HOLDERS}
    if all(is_list.values()):
        return make_part_reader(tuple((name, False) for name in is_list))

    def gather_lists(node: Any) -> tuple[Any, ...]:
        """Return a node's statement lists and those of the nodes that its holder fields contain, in execution order."""
        inside: list[Any] = []
        for name, holds_statements in statement_list_fields(node):
            value = getattr(node, name)
            inside += (value,) if holds_statements else (body for holder in value for body in statement_lists(holder))
        return tuple(inside)

    return gather_lists


def statement_lists(node: Any) -> tuple[Any, ...]:
    """Return the statement lists directly inside a node, those of its phases included, in execution order."""
    return _list_reader(node)(node)


def make_part_reader(parts: Fields) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these fields of a node as one flat tuple: a bare attrgetter wherever that is
    enough."""
    if not parts:
        return lambda node: ()
    read = attrgetter(*(name for name, _ in parts))
    if len(parts) == 1:
        return read if parts[0][1] else lambda node: (read(node),)
    if not any(is_many for _, is_many in parts):
        return read

    def gather_parts(node: Any) -> tuple[Any, ...]:
        """Return the values of the fields, with the members of fields that hold several, in one tuple."""
        found: list[Any] = []
        for (_, is_many), value in zip(parts, read(node), strict=True):
            found += value if is_many else (value,)
        return tuple(found)

    return gather_parts
