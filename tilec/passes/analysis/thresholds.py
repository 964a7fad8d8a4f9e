"""Solve comparisons for a loop's variable: below a threshold they have one value, above it the other."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import tile
from tilec.ir.affine import Affine, add_exprs, affine_form
from tilec.ir.types import BOOL, INT32
from tilec.passes.analysis.fold_constants import fold_expr

OPPOSITES: dict[str, tile.BinaryOp] = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


def solve_threshold(var: tile.Var, factor: int, rest: Affine) -> tile.Expr:
    """Solve factor · var + rest < 0 for the variable."""
    if factor == 0:
        return tile.Binary("lt", _build_sum(rest, 1, 0), tile.int32_const(0), BOOL)
    by = tile.int32_const(abs(factor))
    # Rounded down: factor · var < −rest  ⇔  var < ⌈−rest / factor⌉;  rest < −factor · var  ⇔  var > ⌊rest / −factor⌋.
    sign, extra = (-1, factor - 1) if factor > 0 else (1, -factor)
    bound = affine_form(tile.Binary("floordiv", _build_sum(rest, sign, extra), by, INT32))
    return tile.Binary("lt" if factor > 0 else "ge", var, _build_sum(bound, 1, 0), BOOL)


def _build_sum(form: Affine, factor: int, extra: int) -> tile.Expr:
    scaled = Affine(tuple((atom, c * factor) for atom, c in form.terms), 0)
    return fold_expr(add_exprs(scaled.without_constant(), tile.int32_const(form.constant * factor + extra)))


def build_difference(op: str, a: tile.Expr, b: tile.Expr) -> Affine:
    """Return the sum that is negative where the comparison holds."""
    left, right = (a, b) if op in ("lt", "le") else (b, a)
    form = affine_form(tile.Binary("sub", left, right, INT32))
    return form if op in ("lt", "gt") else replace(form, constant=form.constant - 1)


def find_threshold(comparison: tile.Binary, var: tile.Var, moving: frozenset[tile.Var]) -> tile.Binary | None:
    """Return the comparison as `var < …` or `var >= …`, if it changes its value once in the loop, else None. `moving`
    are variables that other statements of the loop set."""
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
