"""Disjoint accesses to tensors: by the part of a tensor that each reaches, a box whose sides move with a loop, or by
the thread that reaches each element: accesses with equal owners never meet in different threads. Parts may also
interleave: threads that store 16 elements of every 256 meet no others that store the 16 behind them.

Accesses to disjoint parts need no wait and no barrier between them. Their distance depends on the iterations between
them: each access record counts those (`AccessRecord.age`), up to `MAX_AGE`, which means at least as many. An access
inside two loops, or one that is not understood, may be anywhere.

An index that is a loop variable of the nest, times a number, plus what is the same throughout the block, determines the
variable from the element. Where that holds for all variables that are divided among threads, the element determines the
thread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.analysis.tensor_regions import BoxSide
from tilec.ir import tile, warp
from tilec.ir.affine import UNKNOWN, Interval, affine_form, value_interval
from tilec.ir.layout import Axis
from tilec.passes.layout.element_accesses import find_element_accesses
from tilec.support.records import dataclass

UNKNOWN_AGE = -1
"""The age of an access of which only the tensor is known."""

MAX_AGE = 8
"""The last age that is counted. Pipelines mostly have had a barrier by then."""


@dataclass(frozen=True, slots=True)
class LoopFrame:
    """A loop inside no other one: its variable, and its first and last value where known."""

    var: tile.Var
    start: int | None
    last: int | None
    step: int


@dataclass(frozen=True, slots=True)
class IndexTerms:
    """An index as a sum: terms that are the same throughout the block, terms that vary with their factors and bounds,
    and the range of the rest."""

    fixed: frozenset[tuple[tile.Expr, int]]
    moving: tuple[tuple[int, float, float], ...]  # factor, least and greatest value of the term
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TensorArea:
    """A side for each dimension, in terms of the variable of `loop`, if the access is in one; and the indices of each
    access that the sides contain, by dimension."""

    loop: tile.Var | None
    sides: tuple[BoxSide, ...]
    indices: tuple[tuple[IndexTerms, ...], ...] = ()


MAX_COMPARED = 16
"""The most pairs of accesses of two operations that are compared by residues, to bound the time."""


def build_loop_frame(loop: warp.Loop) -> LoopFrame | None:
    """Return a loop's variable, first and last value, and step; None if it has phases or its next value is computed."""
    if loop.following is not None or loop.phases:
        return None
    is_left = any(isinstance(op, warp.Break) for op in warp.walk_operations(loop.body))
    trip_count = None if is_left else warp.static_trip_count(loop)
    start = int(loop.start.value) if isinstance(loop.start, tile.Const) else None
    last = start + (trip_count - 1) * loop.step if trip_count and start is not None else None
    return LoopFrame(loop.var, start, last, loop.step)


def build_area(
    op: warp.Operation, tensor: str, write: bool, frame: LoopFrame | None, fixed: frozenset[tile.Var]
) -> TensorArea | None:
    """Return the smallest area of a tensor that contains all the operation's reads, or writes, of it; None if
    unknown."""
    if tensor in warp.scalar_reads(op):
        return None
    found = list(_find_accesses(op, tensor, write))
    if isinstance(op, warp.Elementwise) and any(
        isinstance(s, tile.Store) and s.buffer.name == tensor and s.atomic is not None
        for s in tile.walk_statements(op.nest.body)
    ):
        return None  # an atomic of several neighbours has the index of the first only
    if not found or any(buffer.dtype.bits < 8 or buffer.lanes != 1 or buffer.strides for buffer, _, _, _ in found):
        return None
    var = None if frame is None else frame.var
    boxes = [
        tuple(_build_side(index, extent, ranges, var, fixed) for index, extent in zip(indices, extents, strict=True))
        for _, indices, extents, ranges in found
    ]
    terms = tuple(
        tuple(_list_terms(index, extent, ranges, fixed) for index, extent in zip(indices, extents, strict=True))
        for _, indices, extents, ranges in found
    )
    return TensorArea(var, tuple(_bound_sides(sides) for sides in zip(*boxes, strict=True)), terms)


def _list_terms(
    index: tile.Expr, extent: int, ranges: Mapping[tile.Var, Interval], fixed: frozenset[tile.Var]
) -> IndexTerms:
    """Return the terms of an index; the variable of a loop around is one that varies, without bounds."""
    form = affine_form(index)
    moving = []
    for atom, factor in form.terms:
        if atom not in fixed:
            ends = [factor * bound for bound in value_interval(atom, ranges)]
            moving.append((factor, min(ends), max(ends)))
    same = frozenset(term for term in form.terms if term[0] in fixed)
    return IndexTerms(same, tuple(moving), form.constant, form.constant + extent - 1)


