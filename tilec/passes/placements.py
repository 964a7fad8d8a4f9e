"""Where a T.Layout puts the elements of a shared tile: in the order of a hardware swizzle, or of its own."""

from __future__ import annotations

import itertools
import math
from typing import NoReturn

from tilec.diag import Label, fail
from tilec.ir.affine import add, scale
from tilec.ir.layout import SharedLayout
from tilec.ir.placement import NotArithmetic, evaluated
from tilec.ir.tile import Buffer, Expr, Placement, integer
from tilec.ops.values import IndexMap
from tilec.passes.atoms import candidates, offset
from tilec.source import Span


def placement_of(buffer: Buffer, given: IndexMap, span: Span) -> Placement | int:
    """The width of the swizzle that puts every element where the map does, or else the map."""
    places, extents = _linear(buffer, given, span)
    for layout in candidates(buffer):
        if math.prod(extents) == len(places) and _puts(layout, places):
            return layout.swizzle
    if buffer.dtype.per_byte > 1:
        _refuse(buffer, span, f"elements of {buffer.dtype} share bytes, which go together")
    place: Expr = integer(0)
    for index, extent in zip(given.indices, extents, strict=True):
        place = add(scale(place, extent), index)
    return Placement(given.shape, given.vars, place, 1 + max(places))


def _linear(buffer: Buffer, given: IndexMap, span: Span) -> tuple[list[int], list[int]]:
    """The place of each element, in row-major order, and the extents of the map's results."""
    try:
        found = [evaluated(index, given.shape, given.vars) for index in given.indices]
    except NotArithmetic:
        _refuse(buffer, span, "it is more than arithmetic on the indices")
    elements = list(itertools.product(*(range(e) for e in given.shape)))
    extents = [1 + max(values) for values in found]
    places = [0] * len(elements)
    for values, extent in zip(found, extents, strict=True):
        if min(values) < 0:
            _refuse(buffer, span, f"element {list(elements[values.index(min(values))])} lies at {min(values)}")
        places = [place * extent + value for place, value in zip(places, values, strict=True)]
    taken: dict[int, tuple[int, ...]] = {}
    for element, place in zip(elements, places, strict=True):
        if place in taken:
            _refuse(buffer, span, f"elements {list(taken[place])} and {list(element)} lie at one place")
        taken[place] = element
    return places, extents


def _puts(layout: SharedLayout, places: list[int]) -> bool:
    """Whether the layout has every element at its place."""
    size, columns = layout.element_bytes, layout.shape[-1]
    return all(
        offset(layout, number // columns, number % columns * size) == place * size
        for number, place in enumerate(places)
    )


def _refuse(buffer: Buffer, span: Span, reason: str) -> NoReturn:
    fail(
        "layout-map",
        f"this is no layout for {buffer.name}",
        span,
        reason,
        secondary=(Label(buffer.span, "from here"),),
        help="give each element a place of its own, from 0 on, by arithmetic on its indices",
    )
