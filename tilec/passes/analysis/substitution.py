"""Substitute variables and rename buffers in statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import map_declared, map_expressions, rewrite, rewrite_expression, with_bodies


def substitute_stmt(stmt: tile.Stmt, values: Mapping[tile.Var, tile.Expr]) -> tile.Stmt:
    """Replace variables in every expression of the statement. A variable that it declares is renamed where it is
    replaced by another variable, else kept: a nest over threads stays one. The result is always a new statement, so
    that a caller may place it twice."""

    def declared(var: tile.Var) -> tile.Var:
        named = values.get(var, var)
        return named if isinstance(named, tile.Var) else var

    def inside(body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return tuple(substitute_stmt(s, values) for s in body)

    made = with_bodies(map_declared(stmt, declared), inside)
    made = map_expressions(made, lambda expr: tile.substitute(expr, values))
    return replace(stmt) if made is stmt else made


def renamed(stmt: tile.Stmt, names: Mapping[str, str]) -> tile.Stmt:
    """Rename buffers in the statement."""

    def buffer(old: tile.Buffer) -> tile.Buffer:
        return replace(old, name=names[old.name]) if old.name in names else old

    def load(part: tile.Expr) -> tile.Expr:
        return replace(part, buffer=buffer(part.buffer)) if isinstance(part, tile.Load) else part

    def expr(old: tile.Expr) -> tile.Expr:
        return rewrite_expression(old, load)

    def one(old: tile.Stmt) -> tile.Stmt:
        match old:
            case tile.TileOp():
                return old.map_expressions(lambda r: replace(map_expressions(r, expr), buffer=buffer(r.buffer)), expr)
            case tile.Store():
                return map_expressions(replace(old, buffer=buffer(old.buffer)), expr)
            case _:
                return map_expressions(old, expr)

    (made,) = rewrite((stmt,), one)
    return made
