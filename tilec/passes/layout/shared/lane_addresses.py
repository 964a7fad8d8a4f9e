"""Bank conflicts of parallel nests: the addresses that the lanes of a warp reach at once, from the layout of the nest
and its indices.

`atoms` chooses layouts by the kind of an access, before nests have theirs; reports and lints use this module."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tilec.ir import tile
from tilec.ir.affine import affine_form
from tilec.ir.layout import Fragment, SharedLayout
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.element_accesses import find_element_accesses
from tilec.passes.layout.shared import atoms
from tilec.rewriting.fold_constants import compute_expr

_SAMPLED_RUNS = 8
"""Accesses of a thread that are sampled: every pattern of banks occurs in so many."""


def find_conflict_factors(nest: tile.Parallel, assignment: LayoutAssignment) -> dict[str, float]:
    """Return, by shared tile, how many times longer the nest's worst access takes than without bank conflicts. Tiles
    with indices that depend on data are left out."""
    layout = assignment.nest_layout(nest)
    bound = {s.var: s.value for s in tile.walk_statements(nest.body) if isinstance(s, tile.Bind)}
    numbered = dict(zip(nest.vars, _number_variables(nest.extents), strict=True))
    found: dict[str, float] = {}
    accesses = (access for _, access in find_element_accesses(nest.body) if access.buffer.scope == "shared")
    for buffer, indices in dict.fromkeys((access.buffer, access.indices) for access in accesses):
        forms = tuple(form for index in indices if (form := _build_form(index, numbered, bound)) is not None)
        shared, size = assignment.shared[buffer.name], buffer.dtype.bytes
        is_known = len(forms) == len(indices)
        ways = _compute_conflict_factor(shared, size, layout, nest.extents, forms) if is_known else None
        if ways is not None:
            found[buffer.name] = max(found.get(buffer.name, 1.0), ways)
    return found


@lru_cache(maxsize=1024)
def _compute_conflict_factor(
    shared: SharedLayout, size: int, layout: Fragment, extents: tuple[int, ...], forms: tuple[tile.Expr, ...]
) -> float | None:
    """Return how many times longer an access takes than without bank conflicts; None where an index divides by 0.
    Cached: an operation may become hundreds of nests of the same forms."""
    lanes = [layout.thread_offset(lane) for lane in range(min(atoms.BANKS, layout.thread_count))]
    count = min(layout.register_count, _SAMPLED_RUNS * max(atoms.CHUNK // size, 1))
    reached, variables = [], _number_variables(extents)
    indices = tuple(_make_index(form, variables) for form in forms)
    for register in (layout.register_offset(r) for r in range(count)):
        points = (tuple(map(operator.add, register, lane)) for lane in lanes)
        inside = (point for point in points if all(map(operator.lt, point, extents)))
        row = [_find_byte(shared, indices, point) for point in inside]
        known = [byte for byte in row if byte is not None]
        if len(known) < len(row):
            return None
        reached.append(known)
    taken, needed = _count_transactions(reached, size)
    return taken / max(needed, 1)


Index = Callable[[tuple[int, ...]], int | float | bool | None]
"""The value of an index at a point of the nest; None if it divides by 0."""


def _make_index(form: tile.Expr, variables: tuple[tile.Var, ...]) -> Index:
    """Return the function that computes an index at a point, given by the values of the nest's variables."""
    terms = affine_form(form)
    factors = dict(terms.terms)
    if not factors.keys() <= set(variables):
        return lambda point: compute_expr(form, dict(zip(variables, point, strict=True)))
    weights, constant = [factors.get(variable, 0) for variable in variables], terms.constant
    return lambda point: constant + sum(map(operator.mul, weights, point))


def _find_byte(layout: SharedLayout, indices: Sequence[Index], point: tuple[int, ...]) -> int | None:
    """Return the byte offset in the tile that is accessed at a point of the nest; None if an index divides by 0."""
    place = column = 0
    for index, extent in zip(indices, layout.shape, strict=True):
        at = index(point)
        if at is None:
            return None
        column = int(at) % extent
        place = place * extent + column
    return atoms.find_byte_offset(layout, place // layout.shape[-1], column * layout.element_bytes)


_ARITHMETIC = ("add", "sub", "mul", "floordiv", "floormod", "min", "max", "bitand", "bitor", "xor", "shl", "shr")


def _number_variables(extents: tuple[int, ...]) -> tuple[tile.Var, ...]:
    """Return the variables that stand for those of any nest with these extents."""
    return tuple(tile.Var(f"%{number}") for number in range(len(extents)))


def _build_form(
    expr: tile.Expr, numbered: Mapping[tile.Var, tile.Var], bound: Mapping[tile.Var, tile.Expr]
) -> tile.Expr | None:
    """Return an index as arithmetic on the nest's variables, numbered; None where it depends on data. Variables that
    are the same for all lanes count as 0."""
    match expr:
        case tile.Const(value=int()):
            return expr
        case tile.Var():
            if expr in numbered:
                return numbered[expr]
            return _build_form(bound[expr], numbered, bound) if expr in bound else tile.int32_const(0)
        case tile.Cast(a=inner):
            return _build_form(inner, numbered, bound)
        case tile.Binary(op=op, a=first, b=second) if op in _ARITHMETIC:
            a, b = _build_form(first, numbered, bound), _build_form(second, numbered, bound)
            return None if a is None or b is None else replace(expr, a=a, b=b)
        case _:
            return None


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
