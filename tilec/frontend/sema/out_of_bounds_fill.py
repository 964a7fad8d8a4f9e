"""T.annotate_safe_value: guards the reads of a tensor, which give the fill value out of bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.expr import cast
from tilec.ir.rewrite import map_expressions, map_statements, rewrite_expression, with_bodies
from tilec.ir.types import BOOL
from tilec.ops.copy import Copy
from tilec.ops.lowering import element
from tilec.passes.analysis.box_starts import Coordinates, coordinates_of


def with_values(
    kernel: tile.Kernel, values: Mapping[tile.Buffer, tile.Expr], fresh: Callable[[str], str]
) -> tile.Kernel:
    """Guard the reads of these tensors, so that they give the fill value out of bounds. Copies that may leave a tensor
    become elementwise nests; `fresh` makes the names of their variables."""
    if not values:
        return kernel
    rewriter = _Rewriter(values, fresh, coordinates_of(kernel))
    return replace(kernel, body=rewriter.body(kernel.body))


class _Rewriter:
    def __init__(
        self, values: Mapping[tile.Buffer, tile.Expr], fresh: Callable[[str], str], coordinates: Coordinates
    ) -> None:
        self.values, self.fresh, self.coordinates = values, fresh, coordinates

    def body(self, body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return map_statements(body, self.stmt)

    def stmt(self, stmt: tile.Stmt) -> tile.Stmt:
        match stmt:
            case Copy(regions=(source, destination)) if source.buffer in self.values:
                return stmt if _is_inside(source, self.coordinates) else self.copy(source, destination, stmt)
            case tile.TileOp():
                return stmt
            case _:
                return with_bodies(map_expressions(stmt, self.expr), self.body)

    def copy(self, source: tile.Region, destination: tile.Region, op: tile.TileOp) -> tile.Parallel:
        extents = destination.shape
        variables = tuple(tile.Var(self.fresh("place")) for _ in extents)
        read = self.expr(tile.Load(source.buffer, element(source, variables, extents)))
        where = element(destination, variables, extents)
        return tile.Parallel(
            variables, extents, (tile.Store(destination.buffer, where, cast(read, destination.buffer.dtype)),), op.span
        )

    def expr(self, expr: tile.Expr) -> tile.Expr:
        return rewrite_expression(expr, self.load)

    def load(self, new: tile.Expr) -> tile.Expr:
        if not isinstance(new, tile.Load) or new.buffer not in self.values:
            return new
        inside: tile.Expr | None = None
        for index, size in zip(new.indices, new.buffer.extents, strict=True):
            not_below = tile.Binary("ge", index, tile.integer(0), BOOL)
            not_above = tile.Binary("lt", index, tile.extent_expr(size), BOOL)
            both = tile.Binary("and", not_below, not_above, BOOL)
            inside = both if inside is None else tile.Binary("and", inside, both, BOOL)
        assert inside is not None
        return tile.Select(inside, new, self.values[new.buffer], new.dtype)


def _is_inside(region: tile.Region, coordinates: Coordinates) -> bool:
    """Return whether the whole box is known to lie in the tensor, for all values of blocks, loops and binds."""
    for start, extent, size in zip(region.start, region.extent, region.buffer.extents, strict=True):
        low, high = coordinates.bounds(start)
        if not isinstance(size, int) or low < 0 or high > size - extent:
            return False
    return True
