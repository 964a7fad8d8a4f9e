"""Statements and expressions written anew, of tile IR and of warp IR alike.

A pass says what becomes of the nodes that it is about; what is inside all others is found here, by the types of the
fields of their classes (`ir.parts`), so that a new kind of node is known to every pass. What does not change is kept:
the same node, and the same tuple of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import is_
from typing import Any, TypeVar

from tilec.ir.operation_interfaces import Asked
from tilec.ir.parts import Fields, declared, expressions, list_fields

S = TypeVar("S")

# ---- statements ------------------------------------------------------------------------------------------------------


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
    changed: dict[str, Any] = {}
    for name, is_list in list_fields(stmt):
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


# ---- what is in a node -----------------------------------------------------------------------------------------------


def map_expressions(node: S, each: Callable[[Any], Any]) -> S:
    """The node – a statement, a region, an expression – with every expression directly in it as `each` makes it, in the
    order of its fields. What statements inside it hold is left to `with_bodies`."""
    found = expressions(node).fields
    if found:
        return _with_parts(node, found, each)
    if not isinstance(node, Asked):
        return node
    operation: Any = node
    made: S = operation.map_expressions(lambda region: map_expressions(region, each), each)
    return made


def map_declared(stmt: S, each: Callable[[Any], Any]) -> S:
    """The statement with every variable that it declares as `each` names it; what uses one is left as it is."""
    return _with_parts(stmt, declared(stmt).fields, lambda var: None if var is None else each(var))


def rewrite_expression(expr: S, visit: Callable[[S], S]) -> S:
    """The expression with each part of it, those inside before those around them, as `visit` makes it. What `visit`
    makes is not visited again."""

    def around(part: S) -> S:
        return visit(map_expressions(part, around))

    return around(expr)


def _with_parts(node: S, found: Fields, each: Callable[[Any], Any]) -> S:
    whole: Any = node
    changed: dict[str, Any] | None = None
    for name, is_many in found:
        old = getattr(whole, name)
        if not is_many:
            new = each(old)
            if new is old:
                continue
        else:
            new = tuple(map(each, old))
            if all(map(is_, new, old)):
                continue
        if changed is None:
            changed = {}
        changed[name] = new
    made: S = node if changed is None else replace(whole, **changed)
    return made