_Access = tuple[tile.Buffer, Sequence[tile.Expr], Sequence[int], Mapping[tile.Var, Interval]]


def _find_accesses(op: warp.Operation, tensor: str, write: bool) -> Iterator[_Access]:
    """Yield an operation's reads or writes of a tensor: buffer, indices, extents, and ranges of their variables."""
    match op:
        case warp.CpAsync(source=tile.Region(buffer=buffer, start=start, extent=extent)) if buffer.name == tensor:
            yield buffer, start, extent, {}
        case warp.CpAsync(source=warp.Gather(buffer=buffer) as source) if buffer.name == tensor:
            extents = op.destination.extent
            ranges = {v: (0.0, e - 1.0) for v, e in zip(source.variables, extents, strict=False)}
            yield buffer, source.indices, (1,) * len(source.indices), ranges if len(ranges) == len(extents) else {}
        case warp.Elementwise(nest=nest, block=None):
            ranges = {v: (0.0, e - 1.0) for v, e in zip(nest.vars, nest.extents, strict=True)}
            for _, access in find_element_accesses(nest.body):
                if access.buffer.name == tensor and isinstance(access, tile.Store) == write:
                    yield access.buffer, access.indices, (1,) * len(access.indices), ranges


def _build_side(
    index: tile.Expr, extent: int, ranges: Mapping[tile.Var, Interval], var: tile.Var | None, fixed: frozenset[tile.Var]
) -> BoxSide:
    """Return the range that an index reaches, relative to the loop's variable and to the variables in `fixed`."""
    form = affine_form(index)
    coefficient, same = 0, []
    first, last = float(form.constant), float(form.constant + extent - 1)
    for atom, factor in form.terms:
        if atom == var:
            coefficient = factor
        elif atom in fixed:
            same.append((atom, factor))
        else:
            low, high = (factor * bound for bound in value_interval(atom, ranges))
            first, last = first + min(low, high), last + max(low, high)
    return BoxSide(coefficient, frozenset(same), first, last)


def _bound_sides(sides: Sequence[BoxSide]) -> BoxSide:
    """Return the smallest side that contains all these sides; one of unknown bounds if their variables differ."""
    one = sides[0]
    if any((s.coefficient, s.fixed) != (one.coefficient, one.fixed) for s in sides):
        return replace(one, first=UNKNOWN[0], last=UNKNOWN[1])
    return replace(one, first=min(s.first for s in sides), last=max(s.last for s in sides))


def are_disjoint(earlier: TensorArea, age: int, later: TensorArea, frame: LoopFrame | None) -> bool:
    """Return True if two areas certainly share no element, the earlier one accessed `age` iterations ago. For an access
    before the loop, `age` counts the iterations begun since."""
    if len(earlier.sides) != len(later.sides):
        return False
    if _are_interleaved(earlier, later):
        return True
    least, most = _bound_iterations(age)
    if earlier.loop == later.loop:
        step = 0 if earlier.loop is None or frame is None else frame.step
        sides = [
            (_sweep_side(a, -least * step, -most * step), b) for a, b in zip(earlier.sides, later.sides, strict=True)
        ]
    elif earlier.loop is None and frame is not None and frame.var == later.loop and frame.start is not None and age:
        first, last = frame.start + (least - 1) * frame.step, frame.start + (most - 1) * frame.step
        moving = (replace(_sweep_side(side, first, last), coefficient=0) for side in later.sides)
        sides = list(zip(earlier.sides, moving, strict=True))
    else:
        return False
    return any(
        (a.coefficient, a.fixed) == (b.coefficient, b.fixed) and (a.last < b.first or b.last < a.first)
        for a, b in sides
    )


def _are_interleaved(one: TensorArea, other: TensorArea) -> bool:
    """Return True if each two accesses of the areas have an index whose remainders by some number always differ."""
    if not 0 < len(one.indices) * len(other.indices) <= MAX_COMPARED:
        return False
    return all(
        any(_have_different_remainders(i, j) for i, j in zip(a, b, strict=True))
        for a in one.indices
        for b in other.indices
    )


def _have_different_remainders(one: IndexTerms, other: IndexTerms) -> bool:
    """Return True if, for the factor of some term, no value of one index is congruent to one of the other index.

    Terms whose factors are multiples of the modulus may have any value, in whatever thread or iteration.
    """
    unshared = [factor for _, factor in one.fixed ^ other.fixed]
    for modulus in sorted({abs(factor) for factor, _, _ in (*one.moving, *other.moving)} - {0, 1}):
        if any(factor % modulus for factor in unshared):
            continue
        (low, high), (other_low, other_high) = _bound_remainder(one, modulus), _bound_remainder(other, modulus)
        least, greatest = low - other_high, high - other_low
        if math.isfinite(least) and math.isfinite(greatest) and greatest // modulus * modulus < least:
            return True
    return False


