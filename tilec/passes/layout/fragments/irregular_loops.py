"""Nests whose given layout is not one of mixed-radix digits, rewritten so that it is; and closed forms, which turn a
table of integers into arithmetic on its indices.

Such a layout is a table from (thread, number) to an iteration. The nest then runs over threads and numbers, a layout of
digits, and its variables become expressions of the two that give the table. The last threads, if they
have no iteration, run past the end; other pairs without one are masked by a condition.

Mixed-radix digits, exclusive or of bits, and multiples modulo a number are tried. Any other table is halved, down to
single values, so that there always is an expression. Indices that a table leaves out may have any value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from tilec.ir import tile
from tilec.ir.types import BOOL, INT32
from tilec.passes.layout.fragments.loop_layout import build_fitting_table
from tilec.rewriting.substitution import substitute_stmt

Element = tuple[int, ...]


def regularise_nest(nest: tile.Parallel, threads: int) -> tile.Parallel:
    """Return the nest over (thread, number) pairs with the same iterations in the same threads, as a digit layout. An
    iteration of several threads is run by the first. Errors: `loop-layout`."""
    layout = nest.layout
    assert layout is not None
    found: dict[Element, tuple[int, int]] = {}
    for place, element in sorted(build_fitting_table(layout, threads).items()):
        found.setdefault(element, place)
    rows: dict[int, list[tuple[int, Element]]] = {}
    for element, (t, n) in found.items():
        rows.setdefault(t, []).append((n, element))
    used, numbers = 1 + max(rows), sorted({n for row in rows.values() for n, _ in row})
    if len(found) < used * len(numbers):  # each thread's iterations, in their order, are its first numbers
        numbers = list(range(max(map(len, rows.values()))))
        rows = {t: [(n, element) for n, (_, element) in enumerate(sorted(row))] for t, row in rows.items()}
    at = {n: place for place, n in enumerate(numbers)}
    table = {(t, at[n]): element for t, row in rows.items() for n, element in row}
    counts = {t: len(row) for t, row in rows.items()}
    thread, number = (tile.Var(f"{nest.vars[0].name}.{name}") for name in ("thread", "number"))
    coordinates = _build_coordinates(table, layout.shape, thread, number)
    least = min(counts.get(t, 0) for t in range(used))
    exists: tile.Expr | None = None
    if least < len(numbers):
        count = fit_one_variable({t: counts.get(t, 0) for t in range(used)}, thread)
        exists = tile.Binary("lt", number, count, BOOL)
        # A masked thread still reads: let it read its own last element, as others may be written meanwhile.
        last = tile.Binary("min", number, tile.Binary("sub", count, tile.int32_const(1), INT32), INT32)
        own = tile.Select(tile.Binary("lt", number, tile.int32_const(least), BOOL), number, last, INT32)
        coordinates = tuple(tile.substitute_variables(c, {number: own}) for c in coordinates)
        if least == 0:  # a thread without iterations is out of bounds everywhere
            empty = tile.Binary("lt", count, tile.int32_const(1), BOOL)
            ends = map(tile.int32_const, layout.shape)
            coordinates = tuple(tile.Select(empty, e, c, INT32) for c, e in zip(coordinates, ends, strict=True))
    body = tuple(substitute_stmt(s, dict(zip(nest.vars, coordinates, strict=True))) for s in nest.body)
    if exists is not None:
        body = (tile.If(exists, body, (), nest.span),)
    extents, (first, second) = (used, len(numbers)), (tile.Var("%0"), tile.Var("%1"))
    own_layout = tile.LoopLayout(extents, (first, second), first, second, layout.span)
    return replace(nest, vars=(thread, number), extents=extents, body=body, layout=own_layout)


def _build_coordinates(
    table: dict[tuple[int, int], Element], shape: tuple[int, ...], thread: tile.Var, number: tile.Var
) -> tuple[tile.Expr, ...]:
    """Return expressions of thread and number for each coordinate of the iterations in a table."""
    rank = len(shape)
    each: list[ValueTable] = [{place: element[d] for place, element in table.items()} for d in range(rank)]
    separate = [fit_two_variables(one, thread, number, shape[d]) for d, one in enumerate(each)]
    if all(one is not None for one in separate):
        return tuple(one for one in separate if one is not None)
    for order in itertools.permutations(range(rank)) if rank <= 4 else (tuple(range(rank)),):
        flat: ValueTable = {}
        for place, element in table.items():
            value = 0
            for d in order:
                value = value * shape[d] + element[d]
            flat[place] = value
        whole = fit_two_variables(flat, thread, number, math.prod(shape))
        if whole is not None:
            return _unflatten_index(whole, shape, order)
    return tuple(
        one
        if one is not None
        else fit_two_variables(each[d], thread, number, shape[d], by_cases=True) or tile.int32_const(0)
        for d, one in enumerate(separate)
    )


def _unflatten_index(place: tile.Expr, shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[tile.Expr, ...]:
    """Return the coordinates of a flat index into this shape, whose dimensions it counts in this order."""
    found: dict[int, tile.Expr] = {}
    for d in reversed(order[1:]):
        found[d] = tile.Binary("floormod", place, tile.int32_const(shape[d]), INT32)
        place = tile.Binary("floordiv", place, tile.int32_const(shape[d]), INT32)
    found[order[0]] = place
    return tuple(found[d] for d in range(len(shape)))


ValueTable = dict[tuple[int, int], int]


def fit_two_variables(
    table: ValueTable, first: tile.Var, second: tile.Var, modulus: int | None, by_cases: bool = False
) -> tile.Expr | None:
    """Return an expression of two variables with a table's values, or None; `by_cases`, always an expression. It is a
    sum, a sum modulo a number, or an exclusive or of an expression of each, or, `by_cases`, has a case for each value
    of the second variable. The table maps (first, second), both from 0 on, to a value; each first index that it has, it
    has with second 0."""

    def combine_fits(op: Literal["add", "xor"], b: dict[int, int], modulus: int | None = None) -> tile.Expr | None:
        """Return the sum or exclusive or of a fit of `column` and one of `b`; None where the first has no closed
        form."""
        of_first = (fit_one_variable if by_cases else fit_closed_form)(column, first, modulus)
        if of_first is None:
            return None
        of_second = fit_one_variable(b, second, modulus)
        return of_first if of_second == tile.int32_const(0) else tile.Binary(op, of_first, of_second, INT32)

    column = {a: v for (a, b), v in table.items() if b == 0}
    longest = max(column, key=lambda a: sum((a, b) in table for b in range(1 + max(b for _, b in table))))
    row = {b: v for (a, b), v in table.items() if a == longest}
    base = column[longest]
    added = {b: v - base for b, v in row.items()}
    if all(v == column[a] + added[b] for (a, b), v in table.items()):
        return combine_fits("add", added)
    mixed = {b: v ^ base for b, v in row.items()}
    if all(v == column[a] ^ mixed[b] for (a, b), v in table.items()):
        return combine_fits("xor", mixed)
    if modulus is not None and all(v == (column[a] + added[b]) % modulus for (a, b), v in table.items()):
        total = combine_fits("add", {b: v % modulus for b, v in added.items()}, modulus)
        return None if total is None else tile.Binary("floormod", total, tile.int32_const(modulus), INT32)
    if not by_cases:
        return None
    columns = [{a: v for (a, b), v in table.items() if b == n} for n in range(1 + max(b for _, b in table))]
    return _build_cases([fit_one_variable(c, first, modulus) for c in columns], second, 0)


def fit_one_variable(values: dict[int, int], var: tile.Var, modulus: int | None = None) -> tile.Expr:
    """Return an expression of `var` with a table's values: a closed form, else a select between two halves."""
    found = fit_closed_form(values, var, modulus)
    if found is not None:
        return found
    low, high = min(values), max(values)
    middle = (low + high + 1) // 2
    halves = ({a: v for a, v in values.items() if (a >= middle) == upper} for upper in (False, True))
    below, above = (fit_one_variable(half, var, modulus) for half in halves)
    return tile.Select(tile.Binary("lt", var, tile.int32_const(middle), BOOL), below, above, INT32)


