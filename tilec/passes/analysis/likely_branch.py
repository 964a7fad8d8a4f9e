"""The branch that most iterations of a pipelined loop take: that of the middle iteration, of the middle iteration of
each loop around, in the middle block of the grid. It is the likely one where the condition compares the loop's variable
with thresholds, as those of `loop.eliminate_masks` do."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.passes.analysis.thresholds import limit
from tilec.passes.analysis.trip_count import trip_count


def in_most_iterations(stmt: tile.Stmt, loop: tile.For, kernel: tile.Kernel) -> tile.Stmt:
    """Return the part of a loop's statement that most iterations run: all of a branch that depends on data."""
    likely = _likely_branch(stmt, loop, kernel) if isinstance(stmt, tile.If) else None
    return stmt if likely is None or not isinstance(stmt, tile.If) else replace(stmt, then=likely, orelse=())


def _likely_branch(stmt: tile.If, loop: tile.For, kernel: tile.Kernel) -> tuple[tile.Stmt, ...] | None:
    moving = frozenset({loop.var, *(s.var for s in tile.walk(loop.body) if isinstance(s, tile.Bind))})
    if not _has_thresholds_only(stmt.condition, loop.var, moving):
        return None
    blocks = zip(kernel.block_vars, kernel.grid, strict=False)
    names: dict[tile.Var, tile.Expr] = {
        var: tile.integer(extent // 2) for var, extent in blocks if isinstance(extent, int)
    }
    found = _names_in(kernel.body, loop, names)
    taken = None if found is None else fold_expr(tile.substitute(stmt.condition, found))
    return (stmt.then if taken.value else stmt.orelse) if isinstance(taken, tile.Const) else None


def _names_in(
    body: tuple[tile.Stmt, ...], loop: tile.For, names: dict[tile.Var, tile.Expr]
) -> dict[tile.Var, tile.Expr] | None:
    """Return the known values of variables in the middle iteration of the loop; None if it is not in this body."""
    known = dict(names)
    for stmt in body:
        if isinstance(stmt, tile.Bind):
            known[stmt.var] = fold_expr(tile.substitute(stmt.value, known))
            continue
        within = {**known, **_middle(stmt, known)} if isinstance(stmt, tile.For) else known
        if stmt is loop:
            return within
        for inner in tile.bodies(stmt):
            if (found := _names_in(inner, loop, within)) is not None:
                return found
    return None


def _middle(loop: tile.For, names: dict[tile.Var, tile.Expr]) -> dict[tile.Var, tile.Expr]:
    start, count = (fold_expr(tile.substitute(e, names)) for e in (loop.start, trip_count(loop)))
    if isinstance(start, tile.Const) and isinstance(count, tile.Const) and int(count.value) > 0:
        return {loop.var: tile.integer(int(start.value) + int(count.value) // 2 * loop.step)}
    return {}


def _has_thresholds_only(condition: tile.Expr, var: tile.Var, moving: frozenset[tile.Var]) -> bool:
    match condition:
        case tile.Unary(op="not", a=a):
            return _has_thresholds_only(a, var, moving)
        case tile.Binary(op="and" | "or", a=a, b=b, dtype=dtype) if dtype == BOOL:
            return _has_thresholds_only(a, var, moving) and _has_thresholds_only(b, var, moving)
        case tile.Binary():
            return limit(condition, var, moving) is not None
        case _:
            return False
