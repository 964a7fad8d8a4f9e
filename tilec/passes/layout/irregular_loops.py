"""Nests whose given layout is not one of mixed-radix digits, rewritten so that it is.

Such a layout is a table from (thread, number) to an iteration. The nest then runs over threads and numbers, a layout of
digits, and its variables become expressions of the two that give the table (`closed_form`). The last threads, if they
have no iteration, run past the end; other pairs without one are masked by a condition.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.types import BOOL, INT32
from tilec.passes.layout.closed_form import ValueTable, fit_one_variable, fit_two_variables
from tilec.passes.layout.loop_layout import build_fitting_table
from tilec.rewriting.substitution import substitute_stmt

Element = tuple[int, ...]


def regularise_nest(nest: tile.Parallel, threads: int) -> tile.Parallel:
    """Return the nest with the same iterations in the same threads, in a layout of digits. An iteration of several
    threads is run by the first. Errors: `loop-layout`."""
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
            coordinates = tuple(
                tile.Select(empty, tile.int32_const(e), c, INT32)
                for c, e in zip(coordinates, layout.shape, strict=True)
            )
    body = tuple(substitute_stmt(s, dict(zip(nest.vars, coordinates, strict=True))) for s in nest.body)
    if exists is not None:
        body = (tile.If(exists, body, (), nest.span),)
    extents, (first, second) = (used, len(numbers)), (tile.Var("%0"), tile.Var("%1"))
    own_layout = tile.LoopLayout(extents, (first, second), first, second, layout.span)
    return replace(nest, vars=(thread, number), extents=extents, body=body, layout=own_layout)


def _build_coordinates(
    table: dict[tuple[int, int], Element], shape: tuple[int, ...], thread: tile.Var, number: tile.Var
) -> tuple[tile.Expr, ...]:
    """Return the coordinates of each thread's iterations: each by itself, else as digits of the iteration's index in
    some order of the dimensions, else by cases."""
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
    found: dict[int, tile.Expr] = {}
    for d in reversed(order[1:]):
        found[d] = tile.Binary("floormod", place, tile.int32_const(shape[d]), INT32)
        place = tile.Binary("floordiv", place, tile.int32_const(shape[d]), INT32)
    found[order[0]] = place
    return tuple(found[d] for d in range(len(shape)))
