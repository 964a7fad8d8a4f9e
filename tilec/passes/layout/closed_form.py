"""Closed forms: turn a table of integers into arithmetic on its indices.

Mixed-radix digits, exclusive or of bits, and multiples modulo a number are tried. Any other table is halved, down to
single values, so that there always is an expression. Indices that a table leaves out may have any value.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from tilec.ir import tile
from tilec.ir.types import BOOL, INT32

Table = dict[tuple[int, int], int]
_Combine = Literal["add", "xor"]


def of_two(
    table: Table, first: tile.Var, second: tile.Var, modulus: int | None, by_cases: bool = False
) -> tile.Expr | None:
    """Return an expression of two variables with the values of the table: a sum, a sum modulo a number, or an exclusive
    or of an expression of each. Without one return None or, `by_cases`, a case for each value of the second variable.

    The table maps (first, second), both from 0 on, to a value; each first index that it has, it has with second 0.
    """
    column = {a: v for (a, b), v in table.items() if b == 0}
    longest = max(column, key=lambda a: sum((a, b) in table for b in range(1 + max(b for _, b in table))))
    row = {b: v for (a, b), v in table.items() if a == longest}
    base = column[longest]
    added = {b: v - base for b, v in row.items()}
    if all(v == column[a] + added[b] for (a, b), v in table.items()):
        return _pair("add", column, added, first, second, by_cases)
    mixed = {b: v ^ base for b, v in row.items()}
    if all(v == column[a] ^ mixed[b] for (a, b), v in table.items()):
        return _pair("xor", column, mixed, first, second, by_cases)
    if modulus is not None and all(v == (column[a] + added[b]) % modulus for (a, b), v in table.items()):
        reduced = {b: v % modulus for b, v in added.items()}
        total = _pair("add", column, reduced, first, second, by_cases, modulus)
        return None if total is None else tile.Binary("floormod", total, tile.integer(modulus), INT32)
    if not by_cases:
        return None
    columns = [{a: v for (a, b), v in table.items() if b == n} for n in range(1 + max(b for _, b in table))]
    return _cases([of_one(c, first, modulus) for c in columns], second, 0)


def _pair(
    op: _Combine,
    a: dict[int, int],
    b: dict[int, int],
    first: tile.Var,
    second: tile.Var,
    by_cases: bool,
    modulus: int | None = None,
) -> tile.Expr | None:
    of_first = of_one(a, first, modulus) if by_cases else closed(a, first, modulus)
    if of_first is None:
        return None
    of_second = of_one(b, second, modulus)
    return of_first if of_second == tile.integer(0) else tile.Binary(op, of_first, of_second, INT32)


def of_one(values: dict[int, int], var: tile.Var, modulus: int | None = None) -> tile.Expr:
    """Return an expression of one variable that has these values."""
    found = closed(values, var, modulus)
    if found is not None:
        return found
    low, high = min(values), max(values)
    middle = (low + high + 1) // 2
    halves = ({a: v for a, v in values.items() if (a >= middle) == upper} for upper in (False, True))
    below, above = (of_one(half, var, modulus) for half in halves)
    return tile.Select(tile.Binary("lt", var, tile.integer(middle), BOOL), below, above, INT32)


def _cases(expressions: list[tile.Expr], var: tile.Var, start: int) -> tile.Expr:
    if len(expressions) == 1:
        return expressions[0]
    half = len(expressions) // 2
    below, above = _cases(expressions[:half], var, start), _cases(expressions[half:], var, start + half)
    return tile.Select(tile.Binary("lt", var, tile.integer(start + half), BOOL), below, above, INT32)


def closed(values: dict[int, int], var: tile.Var, modulus: int | None = None) -> tile.Expr | None:
    """Return an expression without cases that has these values, or None."""
    if len(set(values.values())) == 1:
        return tile.integer(next(iter(values.values())))
    for found in (_digits(values, var), _bits(values, var), _multiple(values, var, modulus)):
        if found is not None:
            return found
    return None


def _digits(values: dict[int, int], var: tile.Var) -> tile.Expr | None:
    """Return a sum of mixed-radix digits of the variable, each times a factor, or None."""
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
    total: tile.Expr | None = tile.integer(values[0]) if values[0] else None
    for below, size, stride in terms:
        if stride == 0:
            continue
        digit: tile.Expr = var if below == 1 else tile.Binary("floordiv", var, tile.integer(below), INT32)
        if below * size < count:
            digit = tile.Binary("floormod", digit, tile.integer(size), INT32)
        term = digit if stride == 1 else tile.Binary("mul", digit, tile.integer(stride), INT32)
        total = term if total is None else tile.Binary("add", total, term, INT32)
    return total


def _bits(values: dict[int, int], var: tile.Var) -> tile.Expr | None:
    """Return the exclusive or of a mask for each set bit of the variable, or None."""
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
    total: tile.Expr | None = tile.integer(values[0]) if values[0] else None
    for low, length in _runs(masks):
        part: tile.Expr = var if low == 0 else tile.Binary("floordiv", var, tile.integer(1 << low), INT32)
        if low + length < width:
            part = tile.Binary("floormod", part, tile.integer(1 << length), INT32)
        term = part if masks[low] == 1 else tile.Binary("mul", part, tile.integer(masks[low]), INT32)
        total = term if total is None else tile.Binary("xor", total, term, INT32)
    return total


def _runs(masks: list[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of bits, as first and length: single-bit masks each of which doubles the one before."""
    starts = [0]
    starts += [b for b, (m, n) in enumerate(pairwise(masks), 1) if n != 2 * m or m.bit_count() != 1]
    for low, high in pairwise((*starts, len(masks))):
        if masks[low]:
            yield low, high - low


def _multiple(values: dict[int, int], var: tile.Var, modulus: int | None) -> tile.Expr | None:
    """Return the variable times a factor, plus an offset, modulo `modulus`, or None."""
    if modulus is None or not {0, 1} <= values.keys() or min(values.values()) < 0:
        return None
    start, factor = values[0], (values[1] - values[0]) % modulus
    if any(v != (start + factor * n) % modulus for n, v in values.items()):
        return None
    total: tile.Expr = tile.Binary("mul", var, tile.integer(factor), INT32)
    if start:
        total = tile.Binary("add", total, tile.integer(start), INT32)
    return tile.Binary("floormod", total, tile.integer(modulus), INT32)
