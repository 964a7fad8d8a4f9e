"""What a block loads of the tensors, and which blocks load the same.

The rows of A that a product's tile needs are a strip, which all blocks in a row of the grid load; and so are the
columns of B for those above each other. Which indices of a block a copy depends on is followed through the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.ir.tile import Bind, Expr, For, If, Kernel, Load, Stmt, Var, While, walk_expr
from tilec.ops.copy import Copy
from tilec.passes.analysis.trip_count import static_trips
from tilec.passes.memory.multicast import shared_axes
from tilec.support.records import dataclass

UNKNOWN_TRIPS = 64
"""What a loop counts as whose trips only the launch knows: it is the same for all copies in it."""


@dataclass(frozen=True, slots=True)
class Strip:
    """What one block reads through one copy: `bytes`, in all trips of the loops around it. Blocks read the same where
    their indices along `axes` agree; `shared` are those along which blocks of a cluster load it together. `by_data`:
    which it is depends on elements of a tensor."""

    tile: str
    axes: str
    bytes: int
    shared: str = ""
    by_data: bool = False


def strips(kernel: Kernel) -> tuple[Strip, ...]:
    """Of all copies from tensors, in the order of the text."""
    axes = {var: frozenset(axis) for var, axis in zip(kernel.block_vars, "xyz", strict=False)}
    return tuple(_strips(kernel.body, _Known(axes, set()), 1))


@dataclass(frozen=True, slots=True)
class _Known:
    """The axes of the grid that variables depend on, and those that depend on elements of tensors."""

    axes: dict[Var, frozenset[str]]
    data: set[Var]

    def of(self, *exprs: Expr) -> frozenset[str]:
        return frozenset(axis for part in _parts(exprs) if isinstance(part, Var) for axis in self.axes.get(part, ()))

    def by_data(self, *exprs: Expr) -> bool:
        return any(isinstance(part, Load) or part in self.data for part in _parts(exprs))

    def define(self, var: Var, *exprs: Expr) -> None:
        self.axes[var] = self.of(*exprs)
        if self.by_data(*exprs):
            self.data.add(var)


def _parts(exprs: tuple[Expr, ...]) -> Iterator[Expr]:
    return (part for expr in exprs for part in walk_expr(expr))


def _strips(stmts: tuple[Stmt, ...], known: _Known, trips: int) -> Iterator[Strip]:
    for stmt in stmts:
        match stmt:
            case Bind(var=var, value=value):
                known.define(var, value)
            case For(var=var, start=start, stop=stop, body=body):
                known.define(var, start, stop)
                count = static_trips(stmt)
                yield from _strips(body, known, trips * (UNKNOWN_TRIPS if count is None else count))
            case While(body=body):
                yield from _strips(body, known, trips * UNKNOWN_TRIPS)
            case If(then=then, orelse=orelse):
                yield from _strips((*then, *orelse), known, trips)
            case Copy(regions=(source, tile, *_)) if source.buffer.scope == "global":
                size = math.prod(source.extent) * source.buffer.dtype.bits // 8 * trips
                axes = "".join(sorted(known.of(*source.start)))
                yield Strip(tile.buffer.name, axes, size, shared_axes(stmt), known.by_data(*source.start))
            case _:
                pass
