"""Views: elements of a buffer under the indices of another shape or type."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate

from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.expr import cast_expr, make_constant
from tilec.ir.types import BOOL, INT32, UINT4, UINT8, UINT16, UINT32, UINT64, DType
from tilec.rewriting.fold_constants import fold_expr

DimensionGroup = tuple[range, range]


def resize_shape(shape: tuple[int, ...], dtype: DType, other: DType) -> tuple[int, ...] | None:
    """Return the shape of the same bytes in elements of another type, row by row; None where a row does not divide."""
    row, rest = divmod(shape[-1] * dtype.bits, other.bits)
    return None if rest else (*shape[:-1], row)


def match_dimensions(view_shape: tuple[int, ...], source_shape: tuple[int, ...]) -> Iterator[DimensionGroup]:
    """Yield the smallest groups of neighbouring dimensions, one range of each shape, with equally many elements."""
    ends = [list(accumulate(shape, operator.mul)) for shape in (view_shape, source_shape)]
    first = (0, 0)
    for count in sorted(set(ends[0]) & set(ends[1])):
        i, j = (len(end) - end[::-1].index(count) for end in ends)
        yield range(first[0], i), range(first[1], j)
        first = (i, j)


def map_view_indices(view: tile.Buffer, source: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tuple[tile.Expr, ...]:
    """Return the indices in `source` of the element that has these indices in its view of another shape."""
    found: list[tile.Expr] = []
    for view_dims, source_dims in match_dimensions(view.shape, source.shape):
        whole = fold_expr(linearise_indices([indices[d] for d in view_dims], [view.shape[d] for d in view_dims]))
        below = math.prod(source.shape[d] for d in source_dims)
        for place, d in enumerate(source_dims):
            below //= source.shape[d]
            digit = whole if below == 1 else tile.Binary("floordiv", whole, tile.int32_const(below), INT32)
            if place:  # the first may exceed its extent: then the element is out of bounds in both
                digit = tile.Binary("floormod", digit, tile.int32_const(source.shape[d]), INT32)
            found.append(fold_expr(digit))
    return tuple(found)


def build_view_condition(view: tile.Buffer, source: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tile.Expr | None:
    """Return the condition that these indices stay inside a tensor's view; None if the source's own bounds suffice."""
    if source.scope != "global":
        return None
    return build_range_condition(
        (indices[d], view.shape[d])
        for view_dims, source_dims in match_dimensions(view.shape, source.shape)
        for d in (view_dims[1:] if len(source_dims) == 1 else view_dims if len(view_dims) > 1 else ())
    )


def build_range_condition(indices: Iterable[tuple[tile.Expr, int]]) -> tile.Expr | None:
    """Return the condition under which each index is at least 0 and below its extent; None if that is certain."""
    total: tile.Expr | None = None
    for index, extent in indices:
        if isinstance(index, tile.Const) and 0 <= index.value < extent:
            continue
        index = cast_expr(index, INT32)
        above = tile.Binary("ge", index, tile.int32_const(0), BOOL)
        below = tile.Binary("lt", index, tile.int32_const(extent), BOOL)
        both = tile.Binary("and", above, below, BOOL)
        total = both if total is None else tile.Binary("and", total, both, BOOL)
    return total


def linearise_indices(indices: list[tile.Expr], shape: list[int]) -> tile.Expr:
    """Return the row-major index of the element with these indices in this shape."""
    total: tile.Expr = tile.int32_const(0)
    for index, extent in zip(indices, shape, strict=True):
        total = add_exprs(scale_expr(total, extent), cast_expr(index, INT32))
    return total


def list_source_indices(
    view: tile.Buffer, source: tile.Buffer, indices: tuple[tile.Expr, ...]
) -> tuple[tuple[tile.Expr, ...], ...]:
    """Return the indices of the source elements that make up one element of the view, or of the one that contains
    it."""
    ratio = max(view.dtype.bits // source.dtype.bits, 1)
    shape = resize_shape(view.shape, view.dtype, source.dtype)
    assert shape is not None, "a view has whole elements in each row"
    same_type_view = replace(view, extents=shape, dtype=source.dtype)
    *others, last = indices
    if view.dtype.bits < source.dtype.bits:
        parts = tile.int32_const(source.dtype.bits // view.dtype.bits)
        columns = [fold_expr(tile.Binary("floordiv", last, parts, INT32))]
    else:
        columns = [add_exprs(scale_expr(last, ratio), tile.int32_const(part)) for part in range(ratio)]
    return tuple(map_view_indices(same_type_view, source, (*others, column)) for column in columns)


def assemble_view_element(view: tile.Buffer, loads: list[tile.Load], indices: tuple[tile.Expr, ...]) -> tile.Expr:
    """Return an element of the view, assembled from, or cut out of, the loads of its source."""
    wide, narrow = view.dtype.bits, loads[0].dtype.bits
    if wide == narrow:
        return reinterpret_as(loads[0], view.dtype)
    if wide < narrow:
        word, count = _UNSIGNED_TYPES[narrow], tile.int32_const(narrow // wide)
        part: tile.Expr = tile.Binary("floormod", cast_expr(indices[-1], INT32), count, INT32)
        by = cast_expr(fold_expr(scale_expr(part, wide)), word)
        shifted = tile.Binary("shr", reinterpret_as(loads[0], word), by, word)
        return reinterpret_as(cast_expr(shifted, _UNSIGNED_TYPES[wide]), view.dtype)
    word = _UNSIGNED_TYPES[wide]
    total: tile.Expr | None = None
    for number, load in enumerate(loads):
        part = cast_expr(reinterpret_as(load, _UNSIGNED_TYPES[narrow]), word)
        placed = tile.Binary("shl", part, make_constant(number * narrow, word), word) if number else part
        total = placed if total is None else tile.Binary("bitor", total, placed, word)
    assert total is not None
    return reinterpret_as(total, view.dtype)


def extract_part(value: tile.Expr, dtype: DType, number: int) -> tile.Expr:
    """Return part `number`, from the lowest bits, of a value that is split into elements of a narrower type."""
    if value.dtype.bits == dtype.bits:
        return reinterpret_as(value, dtype)
    word = _UNSIGNED_TYPES[value.dtype.bits]
    shifted = tile.Binary("shr", reinterpret_as(value, word), make_constant(number * dtype.bits, word), word)
    return reinterpret_as(cast_expr(shifted, _UNSIGNED_TYPES[dtype.bits]), dtype)


def reinterpret_as(value: tile.Expr, dtype: DType) -> tile.Expr:
    """Return the value with its bits read as another type; the value itself if it has that type."""
    return value if value.dtype == dtype else tile.Call("reinterpret", (value,), dtype)


_UNSIGNED_TYPES = {4: UINT4, 8: UINT8, 16: UINT16, 32: UINT32, 64: UINT64}
