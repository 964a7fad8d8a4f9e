"""Reads and writes of statements, as buffers, and of kernels, as the direction of each tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tilec.ir import parts, tile
from tilec.ops import registry
from tilec.support.memo import by_identity

Direction = Literal["in", "out", "inout"]

_KEPT = 1 << 14
"""Statements whose buffers are cached: every pass asks for them again, and most statements stay as they are."""


def usage(kernel: tile.Kernel) -> dict[str, Direction]:
    """Return the direction of each tensor parameter in order: `in` is never written, `out` is never read. An unused
    tensor is `in`."""
    body = kernel.body
    read = {b.name for stmt in body for b in reads(stmt)}
    written = {b.name for stmt in body for b in writes(stmt)}
    return {
        p.name: "in" if p.name not in written else "inout" if p.name in read else "out"
        for p in kernel.params
        if isinstance(p, tile.Buffer)
    }


@by_identity(_KEPT)
def reads(stmt: tile.Stmt) -> tuple[tile.Buffer, ...]:
    """Return every buffer that the statement, or one inside it, may read; each once, in program order."""
    return tuple(dict.fromkeys(_reads(stmt)))


@by_identity(_KEPT)
def writes(stmt: tile.Stmt) -> tuple[tile.Buffer, ...]:
    """Return every buffer that the statement, or one inside it, may write; each once, in program order."""
    return tuple(dict.fromkeys(_writes(stmt)))


def never_read(kernel: tile.Kernel) -> frozenset[str]:
    """Return the shared tiles and fragments that are never read: the order of writes to them does not matter."""
    read = {buffer for stmt in kernel.body for buffer in reads(stmt)}
    return frozenset(b.name for b in kernel.buffers if b.scope in ("shared", "fragment") and b not in read)


def expressions(stmt: tile.Stmt) -> Iterator[tile.Expr]:
    """Yield the expressions of the statement itself, without those of statements inside it."""
    match stmt:
        case tile.TileOp(regions=regions):
            for region in regions:
                yield from region.start
            yield from stmt.expressions
        case _:
            yield from parts.expressions(stmt).read(stmt)


def _loads(stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    for expr in expressions(stmt):
        for part in tile.walk_expr(expr):
            if isinstance(part, tile.Load):
                yield part.buffer


def _reads(stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    if isinstance(stmt, tile.TileOp):
        yield from _buffers(registry.get(stmt.name).effects(stmt).reads)
    elif isinstance(stmt, tile.Store) and stmt.atomic is not None:
        yield stmt.buffer
    yield from _loads(stmt)
    for body in tile.bodies(stmt):
        for nested in body:
            yield from reads(nested)


def _writes(stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    if isinstance(stmt, tile.TileOp):
        yield from _buffers(registry.get(stmt.name).effects(stmt).writes)
    elif isinstance(stmt, tile.Store):
        yield stmt.buffer
    elif isinstance(stmt, tile.Print):
        yield tile.PRINTED
    for body in tile.bodies(stmt):
        for nested in body:
            yield from writes(nested)


def _buffers(regions: tuple[tile.Region, ...]) -> Iterator[tile.Buffer]:
    for region in regions:
        yield region.buffer