def _build_cases(expressions: list[tile.Expr], var: tile.Var, start: int) -> tile.Expr:
    """Return nested selects that give the i-th expression where `var` is `start` + i."""
    if len(expressions) == 1:
        return expressions[0]
    half = len(expressions) // 2
    below, above = _build_cases(expressions[:half], var, start), _build_cases(expressions[half:], var, start + half)
    return tile.Select(tile.Binary("lt", var, tile.int32_const(start + half), BOOL), below, above, INT32)


def fit_closed_form(values: dict[int, int], var: tile.Var, modulus: int | None = None) -> tile.Expr | None:
    """Return an expression of `var` with a table's values (constant, digits, bits or multiple); None if none fits."""
    if len(set(values.values())) == 1:
        return tile.int32_const(next(iter(values.values())))
    fits = (_fit_digits(values, var), _fit_bits(values, var), _fit_multiple(values, var, modulus))
    return next((found for found in fits if found is not None), None)


def _fit_digits(values: dict[int, int], var: tile.Var) -> tile.Expr | None:
    """Return a sum of mixed-radix digits of the variable, each times a factor, with a table's values, or None."""
    count = 1 + max(values)
    if any(n not in values for n in range(count)):
        return None
    terms: list[tuple[int, int, int]] = []  # below, size, stride
    base = 1
    while base < count:
        step, size = values[base] - values[0], 2
        while size * base < count and values[size * base] - values[0] == size * step:
            size += 1
        while count % (size * base) and size * base < count:
            size -= 1
        if size == 1:
            return None
        terms.append((base, size, step))
        base *= size
    for n, v in values.items():
        if v != values[0] + sum(n // below % size * stride for below, size, stride in terms):
            return None
    total: tile.Expr | None = tile.int32_const(values[0]) if values[0] else None
    for below, size, stride in terms:
        if stride == 0:
            continue
        digit: tile.Expr = var if below == 1 else tile.Binary("floordiv", var, tile.int32_const(below), INT32)
        if below * size < count:
            digit = tile.Binary("floormod", digit, tile.int32_const(size), INT32)
        term = digit if stride == 1 else tile.Binary("mul", digit, tile.int32_const(stride), INT32)
        total = term if total is None else tile.Binary("add", total, term, INT32)
    return total


def _fit_bits(values: dict[int, int], var: tile.Var) -> tile.Expr | None:
    """Return an exclusive or of one mask for each set bit of the variable, with a table's values, or None."""
    if 0 not in values or min(values.values()) < 0:
        return None
    width = max(values).bit_length()
    if any(1 << b not in values for b in range(width)):
        return None
    masks = [values[1 << b] ^ values[0] for b in range(width)]
    for n, v in values.items():
        expected = values[0]
        for b, mask in enumerate(masks):
            expected ^= mask * (n >> b & 1)
        if v != expected:
            return None
    total: tile.Expr | None = tile.int32_const(values[0]) if values[0] else None
    for low, length in _group_bits(masks):
        part: tile.Expr = var if low == 0 else tile.Binary("floordiv", var, tile.int32_const(1 << low), INT32)
        if low + length < width:
            part = tile.Binary("floormod", part, tile.int32_const(1 << length), INT32)
        term = part if masks[low] == 1 else tile.Binary("mul", part, tile.int32_const(masks[low]), INT32)
        total = term if total is None else tile.Binary("xor", total, term, INT32)
    return total


def _group_bits(masks: list[int]) -> Iterator[tuple[int, int]]:
    """Yield, as first bit and length, the runs of bits whose masks are single bits that double from one to the next."""
    starts = [0]
    starts += [b for b, (m, n) in enumerate(pairwise(masks), 1) if n != 2 * m or m.bit_count() != 1]
    for low, high in pairwise((*starts, len(masks))):
        if masks[low]:
            yield low, high - low


def _fit_multiple(values: dict[int, int], var: tile.Var, modulus: int | None) -> tile.Expr | None:
    """Return (factor · var + offset) modulo `modulus` with a table's values, or None if it does not fit."""
    if modulus is None or not {0, 1} <= values.keys() or min(values.values()) < 0:
        return None
    start, factor = values[0], (values[1] - values[0]) % modulus
    if any(v != (start + factor * n) % modulus for n, v in values.items()):
        return None
    total: tile.Expr = tile.Binary("mul", var, tile.int32_const(factor), INT32)
    if start:
        total = tile.Binary("add", total, tile.int32_const(start), INT32)
    return tile.Binary("floormod", total, tile.int32_const(modulus), INT32)
