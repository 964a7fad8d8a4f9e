"""T.annotate_safe_value: guards the reads of a tensor, which give the fill value out of bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tilec.analysis.box_starts import Coordinates, collect_coordinates
from tilec.frontend.sema.statements.per_thread import join_conditions
from tilec.ir import tile
from tilec.ir.expr import cast_expr
from tilec.ir.rewrite import map_expressions, map_nested_bodies, map_statements, rewrite_expression
from tilec.ir.types import BOOL
from tilec.ops.copies.copy import Copy
from tilec.ops.lowering import index_element


def fill_out_of_bounds_reads(
    kernel: tile.Kernel, values: Mapping[tile.Buffer, tile.Expr], fresh: Callable[[str], str]
) -> tile.Kernel:
    """Return the kernel with reads of these tensors giving their fill value outside them. Copies that may leave a
    tensor become elementwise nests; `fresh` makes the names of their variables.
    """
    if not values:
        return kernel
    rewriter = _FillRewriter(values, fresh, collect_coordinates(kernel))
    return replace(kernel, body=rewriter.rewrite_body(kernel.body))


class _FillRewriter:
    """Rewrites statements so that they read the fill values out of bounds."""

    def __init__(
        self, values: Mapping[tile.Buffer, tile.Expr], fresh: Callable[[str], str], coordinates: Coordinates
    ) -> None:
        self.values, self.fresh, self.coordinates = values, fresh, coordinates

    def rewrite_body(self, body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        """Return statements with the loads of the filled tensors guarded."""
        return map_statements(body, self.rewrite_statement)

    def rewrite_statement(self, stmt: tile.Stmt) -> tile.Stmt:
        """Guard a statement's loads, also inside it; a copy that may leave its tensor becomes a nest, other operations
        stay.
        """
        match stmt:
            case Copy(regions=(source, destination)) if source.buffer in self.values:
                return stmt if _is_in_bounds(source, self.coordinates) else self.rewrite_copy(source, destination, stmt)
            case tile.TileOp():
                return stmt
            case _:
                return map_nested_bodies(map_expressions(stmt, self.guard_loads), self.rewrite_body)

    def rewrite_copy(self, source: tile.Region, destination: tile.Region, op: tile.TileOp) -> tile.Parallel:
        """Return a T.Parallel nest that does a copy element by element, reading the fill value outside the tensor."""
        extents = destination.shape
        variables = tuple(tile.Var(self.fresh("place")) for _ in extents)
        read = self.guard_loads(tile.Load(source.buffer, index_element(source, variables, extents)))
        where = index_element(destination, variables, extents)
        store = tile.Store(destination.buffer, where, cast_expr(read, destination.buffer.dtype))
        return tile.Parallel(variables, extents, (store,), op.span)

    def guard_loads(self, expr: tile.Expr) -> tile.Expr:
        """Return an expression with every load of a filled tensor replaced by a guarded one."""
        return rewrite_expression(expr, self.guard_load)

    def guard_load(self, new: tile.Expr) -> tile.Expr:
        """Return a load of a filled tensor as a select between it, in bounds, and the fill value; others unchanged."""
        if not isinstance(new, tile.Load) or new.buffer not in self.values:
            return new
        bounds: list[tile.Expr] = []
        for index, size in zip(new.indices, new.buffer.extents, strict=True):
            not_below = tile.Binary("ge", index, tile.int32_const(0), BOOL)
            not_above = tile.Binary("lt", index, tile.extent_expr(size), BOOL)
            bounds.append(tile.Binary("and", not_below, not_above, BOOL))
        inside = join_conditions(bounds)
        assert inside is not None
        return tile.Select(inside, new, self.values[new.buffer], new.dtype)


def _is_in_bounds(region: tile.Region, coordinates: Coordinates) -> bool:
    """Return whether a box provably lies in its tensor for all blocks and iterations; False for a dynamic extent."""
    for start, extent, size in zip(region.start, region.extent, region.buffer.extents, strict=True):
        low, high = coordinates.find_bounds(start)
        if not isinstance(size, int) or low < 0 or high > size - extent:
            return False
    return True