def _bound_remainder(terms: IndexTerms, modulus: int) -> tuple[float, float]:
    """Return the range of an index without the terms that are multiples of the modulus or fixed."""
    rest = [(low, high) for factor, low, high in terms.moving if factor % modulus]
    return terms.first + sum(low for low, _ in rest), terms.last + sum(high for _, high in rest)


def find_area_after_loop(found: TensorArea, age: int, frame: LoopFrame) -> TensorArea | None:
    """Return the area behind the loop of an access `age` iterations before its last; None if that is unknown."""
    if found.loop != frame.var:
        return found
    if frame.last is None:
        return None
    least, most = _bound_iterations(age)
    first, last = frame.last - least * frame.step, frame.last - most * frame.step
    sides = tuple(replace(_sweep_side(side, first, last), coefficient=0) for side in found.sides)
    return TensorArea(None, sides, found.indices)


def _bound_iterations(age: int) -> tuple[int, float]:
    """Return the fewest and the most iterations that an age stands for; the largest age has no upper bound."""
    return age, math.inf if age >= MAX_AGE else age


def _sweep_side(side: BoxSide, least: float, most: float) -> BoxSide:
    """Return the side widened to all its places while the loop's variable grows by `least` to `most`."""
    if not side.coefficient:
        return side
    ends = side.coefficient * least, side.coefficient * most
    return replace(side, first=side.first + min(ends), last=side.last + max(ends))


@dataclass(frozen=True, slots=True)
class Owner:
    """The distribution of threads: the index behind each of their dimensions, and the dimension of each digit."""

    threads: tuple[tuple[int, int, int], ...]  # size, stride, dimension of the tensor, or −1
    indices: tuple[tuple[int, int, int, frozenset[tuple[tile.Expr, int]]], ...]


def find_owners(op: warp.Operation, fixed: frozenset[tile.Var]) -> dict[tuple[str, bool], Owner]:
    """Return, by tensor name and is-write, the rule that gives the thread of each accessed element, where there is one.
    `fixed` are the variables that are constant in a block."""
    if not isinstance(op, warp.Elementwise) or op.block is not None or op.copy_bytes:
        return {}
    accesses = [access for _, access in find_element_accesses(op.nest.body)]
    if any(axis.dim < 0 and axis.size > 1 for axis in op.layout.threads):
        # Of threads with copies of an element one writes; the others read too where registers have copies.
        if any(access.buffer.scope == "shared" for access in accesses if isinstance(access, tile.Store)):
            return {}
        if any(access.buffer.in_registers for access in accesses):
            accesses = [access for access in accesses if isinstance(access, tile.Store)]
    found: dict[tuple[str, bool], set[Owner | None]] = {}
    for access in accesses:
        known = _find_owner(op, access.indices, fixed) if access.buffer.scope == "global" else None
        found.setdefault((access.buffer.name, isinstance(access, tile.Store)), set()).add(known)
    return {
        key: known for key, several in found.items() if len(several) == 1 and (known := next(iter(several))) is not None
    }


def _find_owner(op: warp.Elementwise, indices: tuple[tile.Expr, ...], fixed: frozenset[tile.Var]) -> Owner | None:
    """Return the rule by which an access's indices determine the thread; None where they do not."""
    place = {var: dim for dim, var in enumerate(op.nest.vars)}
    by_dimension: dict[int, tuple[int, int, int, frozenset[tuple[tile.Expr, int]]]] = {}
    for dim, index in enumerate(indices):
        form = affine_form(index)
        moving = [(atom, factor) for atom, factor in form.terms if atom not in fixed]
        if len(moving) == 1 and isinstance(moving[0][0], tile.Var) and moving[0][0] in place:
            var, factor = moving[0]
            assert isinstance(var, tile.Var)
            rest = frozenset(term for term in form.terms if term[0] in fixed)
            by_dimension.setdefault(place[var], (dim, factor, form.constant, rest))
    needed = {axis.dim for axis in op.layout.threads if axis.dim >= 0 and axis.size > 1}
    if not needed <= by_dimension.keys():
        return None

    def build_digit(axis: Axis) -> tuple[int, int, int]:
        return (axis.size, axis.stride, by_dimension[axis.dim][0]) if axis.dim in needed else (axis.size, 0, -1)

    return Owner(
        tuple(build_digit(axis) for axis in op.layout.threads if axis.size > 1),
        tuple(by_dimension[dim] for dim in sorted(needed)),
    )
