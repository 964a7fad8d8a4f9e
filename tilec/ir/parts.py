"""What the nodes of tile IR and of warp IR are made of, as the types of their fields say: lists of statements,
expressions, and variables that they declare.

Walks read it and rewriters write it, so that a new kind of node, or a new field of one, is known to all of them.
Operations of tile IR, whose fields each file of `ops` types as it likes, say themselves what they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any

from tilec.ir.operation_interfaces import Asked
from tilec.support.records import dataclass

LISTS, HOLDERS = ("tuple[Stmt, ...]", "tuple[Operation, ...]"), ("tuple[Phase, ...]",)
EXPRESSIONS = {"Expr": False, "tuple[Expr, ...]": True}
VARIABLES = {"Var": False, "Var | None": False, "tuple[Var, ...]": True}
"""Whether a field of such a type holds several."""


Fields = tuple[tuple[str, bool], ...]
"""The names of fields, each with whether it holds a tuple of such parts."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The fields of a class that hold such parts, in their order, and none of an operation's; `read` gives what they
    hold in a node, one after the other."""

    fields: Fields
    read: Callable[[Any], tuple[Any, ...]]

    @classmethod
    def of(cls, kind: Any, types: dict[str, bool]) -> Parts:
        if issubclass(kind, Asked):
            return cls((), lambda node: ())
        found = tuple((f.name, types[f.type]) for f in fields(kind) if f.type in types)
        return cls(found, _reader(found))


def list_fields(node: Any) -> Fields:
    """The fields of a node that hold lists of statements (True), or what has such lists but is no statement, in the
    order in which they run."""
    kind: Any = type(node)
    return _list_fields(kind)


def lists(node: Any) -> tuple[Any, ...]:
    """The lists of statements directly inside a node, in the order in which they run."""
    kind: Any = type(node)
    return _lists_of(kind)(node)


def expressions(node: Any) -> Parts:
    """The expressions directly in nodes of this one's class."""
    kind: Any = type(node)
    return _expressions_of(kind)


def declared(node: Any) -> Parts:
    """What names, in nodes of this one's class, the variables that statements inside it or behind it see."""
    kind: Any = type(node)
    return _declared_of(kind)


@cache
def _expressions_of(kind: Any) -> Parts:
    return Parts.of(kind, EXPRESSIONS)


@cache
def _declared_of(kind: Any) -> Parts:
    return Parts.of(kind, VARIABLES)


@cache
def _list_fields(kind: Any) -> Fields:
    found = [(f.name, f.type in LISTS) for f in fields(kind) if f.type in LISTS + HOLDERS]
    return tuple(sorted(found, key=lambda item: item[1]))


@cache
def _lists_of(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    found = _list_fields(kind)
    if all(is_list for _, is_list in found):
        return _reader(tuple((name, False) for name, _ in found))

    def gathered(node: Any) -> tuple[Any, ...]:
        inside: list[Any] = []
        for name, is_list in found:
            value = getattr(node, name)
            inside += (value,) if is_list else (body for holder in value for body in lists(holder))
        return tuple(inside)

    return gathered


def _reader(parts: Fields) -> Callable[[Any], tuple[Any, ...]]:
    """What reads these fields of a node: of several without a tuple among them, and of one tuple, at no cost."""
    if not parts:
        return lambda node: ()
    read = attrgetter(*(name for name, _ in parts))
    if len(parts) == 1:
        return read if parts[0][1] else lambda node: (read(node),)
    if not any(is_many for _, is_many in parts):
        return read

    def gathered(node: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        for (_, is_many), value in zip(parts, read(node), strict=True):
            found += value if is_many else (value,)
        return tuple(found)

    return gathered
