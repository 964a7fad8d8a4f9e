"""Rewriting of statements and expressions, for tile IR and warp IR alike.

A pass transforms the nodes that it is about; the parts of all other nodes are found here, by the types of the fields of
their classes (`ir.parts`), so that a new kind of node works with every pass. What does not change is kept: the same
node, and the same tuple of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import is_
from typing import Any, TypeVar

from tilec.ir.operations.interfaces import OperationInterface
from tilec.ir.parts import Fields, declaration_fields, expression_fields, statement_list_fields

S = TypeVar("S")

# ---- statements ------------------------------------------------------------------------------------------------------


def map_statements(body: tuple[S, ...], each: Callable[[S], S | tuple[S, ...]]) -> tuple[S, ...]:
    """Return a statement list with each statement replaced by `each`: one, several or none; the same tuple if nothing
    changes. Statements nested inside are left to `each`, which mostly calls `map_nested_bodies`."""
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


def map_nested_bodies(stmt: S, each: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> S:
    """Return the statement with every list directly inside it replaced by `each`, in execution order; itself if none
    changes. The statement and those inside may be of any kind."""
    node: Any = stmt
    changed: dict[str, Any] = {}
    for name, is_list in statement_list_fields(stmt):
        old = getattr(node, name)
        new = each(old) if is_list else map_statements(old, lambda holder: map_nested_bodies(holder, each))
        if new is not old:
            changed[name] = new
    made: S = replace(node, **changed) if changed else stmt
    return made


def rewrite_statements(body: tuple[S, ...], visit: Callable[[S], S | tuple[S, ...]]) -> tuple[S, ...]:
    """Return the statements, nested ones included, each replaced by `visit`, inner ones first: by one, several or none.
    Results of `visit` are not visited again."""

    def rewrite_list(stmts: tuple[S, ...]) -> tuple[S, ...]:
        """Return a statement list with every statement rewritten."""
        return map_statements(stmts, rewrite_one)

    def rewrite_one(stmt: S) -> S | tuple[S, ...]:
        """Return what `visit` makes of a statement whose nested statements have been rewritten."""
        return visit(map_nested_bodies(stmt, rewrite_list))

    return rewrite_list(body)


# ---- what is in a node -----------------------------------------------------------------------------------------------


def map_expressions(node: S, each: Callable[[Any], Any]) -> S:
    """Return a statement, region or expression with each expression directly in it replaced by `each`; itself if none
    changes. They come in the order of its fields. Expressions of nested statements are left to `map_nested_bodies`."""
    found = expression_fields(node).fields
    if found:
        return _map_fields(node, found, each)
    if not isinstance(node, OperationInterface):
        return node
    operation: Any = node
    made: S = operation.map_expressions(lambda region: map_expressions(region, each), each)
    return made


def map_declared_variables(stmt: S, each: Callable[[Any], Any]) -> S:
    """Return the statement with each variable that it declares replaced by `each`; uses of them stay."""
    return _map_fields(stmt, declaration_fields(stmt).fields, lambda var: None if var is None else each(var))


def rewrite_expression(expr: S, visit: Callable[[S], S]) -> S:
    """Return the expression with each of its parts replaced by `visit`, inner ones first, itself last. Results of
    `visit` are not visited again."""

    def rewrite_part(part: S) -> S:
        """Return what `visit` makes of a part whose own parts have been rewritten."""
        return visit(map_expressions(part, rewrite_part))

    return rewrite_part(expr)


def _map_fields(node: S, found: Fields, each: Callable[[Any], Any]) -> S:
    """Return the node with `each` applied to the values of these fields; the node itself if none changes."""
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
