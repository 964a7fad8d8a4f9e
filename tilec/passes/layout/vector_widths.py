"""How many neighbours along its last dimension a thread should hold of a tile, so that what it moves between memory and
registers is wide.

A thread that holds 16 bytes of the narrowest tensor reaches all of them with accesses of 16 bytes: wider elements with
several. In shared memory such neighbours of wider elements would share banks with those of other threads: there the
widest element says how many. Where a nest reaches elements of shared memory one by one, those of neighbouring threads
are to lie in neighbouring banks: then a thread has no more than a bank's worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tilec.ir import tile
from tilec.ir.affine import affine
from tilec.ir.types import BOOL
from tilec.ops.lowering import VECTOR_BYTES
from tilec.passes.analysis.usage import expressions

BANK_BYTES = 4
"""Of shared memory (CUDA programming guide, shared memory)."""


def of_nest(nest: tile.Parallel, threads: int) -> int:
    """Elements that a thread should have of a nest in which no fragment says it."""
    least = VECTOR_BYTES // max(_sizes(nest), default=1)
    run = _run(streams(nest), least, nest.extents, threads)
    alone = [buffer.dtype.bytes for buffer, index in _shared_rows(nest) if _is_unaligned(index, nest.vars[-1], run)]
    return min(run, max(1, BANK_BYTES // max(alone))) if alone else run


def of_fragment(fragment: tile.Buffer, stmts: Iterable[tile.Stmt], threads: int) -> int:
    """Elements that a thread should have of a fragment that nothing else gives a layout, and with it of those of its
    shape."""

    def is_alike(buffer: tile.Buffer) -> bool:
        return buffer.scope == "fragment" and buffer.shape == fragment.shape

    met: list[tile.Buffer] = []
    for stmt in stmts:
        match stmt:
            case tile.TileOp(fragments_lie="alike", regions=regions) if any(is_alike(r.buffer) for r in regions):
                met += [r.buffer for r in regions if not r.buffer.in_registers]
            case tile.Parallel(extents=fragment.shape) if any(is_alike(b) for b, _ in _accesses(stmt)):
                met += streams(stmt)
            case _:
                pass
    least = VECTOR_BYTES // max((b.dtype.bytes for b in met), default=fragment.dtype.bytes)
    return _run(met, least, fragment.shape, threads)


def streams(nest: tile.Parallel) -> list[tile.Buffer]:
    """The tensors and shared tiles of which neighbours in the nest are neighbours."""
    last = nest.vars[-1]

    def moves(indices: tuple[tile.Expr, ...]) -> bool:
        return (last, 1) in affine(indices[-1]).terms and not any(last in tile.walk_expr(i) for i in indices[:-1])

    return [b for b, indices in _accesses(nest) if not b.in_registers and b.dtype != BOOL and moves(indices)]


def _shared_rows(nest: tile.Parallel) -> Iterator[tuple[tile.Buffer, tile.Expr]]:
    """The shared tiles that the nest goes through along their rows, with where."""
    last = nest.vars[-1]
    for buffer, (*rows, index) in _accesses(nest):
        if buffer.scope == "shared" and not any(last in tile.walk_expr(i) for i in rows):
            yield buffer, index


def _is_unaligned(index: tile.Expr, last: tile.Var, run: int) -> bool:
    """Whether neighbours in the nest are neighbours of the tile that no wide access reaches: they begin anywhere, or
    come round at an end."""
    form = affine(index)
    is_whole = form.constant % run == 0 and all(
        atom == last or (by % run == 0 and last not in tile.walk_expr(atom)) for atom, by in form.terms
    )
    return not is_whole and abs(_pace(index, last)) == 1


def _pace(index: tile.Expr, last: tile.Var) -> int:
    """By how much one more of `last` moves it, but for where it comes round."""
    moved = 0
    for atom, by in affine(index).terms:
        match atom:
            case tile.Binary(op="floormod" | "xor", a=inner):
                moved += by * _pace(inner, last)
            case _:
                moved += by if atom == last else 0
    return moved


def _run(met: list[tile.Buffer], least: int, shape: tuple[int, ...], threads: int) -> int:
    """`least`, or more where that makes accesses of tensors wider and leaves no thread without work."""
    sizes = [b.dtype.bytes for b in met if b.scope == "global"]
    if not sizes:
        return least
    widest = max((b.dtype.bytes for b in met if b.scope == "shared"), default=1)
    wanted = VECTOR_BYTES // max(min(sizes), widest)
    while wanted > least and wanted * threads > math.prod(shape):
        wanted //= 2
    return max(wanted, least)


def _accesses(nest: tile.Parallel) -> Iterator[tuple[tile.Buffer, tuple[tile.Expr, ...]]]:
    """What the nest reads and writes, its names replaced by what they stand for."""
    values: dict[tile.Var, tile.Expr] = {}
    for stmt in tile.walk(nest.body):
        if isinstance(stmt, tile.Bind):
            values[stmt.var] = tile.substitute(stmt.value, values)
        if isinstance(stmt, tile.Store):
            yield stmt.buffer, tuple(tile.substitute(i, values) for i in stmt.indices)
        for expr in expressions(stmt):
            for e in tile.walk_expr(expr):
                if isinstance(e, tile.Load):
                    yield e.buffer, tuple(tile.substitute(i, values) for i in e.indices)


def _sizes(nest: tile.Parallel) -> Iterator[int]:
    for stmt in tile.walk(nest.body):
        if isinstance(stmt, tile.Store):
            yield stmt.buffer.dtype.bytes
            yield from (e.buffer.dtype.bytes for e in tile.walk_expr(stmt.value) if isinstance(e, tile.Load))
