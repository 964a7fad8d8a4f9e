"""Boxes of tensors that the statements of a loop touch, and the iterations between touches of the same element.

Along each dimension an access is an interval that moves by a constant each iteration; invariants, as a block's index,
are compared as expressions. Two boxes are disjoint if they are in one dimension. An access that is not understood may
be anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.analysis.trip_count import get_static_trip_count
from tilec.ir import tile
from tilec.ir.affine import UNKNOWN, Interval, affine_form, value_interval
from tilec.ops import registry
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class BoxSide:
    """The first and last index along one dimension, relative to `fixed`, a sum of invariants, and to `coefficient`
    times the loop's variable."""

    coefficient: int
    fixed: frozenset[tuple[tile.Expr, int]]
    first: float
    last: float


AccessBox = tuple[BoxSide, ...]
"""One access; without sides it may be anywhere."""


@dataclass(frozen=True, slots=True)
class TouchedBoxes:
    """The boxes of each tensor that a statement reads and writes, by name."""

    reads: Mapping[str, tuple[AccessBox, ...]]
    writes: Mapping[str, tuple[AccessBox, ...]]


class RegionAnalysis:
    """Finds the boxes of the statements of a loop, with all that is nested in them."""

    def __init__(self, loop: tile.For) -> None:
        self.loop, self.count = loop, get_static_trip_count(loop)
        self.values: dict[tile.Var, tile.Expr] = {}  # of binds that read nothing
        self.inner: set[tile.Var] = {tile.THREAD}  # variables that are no invariants
        for stmt in tile.walk_statements(loop.body):
            match stmt:
                case tile.Bind(var=var, value=value):
                    self.inner.add(var)
                    if not any(isinstance(e, tile.Load | tile.Call | tile.Ptx) for e in tile.walk_expr(value)):
                        self.values[var] = tile.substitute_variables(value, self.values)
                case tile.For(var=var):
                    self.inner.add(var)
                case tile.Parallel(vars=several):
                    self.inner.update(several)
                case tile.Store(previous=tile.Var() as var):
                    self.inner.add(var)
        self.ranges: dict[tile.Var, Interval] = {}
        if self.count:
            start = int(getattr(loop.start, "value", 0))
            self.ranges[loop.var] = (start, start + (self.count - 1) * loop.step)

    # ---- what is touched ----

    def find_touched(self, stmt: tile.Stmt) -> TouchedBoxes:
        """Return the boxes of tensors that a statement reads and those that it writes, by the tensor's name."""
        reads: dict[str, tuple[AccessBox, ...]] = {}
        writes: dict[str, tuple[AccessBox, ...]] = {}
        for found, buffer, box in self.find_accesses(stmt, self.ranges):
            into = writes if found else reads
            into[buffer.name] = (*into.get(buffer.name, ()), box)
        return TouchedBoxes(reads, writes)

    def find_accesses(
        self, stmt: tile.Stmt, ranges: dict[tile.Var, Interval]
    ) -> Iterator[tuple[bool, tile.Buffer, AccessBox]]:
        """Yield each access of a statement to a tensor as (is a write, tensor, box), nested statements included."""
        for load in tile.walk_loads(stmt):
            if load.buffer.scope == "global":
                yield False, load.buffer, self.build_element_box(load.buffer, load.indices, ranges)
        match stmt:
            case tile.TileOp():
                effects = registry.get_operation(stmt.name).effects(stmt)
                for is_write, regions in ((False, effects.reads), (True, effects.writes)):
                    for region in (r for r in regions if r.buffer.scope == "global"):
                        yield is_write, region.buffer, self.build_box(region, ranges) if stmt.touches_boxes else ()
            case tile.Store(buffer=buffer) if buffer.scope == "global":
                box = () if stmt.atomic is not None else self.build_element_box(buffer, stmt.indices, ranges)
                if stmt.atomic is not None:
                    yield False, buffer, box
                yield True, buffer, box
            case tile.Parallel():
                several = zip(stmt.vars, stmt.extents, strict=True)
                ranges = {**ranges, **{var: (0, extent - 1) for var, extent in several}}
            case tile.For(var=var, start=tile.Const(value=start)) if (count := get_static_trip_count(stmt)) is not None:
                ranges = {**ranges, var: (int(start), int(start) + max(count - 1, 0) * stmt.step)}
        for body in tile.nested_bodies(stmt):
            for inner in body:
                yield from self.find_accesses(inner, ranges)

    def build_element_box(
        self, buffer: tile.Buffer, indices: Sequence[tile.Expr], ranges: Mapping[tile.Var, Interval]
    ) -> AccessBox:
        """Return the box that one element covers while its indices move within these ranges of variables."""
        return self.build_box(tile.Region(buffer, tuple(indices), (1,) * len(indices)), ranges)

    def build_box(self, region: tile.Region, ranges: Mapping[tile.Var, Interval]) -> AccessBox:
        """Return the box of a region; one that may be anywhere for elements of less than a byte or several lanes. Where
        strides are given, rows may overlap."""
        if region.buffer.dtype.bits < 8 or region.buffer.lanes != 1:
            return ()
        sides = tuple(
            self.build_side(start, extent, ranges) for start, extent in zip(region.start, region.extent, strict=True)
        )
        strides = region.buffer.strides
        return sides if strides is None else _flatten_box(sides, strides)

    def build_side(self, start: tile.Expr, extent: int, ranges: Mapping[tile.Var, Interval]) -> BoxSide:
        """Return the interval of a region's indices along one dimension, relative to loop variable and invariants."""
        form = affine_form(tile.substitute_variables(start, self.values))
        coefficient, fixed = 0, []
        first, last = float(form.constant), float(form.constant + extent - 1)
        for atom, factor in form.terms:
            if atom == self.loop.var:
                coefficient = factor
            elif self.is_fixed(atom):
                fixed.append((atom, factor))
            else:
                low, high = (factor * bound for bound in value_interval(atom, ranges))
                first, last = first + min(low, high), last + max(low, high)
        return BoxSide(coefficient, frozenset(fixed), first, last)

    def is_fixed(self, expr: tile.Expr) -> bool:
        """Return True if the expression is invariant in the loop: no variable that moves, no load, no call."""
        parts = tuple(tile.walk_expr(expr))
        moving = (part == self.loop.var or part in self.inner for part in parts if isinstance(part, tile.Var))
        return not any(moving) and not any(isinstance(part, tile.Load | tile.Call | tile.Ptx) for part in parts)

    # ---- how far apart ----

    def find_distance(self, one: Sequence[AccessBox], other: Sequence[AccessBox], least: int) -> int | None:
        """Return the fewest iterations, at least `least`, until a box of `other` may meet one of `one`; None if
        never."""
        found = (self._find_box_distance(a, b, least) for a in one for b in other)
        return min((d for d in found if d is not None), default=None)

    def _find_box_distance(self, one: AccessBox, other: AccessBox, least: int) -> int | None:
        """Return the fewest iterations, at least `least`, after which two boxes may meet; None if they never do."""
        first, last = float(least), math.inf if self.count is None else self.count - 1.0
        for a, b in zip(one, other, strict=True) if len(one) == len(other) else ():
            low, high = self._bound_iterations(a, b)
            first, last = max(first, low), min(last, high)
        return int(first) if first <= last else None

    def _bound_iterations(self, a: BoxSide, b: BoxSide) -> Interval:
        """Return the range of iteration distances at which side b may reach side a: all if unknown, empty if never."""
        if a.fixed != b.fixed:
            return UNKNOWN
        if a.coefficient != b.coefficient:
            a, b = self._fold_variable(a), self._fold_variable(b)
        step = a.coefficient * self.loop.step
        low, high = a.first - b.last, a.last - b.first  # of the distance that b moves meanwhile
        if step == 0:
            return UNKNOWN if low <= 0 <= high else (math.inf, -math.inf)
        if step < 0:
            step, low, high = -step, -high, -low
        return (
            low if math.isinf(low) else math.ceil(low / step),
            high if math.isinf(high) else math.floor(high / step),
        )

    def _fold_variable(self, side: BoxSide) -> BoxSide:
        """Return the side without its loop variable, whose whole range widens the interval instead."""
        low, high = (side.coefficient * bound for bound in self.ranges.get(self.loop.var, UNKNOWN)) if (
            side.coefficient
        ) else (0.0, 0.0)  # fmt: skip
        return replace(side, coefficient=0, first=side.first + min(low, high), last=side.last + max(low, high))


def _flatten_box(sides: AccessBox, strides: Sequence[object]) -> AccessBox:
    """Return a box of a tensor with strides as one interval of its memory; () where a stride is unknown."""
    if not all(isinstance(stride, int) and stride > 0 for stride in strides):
        return ()
    coefficient, first, last = 0, 0.0, 0.0
    fixed: dict[tile.Expr, int] = {}
    for side, stride in zip(sides, strides, strict=True):
        assert isinstance(stride, int)
        coefficient += side.coefficient * stride
        first, last = first + side.first * stride, last + side.last * stride
        for atom, factor in side.fixed:
            fixed[atom] = fixed.get(atom, 0) + factor * stride
    return (BoxSide(coefficient, frozenset((a, f) for a, f in fixed.items() if f), first, last),)
