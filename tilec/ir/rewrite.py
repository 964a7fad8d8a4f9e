"""Statements written anew, of tile IR and of warp IR alike.

A pass says what becomes of the statements that it is about; the lists of statements inside all others are found here,
by the types of the fields of their classes, so that a new kind of statement is known to every pass. What does not
change is kept: the same statement, and the same tuple of statements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar

S = TypeVar("S")

LISTS = ("tuple[Stmt, ...]", "tuple[Operation, ...]")
HOLDERS = ("tuple[Phase, ...]",)
"""Of fields whose values have lists of statements in them, but are no statements."""


def map_statements(body: tuple[S, ...], each: Callable[[S], S | tuple[S, ...]]) -> tuple[S, ...]:
    """The statements of one list, in order, as `each` makes them: one, several or none. What is inside them is left to
    `each`; most end in `with_bodies`."""
    made: list[S] = []
    is_same = True
    for stmt in body:
        new = each(stmt)
        if new is stmt:
            made.append(stmt)
        elif isinstance(new, tuple):
            made += new
            is_same = is_same and len(new) == 1 and new[0] is stmt
        else:
            made.append(new)
            is_same = False
    return body if is_same else tuple(made)


def with_bodies(stmt: S, each: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> S:
    """The statement with every list directly inside it as `each` makes it, in the order in which they run. Of
    whatever kind it is, those inside may be of all."""
    node: Any = stmt
    kind: Any = type(stmt)
    changed: dict[str, Any] = {}
    for name, is_list in _lists(kind):
        old = getattr(node, name)
        new = each(old) if is_list else map_statements(old, lambda holder: with_bodies(holder, each))
        if new is not old:
            changed[name] = new
    made: S = replace(node, **changed) if changed else stmt
    return made


def rewrite(body: tuple[S, ...], visit: Callable[[S], S | tuple[S, ...]]) -> tuple[S, ...]:
    """The statements with each one, those inside before those around them, as `visit` makes it: one, several or none.
    What `visit` makes is not visited again."""

    def inside(stmts: tuple[S, ...]) -> tuple[S, ...]:
        return map_statements(stmts, around)

    def around(stmt: S) -> S | tuple[S, ...]:
        return visit(with_bodies(stmt, inside))

    return inside(body)


@cache
def _lists(kind: Any) -> tuple[tuple[str, bool], ...]:
    """The fields of a class that hold lists of statements (True), or what has such lists, as they run."""
    found = [(f.name, f.type in LISTS) for f in fields(kind) if f.type in LISTS + HOLDERS]
    return tuple(sorted(found, key=lambda item: item[1]))
