"""The branch that most iterations of a pipelined loop take: that of the middle iteration, of the middle iteration of
each loop around, in the middle block of the grid. It is the likely one where the condition compares the loop's variable
with thresholds, as those of `loop.eliminate_masks` do."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.passes.analysis.thresholds import find_threshold
from tilec.passes.analysis.trip_count import build_trip_count


def select_likely_branch(stmt: tile.Stmt, loop: tile.For, kernel: tile.Kernel) -> tile.Stmt:
    """Return the part of a loop's statement that most iterations run: all of a branch that depends on data."""
    likely = _find_likely_branch(stmt, loop, kernel) if isinstance(stmt, tile.If) else None
    return stmt if likely is None or not isinstance(stmt, tile.If) else replace(stmt, then=likely, orelse=())


def _find_likely_branch(stmt: tile.If, loop: tile.For, kernel: tile.Kernel) -> tuple[tile.Stmt, ...] | None:
    moving = frozenset({loop.var, *(s.var for s in tile.walk_statements(loop.body) if isinstance(s, tile.Bind))})
    if not _has_thresholds_only(stmt.condition, loop.var, moving):
        return None
    blocks = zip(kernel.block_vars, kernel.grid, strict=False)
    names: dict[tile.Var, tile.Expr] = {
        var: tile.int32_const(extent // 2) for var, extent in blocks if isinstance(extent, int)
    }
    found = _find_middle_values(kernel.body, loop, names)
    taken = None if found is None else fold_expr(tile.substitute_variables(stmt.condition, found))
    return (stmt.then if taken.value else stmt.orelse) if isinstance(taken, tile.Const) else None


def _find_middle_values(
    body: tuple[tile.Stmt, ...], loop: tile.For, names: dict[tile.Var, tile.Expr]
) -> dict[tile.Var, tile.Expr] | None:
    """Return the known values of variables in the middle iteration of the loop; None if it is not in this body."""
    known = dict(names)
    for stmt in body:
        if isinstance(stmt, tile.Bind):
            known[stmt.var] = fold_expr(tile.substitute_variables(stmt.value, known))
            continue
        within = {**known, **_find_middle_iteration(stmt, known)} if isinstance(stmt, tile.For) else known
        if stmt is loop:
            return within
        for inner in tile.nested_bodies(stmt):
            if (found := _find_middle_values(inner, loop, within)) is not None:
                return found
    return None


def _find_middle_iteration(loop: tile.For, names: dict[tile.Var, tile.Expr]) -> dict[tile.Var, tile.Expr]:
    start, count = (fold_expr(tile.substitute_variables(e, names)) for e in (loop.start, build_trip_count(loop)))
    if isinstance(start, tile.Const) and isinstance(count, tile.Const) and int(count.value) > 0:
        return {loop.var: tile.int32_const(int(start.value) + int(count.value) // 2 * loop.step)}
    return {}


def _has_thresholds_only(condition: tile.Expr, var: tile.Var, moving: frozenset[tile.Var]) -> bool:
    match condition:
        case tile.Unary(op="not", a=a):
            return _has_thresholds_only(a, var, moving)
        case tile.Binary(op="and" | "or", a=a, b=b, dtype=dtype) if dtype == BOOL:
            return _has_thresholds_only(a, var, moving) and _has_thresholds_only(b, var, moving)
        case tile.Binary():
            return find_threshold(condition, var, moving) is not None
        case _:
            return False
