"""Substitute variables and rename buffers in statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import (
    map_declared_variables,
    map_expressions,
    map_nested_bodies,
    rewrite_expression,
    rewrite_statements,
)


def substitute_stmt(stmt: tile.Stmt, values: Mapping[tile.Var, tile.Expr]) -> tile.Stmt:
    """Return a new statement with variables replaced in all its expressions and nested statements. A variable that it
    declares is renamed where it is replaced by another variable, else kept: a nest over threads stays one. The result
    is always a new statement, so that a caller may place it twice."""

    def rename_declared(var: tile.Var) -> tile.Var:
        """Return the new name of a declared variable, or itself if it is replaced by no variable."""
        named = values.get(var, var)
        return named if isinstance(named, tile.Var) else var

    def substitute_body(body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return tuple(substitute_stmt(s, values) for s in body)

    made = map_nested_bodies(map_declared_variables(stmt, rename_declared), substitute_body)
    made = map_expressions(made, lambda expr: tile.substitute_variables(expr, values))
    return replace(stmt) if made is stmt else made


def rename_buffers(stmt: tile.Stmt, names: Mapping[str, str]) -> tile.Stmt:
    """Return the statement, with all nested in it, with buffers renamed where `names` has their name."""

    def rename_buffer(old: tile.Buffer) -> tile.Buffer:
        return replace(old, name=names[old.name]) if old.name in names else old

    def rename_load(part: tile.Expr) -> tile.Expr:
        return replace(part, buffer=rename_buffer(part.buffer)) if isinstance(part, tile.Load) else part

    def rename_in_expr(old: tile.Expr) -> tile.Expr:
        return rewrite_expression(old, rename_load)

    def rename_in_statement(old: tile.Stmt) -> tile.Stmt:
        """Return one statement with its buffers and the loads in its expressions renamed."""
        match old:
            case tile.TileOp():
                return old.map_expressions(
                    lambda r: replace(map_expressions(r, rename_in_expr), buffer=rename_buffer(r.buffer)),
                    rename_in_expr,
                )
            case tile.Store():
                return map_expressions(replace(old, buffer=rename_buffer(old.buffer)), rename_in_expr)
            case _:
                return map_expressions(old, rename_in_expr)

    (made,) = rewrite_statements((stmt,), rename_in_statement)
    return made
