"""T.Layout maps: the order of a shared tile's elements, as a hardware swizzle or any other, or new indices for a
tensor."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import NoReturn

from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr, value_interval
from tilec.ir.expr import cast_expr
from tilec.ir.layout import SharedLayout
from tilec.ir.placement import NotArithmetic, NoValue, evaluate_index
from tilec.ir.types import INT32
from tilec.ops.language.values import IndexMap, show_shape
from tilec.passes.layout.shared.atoms import find_byte_offset, list_candidate_layouts
from tilec.passes.layout.shared.reshape_views import build_range_condition, map_view_indices
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span


def build_placement(buffer: tile.Buffer, given: IndexMap, span: Span) -> tile.Placement | int:
    """Return the swizzle width (0: none) that orders a tile's elements as the given map does, else the map as a
    placement."""
    places, extents = _linearise_map(buffer, given, span)
    for layout in list_candidate_layouts(buffer):
        if math.prod(extents) == len(places) and _has_same_places(layout, places):
            return layout.swizzle
    if buffer.dtype.per_byte > 1:
        what = f"elements of {buffer.dtype} share bytes"
        _refuse_map(buffer, span, f"{what}: only row-major order and its swizzles are possible")
    place: tile.Expr = tile.int32_const(0)
    for index, extent in zip(given.indices, extents, strict=True):
        place = add_exprs(scale_expr(place, extent), index)
    return tile.Placement(given.shape, given.vars, place, 1 + max(places))


def _linearise_map(
    buffer: tile.Buffer, given: IndexMap, span: Span, among: tuple[int, ...] = ()
) -> tuple[list[int], list[int]]:
    """Return each element's place by a map, and result extents (`among` or those reached); refuse clashes and
    negatives."""
    try:
        found = [evaluate_index(index, given.shape, given.vars) for index in given.indices]
    except NoValue:
        _refuse_map(buffer, span, "it divides by zero")
    except NotArithmetic:
        _refuse_map(buffer, span, "it uses more than arithmetic on the indices")
    elements = list(itertools.product(*(range(e) for e in given.shape)))
    extents = list(among) or [1 + max(values) for values in found]
    places = [0] * len(elements)
    for values, extent in zip(found, extents, strict=True):
        if (least := min(values)) < 0:
            _refuse_map(buffer, span, f"element {list(elements[values.index(least)])} has the offset {least}")
        places = [place * extent + value for place, value in zip(places, values, strict=True)]
    taken: dict[int, tuple[int, ...]] = {}
    for element, place in zip(elements, places, strict=True):
        if place in taken:
            _refuse_map(buffer, span, f"elements {list(taken[place])} and {list(element)} have the same offset")
        taken[place] = element
    return places, extents


MAX_CHECKED_ELEMENTS = 1 << 16  # elements of a tensor whose places are checked one by one


def check_tensor_map(tensor: tile.Buffer, given: IndexMap, span: Span) -> IndexMap:
    """Return the map if it permutes a tensor's elements, else refuse it; of a large tensor, check only a corner."""
    ranges = {var: (0, extent - 1) for var, extent in zip(given.vars, given.shape, strict=True)}
    reached = [value_interval(index, ranges) for index in given.indices]
    if any(low < 0 or high == math.inf for low, high in reached):
        _refuse_map(tensor, span, "it uses more than arithmetic on the indices, or leaves the tensor")
    extents = tuple(int(high) + 1 for _, high in reached)
    if math.prod(extents) != (count := math.prod(given.shape)):
        _refuse_map(tensor, span, f"the map has {show_shape(extents)} offsets, but the tensor has {count} elements")
    corner = list(given.shape)
    while math.prod(corner) > MAX_CHECKED_ELEMENTS:
        corner[corner.index(max(corner))] = -(-max(corner) // 2)
    _linearise_map(tensor, replace(given, shape=tuple(corner)), span, extents)
    return given


def remap_indices(tensor: tile.Buffer, given: IndexMap, indices: tuple[tile.Expr, ...]) -> tuple[tile.Expr, ...]:
    """Return the indices at which a tensor stores an element under the given map."""
    ranges = {var: (0, extent - 1) for var, extent in zip(given.vars, given.shape, strict=True)}
    extents = tuple(int(value_interval(index, ranges)[1]) + 1 for index in given.indices)
    values = dict(zip(given.vars, (cast_expr(i, INT32) for i in indices), strict=True))
    places = tuple(fold_expr(tile.substitute_variables(index, values)) for index in given.indices)
    return map_view_indices(replace(tensor, extents=extents), tensor, places)


def build_bounds_condition(tensor: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tile.Expr | None:
    """Return the condition that the indices are inside the tensor; None if that is certain."""
    return build_range_condition(zip(indices, tensor.shape, strict=True))


def _has_same_places(layout: SharedLayout, places: list[int]) -> bool:
    """Return True if the layout puts every element, in row-major order, at its index in `places`."""
    size, columns = layout.element_bytes, layout.shape[-1]
    return all(
        find_byte_offset(layout, number // columns, number % columns * size) == place * size
        for number, place in enumerate(places)
    )


def _refuse_map(buffer: tile.Buffer, span: Span, reason: str) -> NoReturn:
    """Raise the error `layout-map` for a map that is not a valid layout of the buffer, with the reason. Errors:
    `layout-map`."""
    raise_error(
        "layout-map",
        f"this map is not a valid layout of {buffer.name}",
        span,
        reason,
        secondary=(Label(buffer.span, "from here"),),
        help="give each element an offset of its own, from 0, by arithmetic on its indices",
    )
