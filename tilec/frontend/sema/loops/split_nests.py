"""Nests with loops or variables of their own inside: T.serial in T.Parallel, and T.alloc_var there.

The iterations of a nest are independent, so a loop inside it can stand around a part of it: `for i in T.Parallel(n): A;
for k in range(m): B; C` becomes a nest of A, a loop over k with a nest of B, and a nest of C. What a later part uses of
an earlier one, and each variable, is kept in a fragment with an element for each iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.analysis.usage import list_expressions
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ir.affine import reads_elements
from tilec.ir.rewrite import map_expressions, rewrite_expression, rewrite_statements
from tilec.ir.types import BOOL, INT32, DType
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

Values = Mapping[tile.Var, tile.Expr]
"""What stands for the variables that earlier parts of a nest have bound."""


def holds_loop(body: tuple[tile.Stmt, ...]) -> bool:
    """Return whether a `for` loop is among these statements of a nest, or inside one of them."""
    return any(isinstance(stmt, tile.For) for stmt in tile.walk_statements(body))


def place_variables(context: Context, nest: tile.Parallel) -> tile.Parallel:
    """Return a nest with its T.alloc_var variables as fragments that have an element for each iteration. The fragments
    replace the variables in `context.buffers`, and `context.nest_variables` is cleared.
    """
    made = {b.name: b for b in context.buffers if b.name in context.nest_variables}
    if not made:
        return nest
    fragments = {name: replace(buffer, extents=nest.extents) for name, buffer in made.items()}
    context.buffers[:] = [fragments.get(buffer.name, buffer) for buffer in context.buffers]
    context.nest_variables.clear()

    def place_load(expr: tile.Expr) -> tile.Expr:
        """Return a load of a T.alloc_var variable as a load of the fragment that replaces it; any other expression
        unchanged."""
        if isinstance(expr, tile.Load) and expr.buffer.name in fragments:
            return tile.Load(fragments[expr.buffer.name], nest.vars)
        return expr

    def place_statement(stmt: tile.Stmt) -> tile.Stmt:
        """Return a statement with its loads and stores of T.alloc_var variables moved to the fragments that replace
        them."""
        stmt = map_expressions(stmt, lambda expr: rewrite_expression(expr, place_load))
        if isinstance(stmt, tile.Store) and stmt.buffer.name in fragments:
            return replace(stmt, buffer=fragments[stmt.buffer.name], indices=nest.vars)
        return stmt

    return replace(nest, body=rewrite_statements(nest.body, place_statement))


def split_nest(context: Context, nest: tile.Parallel) -> tuple[tile.Stmt, ...]:
    """Return the loops and nests that together do what a nest with loops in it does; refuse warp-wide calls. Refused
    too are loops whose bounds depend on the iteration. Errors: `thread-dependent`, `loop-in-parallel`.
    """
    for stmt in tile.walk_statements(nest.body):
        if any(per_thread.has_collective_call(expr) for expr in list_expressions(stmt)):
            title = "warp-wide calls are not defined in a T.Parallel with a long loop in it"
            raise_error("thread-dependent", title, stmt.span, help="put the loop outside and T.Parallel inside")
    return tuple(_NestSplitter(context, nest).split_body(nest.body, (), {}))


@dataclass(frozen=True, slots=True)
class _NestSplitter:
    """Splits one nest around the loops in it, and adds fragments to the context for values that later parts read."""

    context: Context
    nest: tile.Parallel

    def split_body(
        self, body: tuple[tile.Stmt, ...], conditions: tuple[tile.Expr, ...], values: Values
    ) -> list[tile.Stmt]:
        """Return the loops and nests that do what statements of the nest do, all of them under these conditions.
        `values` stand for the variables bound before. Each value that a later part reads is kept in a new fragment.
        """
        found: list[tile.Stmt] = []
        run: list[tile.Stmt] = []
        values = dict(values)
        for given in body:
            stmt = _substitute_values(given, values)
            match stmt:
                case tile.Bind(var=var, value=value) if not reads_elements(value):
                    values[var] = value
                case tile.Bind(var=var, value=value):
                    store, values[var] = self.keep_value(var.name, value, stmt.span)
                    run.append(store)
                case tile.Store(previous=tile.Var() as var):
                    store, values[var] = self.keep_value(var.name, var, stmt.span)
                    run += [stmt, store]
                case tile.For():
                    self.check_bounds(stmt)
                    found += [*self.make_part(run, conditions), self.split_loop(stmt, conditions, values)]
                    run = []
                case tile.If() if holds_loop((stmt,)):
                    holds = stmt.condition
                    if reads_elements(holds):
                        store, holds = self.keep_value("holds", holds, stmt.span)
                        run.append(store)
                    found += self.make_part(run, conditions)
                    run = []
                    found += self.split_body(stmt.then, (*conditions, holds), values)
                    found += self.split_body(stmt.orelse, (*conditions, tile.Unary("not", holds, BOOL)), values)
                case _:
                    run += rewrite_statements((given,), lambda inner: _substitute_values(inner, values))
        return [*found, *self.make_part(run, conditions)]

    def split_loop(self, loop: tile.For, conditions: tuple[tile.Expr, ...], values: Values) -> tile.Stmt:
        """Return a loop of the nest as a loop around nests, run under these conditions."""
        return replace(loop, body=tuple(self.split_body(loop.body, conditions, values)))

    def make_part(self, run: list[tile.Stmt], conditions: tuple[tile.Expr, ...]) -> list[tile.Stmt]:
        """Return the nest, in a list, that runs statements under conditions; no nest if they store and print nothing.
        The nest has variables of its own.
        """
        body = tuple(run)
        if not any(isinstance(s, tile.Store | tile.Print) for s in tile.walk_statements(body)):
            return []
        for condition in reversed(conditions):
            body = (tile.If(condition, body, (), self.nest.span),)
        own = tuple(tile.Var(self.context.unique.take(var.name)) for var in self.nest.vars)
        renamed = dict(zip(self.nest.vars, own, strict=True))
        body = rewrite_statements(body, lambda stmt: _substitute_values(stmt, renamed))
        return [replace(self.nest, vars=own, body=body)]

    def keep_value(self, name: str, value: tile.Expr, span: Span) -> tuple[tile.Store, tile.Expr]:
        """Return the store of a value to a fragment that is new in the context, and an expression that reads it."""
        dtype: DType = value.dtype
        if dtype == BOOL:
            value = tile.Select(value, tile.int32_const(1), tile.int32_const(0), INT32)
        kept = self.context.allocate_buffer(name, self.nest.extents, value.dtype, "fragment", span)
        load: tile.Expr = tile.Load(kept, self.nest.vars)
        read = tile.Binary("ne", load, tile.int32_const(0), BOOL) if dtype == BOOL else load
        return tile.Store(kept, self.nest.vars, value, span), read

    def check_bounds(self, loop: tile.For) -> None:
        """Raise `loop-in-parallel` if a loop's bounds depend on the iteration of the nest."""
        parts = [e for bound in (loop.start, loop.stop) for e in tile.walk_expr(fold_expr(bound))]
        if any(part in self.nest.vars for part in parts):
            title = "a loop inside T.Parallel runs equally often in all iterations"
            way_out = "let it run to the largest count, with an `if` around its body"
            raise_error("loop-in-parallel", title, loop.span, "its bounds depend on the iteration", help=way_out)


def _substitute_values(stmt: tile.Stmt, values: Values) -> tile.Stmt:
    """Return a statement with variables in its own expressions replaced by what stands for them."""
    return map_expressions(stmt, lambda expr: tile.substitute_variables(expr, dict(values)))
