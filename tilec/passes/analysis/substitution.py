"""Variables replaced by expressions, and buffers called by other names, in statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir import tile


def substitute_stmt(stmt: tile.Stmt, values: Mapping[tile.Var, tile.Expr]) -> tile.Stmt:
    """The statement with variables replaced in every expression. Those that it declares get another name, where they
    are replaced by one: a nest over threads stays one where their index is replaced by an expression of it."""

    def declared(var: tile.Var) -> tile.Var:
        named = values.get(var, var)
        return named if isinstance(named, tile.Var) else var

    match stmt:
        case tile.TileOp():
            return stmt.map_expressions(
                lambda r: replace(r, start=tuple(tile.substitute(s, values) for s in r.start)),
                lambda value: tile.substitute(value, values),
            )
        case tile.Store():
            indices = tuple(tile.substitute(i, values) for i in stmt.indices)
            previous = stmt.previous and declared(stmt.previous)
            return replace(stmt, indices=indices, value=tile.substitute(stmt.value, values), previous=previous)
        case tile.Print():
            return replace(stmt, values=tuple(tile.substitute(v, values) for v in stmt.values))
        case tile.Bind():
            return replace(stmt, var=declared(stmt.var), value=tile.substitute(stmt.value, values))
        case tile.Parallel():
            body = tuple(substitute_stmt(s, values) for s in stmt.body)
            return replace(stmt, vars=tuple(declared(var) for var in stmt.vars), body=body)
        case tile.While():
            return replace(
                stmt,
                condition=tile.substitute(stmt.condition, values),
                body=tuple(substitute_stmt(s, values) for s in stmt.body),
            )
        case tile.Break():
            return stmt
        case tile.For():
            return replace(
                stmt,
                var=declared(stmt.var),
                start=tile.substitute(stmt.start, values),
                stop=tile.substitute(stmt.stop, values),
                body=tuple(substitute_stmt(s, values) for s in stmt.body),
            )
        case tile.If():
            return replace(
                stmt,
                condition=tile.substitute(stmt.condition, values),
                then=tuple(substitute_stmt(s, values) for s in stmt.then),
                orelse=tuple(substitute_stmt(s, values) for s in stmt.orelse),
            )


def renamed(stmt: tile.Stmt, names: Mapping[str, str]) -> tile.Stmt:
    """The statement on buffers of other names."""

    def buffer(old: tile.Buffer) -> tile.Buffer:
        return replace(old, name=names[old.name]) if old.name in names else old

    def expr(old: tile.Expr) -> tile.Expr:
        if isinstance(old, tile.Load):
            old = replace(old, buffer=buffer(old.buffer))
        return tile.with_children(old, tuple(expr(c) for c in tile.children(old)))

    def body(stmts: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return tuple(renamed(s, names) for s in stmts)

    match stmt:
        case tile.TileOp():
            return stmt.map_expressions(
                lambda r: replace(r, buffer=buffer(r.buffer), start=tuple(map(expr, r.start))), expr
            )
        case tile.Store():
            indices = tuple(map(expr, stmt.indices))
            return replace(stmt, buffer=buffer(stmt.buffer), indices=indices, value=expr(stmt.value))
        case tile.Print():
            return replace(stmt, values=tuple(map(expr, stmt.values)))
        case tile.Bind():
            return replace(stmt, value=expr(stmt.value))
        case tile.Parallel():
            return replace(stmt, body=body(stmt.body))
        case tile.For():
            return replace(stmt, start=expr(stmt.start), stop=expr(stmt.stop), body=body(stmt.body))
        case tile.While():
            return replace(stmt, condition=expr(stmt.condition), body=body(stmt.body))
        case tile.If():
            return replace(stmt, condition=expr(stmt.condition), then=body(stmt.then), orelse=body(stmt.orelse))
        case tile.Break():
            return stmt
