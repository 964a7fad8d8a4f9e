"""Elementwise nests that only move data: equal to a copy of a tile, which hardware can make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.affine import affine_form
from tilec.ops.copies.copy import Copy
from tilec.passes.analysis.fold_constants import fold_expr


def covers_tile(buffer: tile.Buffer, indices: tuple[tile.Expr, ...], extents: Mapping[tile.Var, int]) -> bool:
    """Return True if these indices reach every element of a shared tile as the variables run through their extents."""
    variables = [i for i in indices if isinstance(i, tile.Var)]
    if buffer.scope != "shared" or len(set(variables)) < len(variables):
        return False
    return all(
        extents.get(index) == size if isinstance(index, tile.Var) else size == 1
        for index, size in zip(indices, buffer.shape, strict=True)
    )


def convert_to_copy(nest: tile.Parallel, parts: bool = False) -> Copy | None:
    """Return `S[i, j] = A[a + i, b + j]`, for every element of a shared tile S, as a copy, or with `parts` for a box of
    S; None for any other nest. Several variables may form an index, as in `S[4 * i + j] = A[4 * i + j]`."""
    if len(nest.body) != 1 or not isinstance(nest.body[0], tile.Store):
        return None
    store = nest.body[0]
    load = store.value
    if not isinstance(load, tile.Load) or load.buffer.scope != "global" or load.buffer.dtype != store.buffer.dtype:
        return None
    if store.buffer.scope != "shared" or store.atomic is not None:
        return None
    extents = {v: e for v, e in zip(nest.vars, nest.extents, strict=True) if e > 1}
    single = {v: tile.int32_const(0) for v in nest.vars if v not in extents}
    written, read = (
        _find_box(buffer, tuple(tile.substitute_variables(i, single) for i in indices), extents)
        for buffer, indices in ((store.buffer, store.indices), (load.buffer, load.indices))
    )
    if written is None or read is None or written[1] != read[1]:
        return None
    if {v for digits in written[1] for v, _ in digits} != extents.keys() or not (parts or written[0].is_whole):
        return None
    whole = Copy(read[0], replace(written[0], span=store.span), span=nest.span)
    return whole if written[0].is_whole else replace(whole, prefer_async=True)


_Digits = tuple[tuple[tile.Var, int], ...]
"""Variables that form an index, and the step of each, the smallest first: the digits of a number."""


def _find_box(
    buffer: tile.Buffer, indices: tuple[tile.Expr, ...], extents: dict[tile.Var, int]
) -> tuple[tile.Region, tuple[_Digits, ...]] | None:
    """Return the box that the indices reach as the variables run through their extents, and the variables of each
    dimension that is not one element thick; None if it is no box."""
    start: list[tile.Expr] = []
    extent: list[int] = []
    order: list[_Digits] = []
    for index in indices:
        form = affine_form(index)
        digits = tuple(
            sorted(((a, c) for a, c in form.terms if isinstance(a, tile.Var) and a in extents), key=_get_step)
        )
        rest = [atom for atom, _ in form.terms if atom not in extents]
        if any(e in extents for atom in rest for e in tile.walk_expr(atom)):
            return None
        size = 1
        for var, step in digits:
            if step != size:
                return None
            size *= extents[var]
        if digits:
            order.append(digits)
        start.append(fold_expr(tile.substitute_variables(index, {var: tile.int32_const(0) for var, _ in digits})))
        extent.append(size)
    variables = [var for digits in order for var, _ in digits]
    return (
        (tile.Region(buffer, tuple(start), tuple(extent)), tuple(order))
        if len(set(variables)) == len(variables)
        else None
    )


def _get_step(digit: tuple[tile.Var, int]) -> int:
    return digit[1]
