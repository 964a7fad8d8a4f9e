"""Let a nest that stores some rows or columns of a fragment to memory run over the whole fragment instead.

In `for i, j in T.Parallel(16, n): tile[i, j] = c[i + 16 * s, j]` the thread of an iteration may not hold its element of
`c`. Over the fragment's own indices each thread stores what it holds, if its row is one of these 16:
`for i, j in T.Parallel(rows, n): if 0 <= i - 16 * s < 16: tile[i - 16 * s, j] = c[i, j]`. So `c` does not pass through
a tile of its size in shared memory."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import map_expressions, map_nested_bodies
from tilec.ir.types import BOOL, INT32
from tilec.passes.layout.fragments.convert_layouts import LayoutConflict


def shift_nest(conflict: LayoutConflict) -> tile.Parallel | None:
    """Return a nest that stores rows or columns of a fragment to memory as a guarded nest over all of it; None for
    others."""
    nest, fragment = conflict.stmt, conflict.buffer
    if not isinstance(nest, tile.Parallel) or nest.is_per_thread or nest.layout is not None or nest.versioned:
        return None
    inside = list(tile.walk_statements(nest.body))
    loads = [load for stmt in inside for load in tile.walk_loads(stmt)]
    stores = [stmt for stmt in inside if isinstance(stmt, tile.Store)]
    if (
        len(nest.body) != 1
        or not all(isinstance(stmt, tile.Store | tile.If) for stmt in inside)
        or any(store.buffer.in_registers or store.previous is not None for store in stores)
        or {load.buffer for load in loads if load.buffer.in_registers} != {fragment}
        or fragment.scope != "fragment"
        or len({load.indices for load in loads if load.buffer == fragment}) != 1
    ):
        return None
    indices = next(load.indices for load in loads if load.buffer == fragment)
    shifts = [_find_shift(index, nest.vars) for index in indices]
    found = [shift for shift in shifts if shift is not None]
    if len(found) < len(indices) or sorted(at for at, _ in found) != list(range(len(nest.vars))):
        return None
    shifted: dict[tile.Var, tile.Expr] = {nest.vars[at]: _subtract_shift(nest.vars[at], by) for at, by in found}
    extents = list(nest.extents)
    conditions: list[tile.Expr] = []
    for (at, _), size in zip(found, fragment.shape, strict=True):
        extents[at] = size
        place = shifted[nest.vars[at]]
        if place != nest.vars[at]:
            conditions.append(tile.Binary("ge", place, tile.int32_const(0), BOOL))
        if place != nest.vars[at] or nest.extents[at] < size:
            conditions.append(tile.Binary("lt", place, tile.int32_const(nest.extents[at]), BOOL))

    if not conditions:
        return None

    def shift_statement(stmt: tile.Stmt) -> tile.Stmt:
        """Return a store or `if`, with all in it, with the nest's variables shifted."""
        if isinstance(stmt, tile.If):
            stmt = replace(stmt, condition=shift_expr(stmt.condition))
            return map_nested_bodies(stmt, lambda body: tuple(map(shift_statement, body)))
        assert isinstance(stmt, tile.Store)
        return replace(stmt, indices=tuple(map(shift_expr, stmt.indices)), value=shift_expr(stmt.value))

    def shift_expr(expr: tile.Expr) -> tile.Expr:
        """Return the expression with the nest's variables replaced, and loads of the fragment at the variables
        themselves."""
        if isinstance(expr, tile.Load) and expr.buffer == fragment:
            return replace(expr, indices=tuple(nest.vars[at] for at, _ in found))
        if isinstance(expr, tile.Var):
            return shifted.get(expr, expr)
        return map_expressions(expr, shift_expr)

    body = tuple(map(shift_statement, nest.body))
    for condition in reversed(conditions):
        body = (tile.If(condition, body, (), nest.span),)
    return replace(nest, extents=tuple(extents), body=body, width=None)


def _find_shift(index: tile.Expr, variables: tuple[tile.Var, ...]) -> tuple[int, tile.Expr] | None:
    """Return the number of the nest variable in an index, and the invariant added to it; None for another form."""
    if isinstance(index, tile.Var):
        return (variables.index(index), tile.int32_const(0)) if index in variables else None
    if not isinstance(index, tile.Binary) or index.op != "add":
        return None

    def may_vary(part: tile.Expr) -> bool:
        """Return whether an expression is a load, a nest variable, or one of the hardware's indices."""
        return isinstance(part, tile.Load) or (
            isinstance(part, tile.Var) and (part in variables or part.name[0] == "%")
        )

    for one, by in ((index.a, index.b), (index.b, index.a)):
        if isinstance(one, tile.Var) and one in variables and not any(map(may_vary, tile.walk_expr(by))):
            return variables.index(one), by
    return None


def _subtract_shift(variable: tile.Var, by: tile.Expr) -> tile.Expr:
    """Return the variable minus the shift; the variable itself for a shift of 0."""
    return variable if by == tile.int32_const(0) else tile.Binary("sub", variable, by, INT32)
