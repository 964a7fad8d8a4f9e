"""What the lanes of a warp reach at once of a shared tile in a parallel nest: the addresses that are emitted, from the
layout that the nest sweeps and the indices that it writes.

`atoms` chooses layouts by the kind of an access, before nests have theirs; this is for what is said afterwards.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from tilec.ir import tile
from tilec.ir.layout import SharedLayout
from tilec.passes.analysis.usage import expressions
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.atoms import BANK_BYTES, BANKS, CHUNK, TRANSACTION, of_phases, offset, words

_RUNS = 8
"""Accesses of a thread that are looked at: in so many, every pattern of banks has come up."""


def conflicts(nest: tile.Parallel, assignment: LayoutAssignment) -> dict[str, float]:
    """By tile, how many times longer the nest's accesses take than their words need: the worst of each; 1 without bank
    conflicts. A tile that is reached where only data say is left out."""
    layout = assignment.nest_layout(nest)
    lanes = [layout.thread_offset(lane) for lane in range(min(BANKS, layout.thread_count))]
    registers = [layout.register_offset(r) for r in range(min(layout.register_count, _RUNS * CHUNK))]
    bound = {s.var: s.value for s in tile.walk(nest.body) if isinstance(s, tile.Bind)}
    found: dict[str, float] = {}
    for buffer, indices in dict.fromkeys(_accesses(nest)):
        shared, looked_at = assignment.shared[buffer.name], registers[: _RUNS * max(CHUNK // buffer.dtype.bytes, 1)]
        reached = [[_byte(shared, nest, indices, bound, register, lane) for lane in lanes] for register in looked_at]
        if any(byte is _UNKNOWN for row in reached for byte in row):
            continue
        taken, needed = _transactions([[b for b in row if isinstance(b, int)] for row in reached], buffer.dtype.bytes)
        found[buffer.name] = max(found.get(buffer.name, 1.0), taken / max(needed, 1))
    return found


def _accesses(nest: tile.Parallel) -> Iterator[tuple[tile.Buffer, tuple[tile.Expr, ...]]]:
    for stmt in tile.walk(nest.body):
        if isinstance(stmt, tile.Store) and stmt.buffer.scope == "shared":
            yield stmt.buffer, stmt.indices
        for expr in expressions(stmt):
            for load in tile.walk_expr(expr):
                if isinstance(load, tile.Load) and load.buffer.scope == "shared":
                    yield load.buffer, load.indices


class _Unknown:
    """An address that only data say."""


_UNKNOWN = _Unknown()


def _byte(
    layout: SharedLayout,
    nest: tile.Parallel,
    indices: Sequence[tile.Expr],
    bound: Mapping[tile.Var, tile.Expr],
    register: Sequence[int],
    lane: Sequence[int],
) -> int | _Unknown | None:
    """The byte of the tile that a lane reaches with a register; None where it has no element there. What does not
    change from lane to lane counts as 0."""
    values = {var: a + b for var, a, b in zip(nest.vars, register, lane, strict=True)}
    if any(value >= extent for value, extent in zip(values.values(), nest.extents, strict=True)):
        return None
    place = [_value(index, values, bound) for index in indices]
    row = 0
    for index, extent in zip(place[:-1], layout.shape[:-1], strict=True):
        if index is None:
            return _UNKNOWN
        row = row * extent + index % extent
    return _UNKNOWN if place[-1] is None else offset(layout, row, place[-1] % layout.shape[-1] * layout.element_bytes)


def _value(expr: tile.Expr, values: Mapping[tile.Var, int], bound: Mapping[tile.Var, tile.Expr]) -> int | None:
    """Of an index; None where only data say. Variables of loops and blocks are the same for all lanes: 0."""
    match expr:
        case tile.Const(value=int(value)):
            return int(value)
        case tile.Var():
            if expr in values:
                return values[expr]
            return _value(bound[expr], values, bound) if expr in bound else 0
        case tile.Cast(a=inner):
            return _value(inner, values, bound)
        case tile.Binary(op=op, a=first, b=second) if op in _ARITHMETIC:
            a, b = _value(first, values, bound), _value(second, values, bound)
            return None if a is None or b is None or (op in _DIVIDES and not b) else _ARITHMETIC[op](a, b)
        case _:
            return None


_DIVIDES = ("floordiv", "floormod")
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


def _transactions(reached: list[list[int]], size: int) -> tuple[int, int]:
    """Those that a warp takes for the bytes of its lanes, register by register, and those that the words need. Bytes of
    registers that follow one another are one access of a lane, of up to 16 bytes."""
    run = CHUNK // size
    while run > 1 and not _are_together(reached, run, size):
        run //= 2
    at_once = min(BANKS, TRANSACTION // max(run * size, BANK_BYTES))
    rows = reached[: _RUNS * run : max(run, 1)]
    phases = [row[first : first + at_once] for row in rows for first in range(0, len(row), at_once)]
    return of_phases(words(phase, run * size) for phase in phases if phase)


def _are_together(reached: list[list[int]], run: int, size: int) -> bool:
    """Whether each `run` registers of a thread hold neighbours, the first of them aligned to all of them."""
    if len(reached) % run:
        return False
    for place, row in enumerate(reached):
        first = reached[place - place % run]
        if any(byte % (run * size) for byte in first) or row != [byte + place % run * size for byte in first]:
            return False
    return True
