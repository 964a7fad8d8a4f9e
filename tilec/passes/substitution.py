"""Variables replaced by expressions, in statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.tile import (
    Bind,
    Break,
    Expr,
    For,
    If,
    Parallel,
    Print,
    Stmt,
    Store,
    TileOp,
    Var,
    While,
    substitute,
)


def substitute_stmt(stmt: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """The statement with variables replaced in every expression."""
    match stmt:
        case TileOp():
            regions = tuple(replace(r, start=tuple(substitute(s, values) for s in r.start)) for r in stmt.regions)
            attrs = tuple(
                (k, v if v is None or isinstance(v, int | float | bool | str) else substitute(v, values))
                for k, v in stmt.attrs
            )
            return replace(stmt, regions=regions, attrs=attrs)
        case Store():
            indices = tuple(substitute(i, values) for i in stmt.indices)
            return replace(stmt, indices=indices, value=substitute(stmt.value, values))
        case Print():
            return replace(stmt, values=tuple(substitute(v, values) for v in stmt.values))
        case Bind():
            var = values.get(stmt.var, stmt.var)
            assert isinstance(var, Var), "a bind keeps a name of its own"
            return replace(stmt, var=var, value=substitute(stmt.value, values))
        case Parallel():
            return replace(stmt, body=tuple(substitute_stmt(s, values) for s in stmt.body))
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
