"""Bank conflicts of parallel nests: the addresses that the lanes of a warp reach at once, from the layout of the nest
and its indices.

`atoms` chooses layouts by the kind of an access, before nests have theirs; reports and lints use this module."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias, assert_never

from tilec.ir import tile
from tilec.ir.layout import Fragment, SharedLayout
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.element_accesses import find_element_accesses
from tilec.passes.layout.shared import atoms
from tilec.support.records import dataclass

_SAMPLED_RUNS = 8
"""Accesses of a thread that are sampled: every pattern of banks occurs in so many."""


def find_conflict_factors(nest: tile.Parallel, assignment: LayoutAssignment) -> dict[str, float]:
    """Return, by shared tile, how many times longer the nest's worst access takes than without bank conflicts. Tiles
    with indices that depend on data are left out."""
    layout = assignment.nest_layout(nest)
    bound = {s.var: s.value for s in tile.walk_statements(nest.body) if isinstance(s, tile.Bind)}
    places = {var: place for place, var in enumerate(nest.vars)}
    found: dict[str, float] = {}
    accesses = (access for _, access in find_element_accesses(nest.body) if access.buffer.scope == "shared")
    for buffer, indices in dict.fromkeys((access.buffer, access.indices) for access in accesses):
        forms = tuple(_build_form(index, places, bound) for index in indices)
        ways = _compute_conflict_factor(assignment.shared[buffer.name], buffer.dtype.bytes, layout, nest.extents, forms)
        if ways is not None:
            found[buffer.name] = max(found.get(buffer.name, 1.0), ways)
    return found


@lru_cache(maxsize=1024)
def _compute_conflict_factor(
    shared: SharedLayout, size: int, layout: Fragment, extents: tuple[int, ...], forms: tuple[_IndexForm, ...]
) -> float | None:
    """Return how many times longer an access takes than without bank conflicts; None where an index depends on data.
    Cached: an operation may become hundreds of nests of the same forms."""
    lanes = [layout.thread_offset(lane) for lane in range(min(atoms.BANKS, layout.thread_count))]
    count = min(layout.register_count, _SAMPLED_RUNS * max(atoms.CHUNK // size, 1))
    reached = []
    for register in (layout.register_offset(r) for r in range(count)):
        points = (tuple(map(operator.add, register, lane)) for lane in lanes)
        inside = (point for point in points if all(map(operator.lt, point, extents)))
        row = [_find_byte(shared, forms, point) for point in inside]
        known = [byte for byte in row if byte is not None]
        if len(known) < len(row):
            return None
        reached.append(known)
    taken, needed = _count_transactions(reached, size)
    return taken / max(needed, 1)


def _find_byte(layout: SharedLayout, forms: Sequence[_IndexForm], point: tuple[int, ...]) -> int | None:
    """Return the byte offset in the tile that is accessed at a point of the nest; None if an index depends on data."""
    place = column = 0
    for form, extent in zip(forms, layout.shape, strict=True):
        index = _evaluate_form(form, point)
        if index is None:
            return None
        column = index % extent
        place = place * extent + column
    return atoms.find_byte_offset(layout, place // layout.shape[-1], column * layout.element_bytes)


@dataclass(frozen=True, slots=True)
class _NestVariable:
    """A variable of the nest, by number."""

    place: int


@dataclass(frozen=True, slots=True)
class _BinaryForm:
    op: str
    a: _IndexForm
    b: _IndexForm


_IndexForm: TypeAlias = "int | _NestVariable | _BinaryForm | None"
"""An index without names; None where it depends on data."""


def _build_form(expr: tile.Expr, places: Mapping[tile.Var, int], bound: Mapping[tile.Var, tile.Expr]) -> _IndexForm:
    """Return an index as arithmetic on the nest's variables by number; None where it depends on data. Variables that
    are the same for all lanes count as 0."""
    match expr:
        case tile.Const(value=int(value)):
            return int(value)
        case tile.Var():
            if expr in places:
                return _NestVariable(places[expr])
            return _build_form(bound[expr], places, bound) if expr in bound else 0
        case tile.Cast(a=inner):
            return _build_form(inner, places, bound)
        case tile.Binary(op=op, a=first, b=second) if op in _ARITHMETIC:
            return _BinaryForm(op, _build_form(first, places, bound), _build_form(second, places, bound))
        case _:
            return None


def _evaluate_form(form: _IndexForm, point: tuple[int, ...]) -> int | None:
    """Return an index form's value at a point of the nest; None where it depends on data or divides by 0."""
    match form:
        case None | int():
            return form
        case _NestVariable(place):
            return point[place]
        case _BinaryForm(op, first, second):
            a, b = _evaluate_form(first, point), _evaluate_form(second, point)
            return None if a is None or b is None or (op in _DIVISIONS and not b) else _ARITHMETIC[op](a, b)
    assert_never(form)


_DIVISIONS = ("floordiv", "floormod")
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "min": min,
    "max": max,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": operator.rshift,
}


def _count_transactions(reached: list[list[int]], size: int) -> tuple[int, int]:
    """Return the transactions that a warp's accesses take, given bytes by register and lane, and how many they need.
    Contiguous registers are one access of a lane, of up to 16 bytes."""
    run = atoms.CHUNK // size
    while run > 1 and not _are_contiguous(reached, run, size):
        run //= 2
    at_once = min(atoms.BANKS, atoms.TRANSACTION_BYTES // max(run * size, atoms.BANK_BYTES))
    rows = reached[: _SAMPLED_RUNS * run : max(run, 1)]
    phases = [row[first : first + at_once] for row in rows for first in range(0, len(row), at_once)]
    return atoms.count_phase_transactions(atoms.list_word_offsets(phase, run * size) for phase in phases if phase)


def _are_contiguous(reached: list[list[int]], run: int, size: int) -> bool:
    """Return True if each group of `run` registers is contiguous in every lane, and aligned to its size."""
    if len(reached) % run:
        return False
    for place, row in enumerate(reached):
        first = reached[place - place % run]
        if any(byte % (run * size) for byte in first) or row != [byte + place % run * size for byte in first]:
            return False
    return True
