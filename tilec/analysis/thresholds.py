"""Comparisons of a loop's variable that have one value below a threshold and the other above it, and the branch that
most iterations take by them: that of the middle iteration, of the middle iteration of each loop around, in the middle
block of the grid. `passes.loop.eliminate_masks` makes such comparisons."""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.trip_count import build_trip_count
from tilec.ir import tile
from tilec.ir.affine import Affine, add_exprs, affine_form
from tilec.ir.types import BOOL, INT32
from tilec.rewriting.fold_constants import fold_expr

OPPOSITES: dict[str, tile.BinaryOp] = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


def solve_threshold(var: tile.Var, factor: int, rest: Affine) -> tile.Expr:
    """Return `factor · var + rest < 0` as `var < bound` or `var >= bound`; for factor 0 as `rest < 0`."""
    if factor == 0:
        return tile.Binary("lt", _build_sum(rest, 1, 0), tile.int32_const(0), BOOL)
    by = tile.int32_const(abs(factor))
    # Rounded down: factor · var < −rest  ⇔  var < ⌈−rest / factor⌉;  rest < −factor · var  ⇔  var > ⌊rest / −factor⌋.
    sign, extra = (-1, factor - 1) if factor > 0 else (1, -factor)
    bound = affine_form(tile.Binary("floordiv", _build_sum(rest, sign, extra), by, INT32))
    return tile.Binary("lt" if factor > 0 else "ge", var, _build_sum(bound, 1, 0), BOOL)


def _build_sum(form: Affine, factor: int, extra: int) -> tile.Expr:
    """Return the expression factor · form + extra, folded."""
    scaled = Affine(tuple((atom, c * factor) for atom, c in form.terms), 0)
    return fold_expr(add_exprs(scaled.without_constant(), tile.int32_const(form.constant * factor + extra)))


def build_difference(op: str, a: tile.Expr, b: tile.Expr) -> Affine:
    """Return the sum of a and b's terms that is negative exactly where the integer comparison `a op b` holds."""
    left, right = (a, b) if op in ("lt", "le") else (b, a)
    form = affine_form(tile.Binary("sub", left, right, INT32))
    return form if op in ("lt", "gt") else replace(form, constant=form.constant - 1)


def find_threshold(comparison: tile.Binary, var: tile.Var, moving: frozenset[tile.Var]) -> tile.Binary | None:
    """Return the comparison as `var < bound` or `var >= bound` with a bound fixed in the loop, or None if it has none.
    `moving` are variables that other statements of the loop set."""
    if comparison.op not in tile.COMPARISONS[:4] or comparison.a.dtype != INT32:
        return None
    form = build_difference(comparison.op, comparison.a, comparison.b)
    factor = dict(form.terms).get(var, 0)
    rest = Affine(tuple((atom, c) for atom, c in form.terms if atom != var), form.constant)
    parts = [part for atom, _ in rest.terms for part in tile.walk_expr(atom)]
    if factor == 0 or any(part in moving or isinstance(part, tile.Load) for part in parts):
        return None
    solved = solve_threshold(var, factor, rest)
    assert isinstance(solved, tile.Binary)
    return solved


def select_likely_branch(stmt: tile.Stmt, loop: tile.For, kernel: tile.Kernel) -> tile.Stmt:
    """Return an `if` reduced to the branch that the middle iteration takes; as it is if unknown, like any other
    statement."""
    likely = _find_likely_branch(stmt, loop, kernel) if isinstance(stmt, tile.If) else None
    return stmt if likely is None or not isinstance(stmt, tile.If) else replace(stmt, then=likely, orelse=())


def _find_likely_branch(stmt: tile.If, loop: tile.For, kernel: tile.Kernel) -> tuple[tile.Stmt, ...] | None:
    """Return the branch that the loop's middle iteration takes in the middle block; None if that is not known."""
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
    """Return the known values of variables in the loop's middle iteration; None if the loop is not in this body."""
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
    """Return the loop variable's value in the middle iteration; nothing if start or trip count is unknown."""
    start, count = (fold_expr(tile.substitute_variables(e, names)) for e in (loop.start, build_trip_count(loop)))
    if isinstance(start, tile.Const) and isinstance(count, tile.Const) and int(count.value) > 0:
        return {loop.var: tile.int32_const(int(start.value) + int(count.value) // 2 * loop.step)}
    return {}


def _has_thresholds_only(condition: tile.Expr, var: tile.Var, moving: frozenset[tile.Var]) -> bool:
    """Return whether a condition has only comparisons, joined by and, or, not, that change once in the loop."""
    match condition:
        case tile.Unary(op="not", a=a):
            return _has_thresholds_only(a, var, moving)
        case tile.Binary(op="and" | "or", a=a, b=b, dtype=dtype) if dtype == BOOL:
            return _has_thresholds_only(a, var, moving) and _has_thresholds_only(b, var, moving)
        case tile.Binary():
            return find_threshold(condition, var, moving) is not None
        case _:
            return False
