"""Which thread reaches which element of a tensor, found by trying all of a nest's iterations: what the verifier of warp
programs asks where operations of one role touch a tensor without a barrier between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from tilec.ir import tile, warp
from tilec.ir.layout import Fragment
from tilec.ir.placement import NotArithmetic, NoValue, evaluated

_Indices = tuple[tile.Expr, ...]
SAMPLES = (0, 1, 1009, 4001)
"""Values of what is the same throughout a block: of the first such variable, and the next ones' by its multiples. What
is apart only if such values differ, or differ by much, is not where all are 0 and where they are neighbours."""


def are_disjoint(
    one: warp.Operation, other: warp.Operation, tensor: str, writes: tuple[bool, bool], fixed: tuple[tile.Var, ...]
) -> bool:
    """Whether no two threads reach one element, the first operation in one iteration of the loops around it and the
    second in another, each by reading or writing. `fixed` are the variables that the block never changes."""
    if not isinstance(one, warp.Elementwise) or not isinstance(other, warp.Elementwise):
        return False
    if one.block is not None or other.block is not None:
        return False
    return _are_always_disjoint(one, other, tensor, writes, fixed)


@lru_cache(maxsize=256)
def _are_always_disjoint(
    one: warp.Elementwise, other: warp.Elementwise, tensor: str, writes: tuple[bool, bool], fixed: tuple[tile.Var, ...]
) -> bool:
    sides = [(op, indices, w) for op, w in zip((one, other), writes, strict=True) for indices in _of(op, tensor, w)]
    tried = 0
    for sample in SAMPLES:
        values: dict[tile.Var, tile.Expr] = {var: tile.integer(sample * (n + 1)) for n, var in enumerate(fixed)}
        try:
            places = [(op, [_places(op, i, values) for i in indices], w) for op, indices, w in sides]
        except NoValue:
            continue  # no kernel is launched with these
        tried += 1
        known = [d for d in range(len(sides[0][1])) if all(found[d] is not None for _, found, _ in places)]
        reached: dict[tuple[int, ...], int] = {}
        for op, found, write in places:
            columns: list[list[int]] = [column for d in known if (column := found[d]) is not None]
            for thread, iteration in _threads(op, write):
                element = tuple(column[iteration] for column in columns)
                if reached.setdefault(element, thread) != thread:
                    return False
    return tried > 0


def _of(op: warp.Elementwise, tensor: str, write: bool) -> list[_Indices]:
    return [indices for _, indices in elements_of(op, tensor, write)]


def elements_of(op: warp.Elementwise, tensor: str, write: bool) -> Iterator[tuple[tile.Buffer, _Indices]]:
    """The elements of a tensor that each iteration of a nest writes, or reads."""
    for stmt in tile.walk(op.nest.body):
        reached = _loads(stmt) if not write else [stmt] if isinstance(stmt, tile.Store) else []
        yield from ((access.buffer, access.indices) for access in reached if access.buffer.name == tensor)


def _loads(stmt: tile.Stmt) -> Iterator[tile.Load]:
    parts = (getattr(stmt, key, None) for key in ("value", "condition"))
    exprs = [e for e in (*parts, *getattr(stmt, "values", ()), *getattr(stmt, "indices", ())) if e is not None]
    yield from (e for expr in exprs for e in tile.walk_expr(expr) if isinstance(e, tile.Load))


def _places(op: warp.Elementwise, index: tile.Expr, values: dict[tile.Var, tile.Expr]) -> list[int] | None:
    """The index in every iteration; None where it depends on more. Fails with `NoValue` where it has none."""
    try:
        return evaluated(tile.substitute(index, values), op.nest.extents, op.nest.vars)
    except NoValue:
        raise
    except NotArithmetic:
        return None


def _threads(op: warp.Elementwise, write: bool) -> Iterable[tuple[int, int]]:
    """Each thread with the number of each of its iterations. Of several that have the same ones the first writes, and
    reads if no copies are kept."""
    buffers = [s.buffer for s in tile.walk(op.nest.body) if isinstance(s, tile.Store)]
    buffers += [e.buffer for stmt in tile.walk(op.nest.body) for e in _loads(stmt)]
    first_only = write or not any(b.in_registers for b in buffers)
    for thread, iteration, is_copy in _iterations(op.layout, op.nest.extents):
        if not (first_only and is_copy):
            yield thread, iteration


@lru_cache(maxsize=64)
def _iterations(layout: Fragment, extents: tuple[int, ...]) -> tuple[tuple[int, int, bool], ...]:
    found = []
    registers = [layout.register_offset(r) for r in range(layout.register_count)]
    for thread in range(layout.thread_count):
        first = layout.thread_offset(thread)
        digits, is_copy = thread, False
        for axis in layout.threads:
            digits, digit = divmod(digits, axis.size)
            is_copy |= axis.dim < 0 and digit > 0
        for offset in registers:
            number = 0
            inside = True
            for a, b, extent in zip(first, offset, extents, strict=True):
                inside &= a + b < extent
                number = number * extent + a + b
            if inside:
                found.append((thread, number, is_copy))
    return tuple(found)
