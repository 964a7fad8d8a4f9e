"""Views: elements of a buffer under the indices of another shape or type."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from tilec.ir import tile
from tilec.ir.affine import add, scale
from tilec.ir.expr import cast, constant
from tilec.ir.types import BOOL, INT32, UINT8, UINT16, UINT32, UINT64, DType
from tilec.passes.analysis.fold_constants import fold_expr

Group = tuple[range, range]


def resized(shape: tuple[int, ...], dtype: DType, other: DType) -> tuple[int, ...] | None:
    """Return the shape whose rows have the same bytes in elements of the other type; None where there is none."""
    row, rest = divmod(shape[-1] * dtype.bits, other.bits)
    return None if rest else (*shape[:-1], row)


def groups(view_shape: tuple[int, ...], source_shape: tuple[int, ...]) -> Iterator[Group]:
    """Yield dimensions of two shapes that correspond: the smallest groups with as many elements."""
    ends = [list(accumulate(shape, operator.mul)) for shape in (view_shape, source_shape)]
    first = (0, 0)
    for count in sorted(set(ends[0]) & set(ends[1])):
        i, j = (len(end) - end[::-1].index(count) for end in ends)
        yield range(first[0], i), range(first[1], j)
        first = (i, j)


def moved(view: tile.Buffer, source: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tuple[tile.Expr, ...]:
    """Return the indices in `source` of an element of its view."""
    found: list[tile.Expr] = []
    for view_dims, source_dims in groups(view.shape, source.shape):
        whole = fold_expr(linear([indices[d] for d in view_dims], [view.shape[d] for d in view_dims]))
        below = math.prod(source.shape[d] for d in source_dims)
        for place, d in enumerate(source_dims):
            below //= source.shape[d]
            digit = whole if below == 1 else tile.Binary("floordiv", whole, tile.integer(below), INT32)
            if place:  # the first may exceed its extent: then the element is out of bounds in both
                digit = tile.Binary("floormod", digit, tile.integer(source.shape[d]), INT32)
            found.append(fold_expr(digit))
    return tuple(found)


def inside(view: tile.Buffer, source: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tile.Expr | None:
    """Return the condition without which an index leaves a tensor's view for another element; None where that cannot
    be."""
    if source.scope != "global":
        return None
    total: tile.Expr | None = None
    for view_dims, source_dims in groups(view.shape, source.shape):
        for d in view_dims[1:] if len(source_dims) == 1 else view_dims if len(view_dims) > 1 else ():
            index, extent = indices[d], tile.integer(view.shape[d])
            if isinstance(index, tile.Const) and 0 <= index.value < view.shape[d]:
                continue
            above = tile.Binary("ge", cast(index, INT32), tile.integer(0), BOOL)
            below = tile.Binary("lt", cast(index, INT32), extent, BOOL)
            both = tile.Binary("and", above, below, BOOL)
            total = both if total is None else tile.Binary("and", total, both, BOOL)
    return total


def linear(indices: list[tile.Expr], shape: list[int]) -> tile.Expr:
    total: tile.Expr = tile.integer(0)
    for index, extent in zip(indices, shape, strict=True):
        total = add(scale(total, extent), cast(index, INT32))
    return total


# ---- elements of another size ----------------------------------------------------------------------------------------


def places(view: tile.Buffer, source: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tuple[tuple[tile.Expr, ...], ...]:
    """Return the indices of the elements of `source` that make up an element of the view, or of the one that contains
    it."""
    ratio = max(view.dtype.bits // source.dtype.bits, 1)
    shape = resized(view.shape, view.dtype, source.dtype)
    assert shape is not None, "a view has whole elements in each row"
    same_type_view = replace(view, extents=shape, dtype=source.dtype)
    *others, last = indices
    if view.dtype.bits < source.dtype.bits:
        parts = tile.integer(source.dtype.bits // view.dtype.bits)
        return (moved(same_type_view, source, (*others, fold_expr(tile.Binary("floordiv", last, parts, INT32)))),)
    return tuple(
        moved(same_type_view, source, (*others, add(scale(last, ratio), tile.integer(part)))) for part in range(ratio)
    )


def seen_as(view: tile.Buffer, loads: list[tile.Load], indices: tuple[tile.Expr, ...]) -> tile.Expr:
    """Return an element of the view, from the loads of its source."""
    wide, narrow = view.dtype.bits, loads[0].dtype.bits
    if wide == narrow:
        return _as(loads[0], view.dtype)
    if wide < narrow:
        word = _UNSIGNED[narrow]
        part: tile.Expr = tile.Binary("floormod", cast(indices[-1], INT32), tile.integer(narrow // wide), INT32)
        by = cast(fold_expr(scale(part, wide)), word)
        return _as(cast(tile.Binary("shr", _as(loads[0], word), by, word), _UNSIGNED[wide]), view.dtype)
    word = _UNSIGNED[wide]
    total: tile.Expr | None = None
    for number, load in enumerate(loads):
        part = cast(_as(load, _UNSIGNED[narrow]), word)
        placed = tile.Binary("shl", part, constant(number * narrow, word), word) if number else part
        total = placed if total is None else tile.Binary("bitor", total, placed, word)
    assert total is not None
    return _as(total, view.dtype)


def part_of(value: tile.Expr, dtype: DType, number: int) -> tile.Expr:
    """Return the bits of part `number` of a value, in parts of this type."""
    if value.dtype.bits == dtype.bits:
        return _as(value, dtype)
    word = _UNSIGNED[value.dtype.bits]
    shifted = tile.Binary("shr", _as(value, word), constant(number * dtype.bits, word), word)
    return _as(cast(shifted, _UNSIGNED[dtype.bits]), dtype)


def _as(value: tile.Expr, dtype: DType) -> tile.Expr:
    """Reinterpret the bits as another type."""
    return value if value.dtype == dtype else tile.Call("reinterpret", (value,), dtype)


_UNSIGNED = {8: UINT8, 16: UINT16, 32: UINT32, 64: UINT64}
