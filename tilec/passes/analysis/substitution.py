"""Variables replaced by expressions, and buffers called by other names, in statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.tile import (
    Bind,
    Break,
    Buffer,
    Expr,
    For,
    If,
    Load,
    Parallel,
    Print,
    Stmt,
    Store,
    TileOp,
    Var,
    While,
    children,
    substitute,
    with_children,
)


def substitute_stmt(stmt: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """The statement with variables replaced in every expression. Those that it declares get another name, where they
    are replaced by one: a nest over threads stays one where their index is replaced by an expression of it."""

    def declared(var: Var) -> Var:
        named = values.get(var, var)
        return named if isinstance(named, Var) else var

    match stmt:
        case TileOp():
            return stmt.map_expressions(
                lambda r: replace(r, start=tuple(substitute(s, values) for s in r.start)),
                lambda value: substitute(value, values),
            )
        case Store():
            indices = tuple(substitute(i, values) for i in stmt.indices)
            previous = stmt.previous and declared(stmt.previous)
            return replace(stmt, indices=indices, value=substitute(stmt.value, values), previous=previous)
        case Print():
            return replace(stmt, values=tuple(substitute(v, values) for v in stmt.values))
        case Bind():
            return replace(stmt, var=declared(stmt.var), value=substitute(stmt.value, values))
        case Parallel():
            body = tuple(substitute_stmt(s, values) for s in stmt.body)
            return replace(stmt, vars=tuple(declared(var) for var in stmt.vars), body=body)
        case While():
            return replace(
                stmt,
                condition=substitute(stmt.condition, values),
                body=tuple(substitute_stmt(s, values) for s in stmt.body),
            )
        case Break():
            return stmt
        case For():
            return replace(
                stmt,
                var=declared(stmt.var),
                start=substitute(stmt.start, values),
                stop=substitute(stmt.stop, values),
                body=tuple(substitute_stmt(s, values) for s in stmt.body),
            )
        case If():
            return replace(
                stmt,
                condition=substitute(stmt.condition, values),
                then=tuple(substitute_stmt(s, values) for s in stmt.then),
                orelse=tuple(substitute_stmt(s, values) for s in stmt.orelse),
            )


def renamed(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement on buffers of other names."""

    def buffer(old: Buffer) -> Buffer:
        return replace(old, name=names[old.name]) if old.name in names else old

    def expr(old: Expr) -> Expr:
        if isinstance(old, Load):
            old = replace(old, buffer=buffer(old.buffer))
        return with_children(old, tuple(expr(c) for c in children(old)))

    def body(stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(renamed(s, names) for s in stmts)

    match stmt:
        case TileOp():
            return stmt.map_expressions(
                lambda r: replace(r, buffer=buffer(r.buffer), start=tuple(map(expr, r.start))), expr
            )
        case Store():
            indices = tuple(map(expr, stmt.indices))
            return replace(stmt, buffer=buffer(stmt.buffer), indices=indices, value=expr(stmt.value))
        case Print():
            return replace(stmt, values=tuple(map(expr, stmt.values)))
        case Bind():
            return replace(stmt, value=expr(stmt.value))
        case Parallel():
            return replace(stmt, body=body(stmt.body))
        case For():
            return replace(stmt, start=expr(stmt.start), stop=expr(stmt.stop), body=body(stmt.body))
        case While():
            return replace(stmt, condition=expr(stmt.condition), body=body(stmt.body))
        case If():
            return replace(stmt, condition=expr(stmt.condition), then=body(stmt.then), orelse=body(stmt.orelse))
        case Break():
            return stmt
