"""Elementwise nests that only move data: the same as a copy of a whole tile, which hardware can make on its own."""

from __future__ import annotations

from collections.abc import Mapping

from tilec.ir.affine import affine
from tilec.ir.tile import Buffer, Expr, Load, Parallel, Region, Store, TileOp, Var, integer, substitute, walk_expr
from tilec.passes.analysis.fold import fold_expr


def covers(tile: Buffer, indices: tuple[Expr, ...], extents: Mapping[Var, int]) -> bool:
    """Whether these indices reach every element of a shared tile as the variables run through their extents."""
    variables = [i for i in indices if isinstance(i, Var)]
    if tile.scope != "shared" or len(set(variables)) < len(variables):
        return False
    return all(
        extents.get(index) == size if isinstance(index, Var) else size == 1
        for index, size in zip(indices, tile.shape, strict=True)
    )


def as_copy(nest: Parallel) -> TileOp | None:
    """`S[i, j] = A[a + i, b + j]` for every element of a shared tile S as one copy; None for any other nest."""
    if len(nest.body) != 1 or not isinstance(nest.body[0], Store):
        return None
    store = nest.body[0]
    load = store.value
    if not isinstance(load, Load) or load.buffer.scope != "global" or load.buffer.dtype != store.buffer.dtype:
        return None
    variables = [i for i in store.indices if isinstance(i, Var)]
    extents = dict(zip(nest.vars, nest.extents, strict=True))
    if not covers(store.buffer, store.indices, extents) or set(variables) != {v for v, e in extents.items() if e > 1}:
        return None
    region = _box(load, variables, extents)
    if region is None:
        return None
    whole = Region(store.buffer, tuple(integer(0) for _ in store.indices), store.buffer.shape, store.span)
    return TileOp("copy", (region, whole), (), nest.span)


def _box(load: Load, variables: list[Var], extents: dict[Var, int]) -> Region | None:
    """What the load reads as the variables run through their extents, if that is a box in their order."""
    start: list[Expr] = []
    extent: list[int] = []
    order: list[Var] = []
    for index in load.indices:
        inside = {e for e in walk_expr(index) if isinstance(e, Var) and e in extents}
        if not inside:
            start.append(index)
            extent.append(1)
            continue
        (var, *more) = inside
        terms = affine(index).terms
        elsewhere = any(var in set(walk_expr(atom)) for atom, _ in terms if atom != var)
        if more or elsewhere or (var, 1) not in terms:
            return None
        order.append(var)
        start.append(fold_expr(substitute(index, {var: integer(0)})))
        extent.append(extents[var])
    return Region(load.buffer, tuple(start), tuple(extent)) if order == variables else None
