"""What statements read and write: per statement as lists of buffers, per kernel as the direction of each tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, assert_never

from tilec.ir.tile import (
    PRINTED,
    Bind,
    Break,
    Buffer,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Parallel,
    Print,
    Region,
    Stmt,
    Store,
    TileOp,
    While,
    bodies,
    walk_expr,
)
from tilec.ops import registry
from tilec.support.memo import by_identity

Direction = Literal["in", "out", "inout"]

_KEPT = 1 << 14
"""Statements whose buffers are remembered: every pass asks for them again, and most statements go through unchanged."""


def usage(kernel: Kernel) -> dict[str, Direction]:
    """For each tensor parameter in order: `in` is never written, `out` is never read. An unused tensor is `in`."""
    body = kernel.body
    read = {b.name for stmt in body for b in reads(stmt)}
    written = {b.name for stmt in body for b in writes(stmt)}
    return {
        p.name: "in" if p.name not in written else "inout" if p.name in read else "out"
        for p in kernel.params
        if isinstance(p, Buffer)
    }


@by_identity(_KEPT)
def reads(stmt: Stmt) -> tuple[Buffer, ...]:
    """Every buffer that the statement, or one inside it, may read; each once, in program order."""
    return tuple(dict.fromkeys(_reads(stmt)))


@by_identity(_KEPT)
def writes(stmt: Stmt) -> tuple[Buffer, ...]:
    """Every buffer that the statement, or one inside it, may write; each once, in program order."""
    return tuple(dict.fromkeys(_writes(stmt)))


def never_read(kernel: Kernel) -> frozenset[str]:
    """The tiles of which nobody cares what is in them: the order in which they are written does not matter."""
    read = {buffer for stmt in kernel.body for buffer in reads(stmt)}
    return frozenset(b.name for b in kernel.buffers if b.scope in ("shared", "fragment") and b not in read)


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """The expressions of the statement itself, without those of statements inside it."""
    match stmt:
        case TileOp(regions=regions):
            for region in regions:
                yield from region.start
            yield from stmt.expressions
        case Store(indices=indices, value=value):
            yield from indices
            yield value
        case Print(values=values):
            yield from values
        case Bind(value=value):
            yield value
        case For(start=start, stop=stop):
            yield start
            yield stop
        case If(condition=condition) | While(condition=condition):
            yield condition
        case Parallel() | Break():
            return
        case _:
            assert_never(stmt)


def _loads(stmt: Stmt) -> Iterator[Buffer]:
    for expr in expressions(stmt):
        for part in walk_expr(expr):
            if isinstance(part, Load):
                yield part.buffer


def _reads(stmt: Stmt) -> Iterator[Buffer]:
    if isinstance(stmt, TileOp):
        yield from _buffers(registry.get(stmt.name).effects(stmt).reads)
    elif isinstance(stmt, Store) and stmt.atomic is not None:
        yield stmt.buffer
    yield from _loads(stmt)
    for body in bodies(stmt):
        for nested in body:
            yield from reads(nested)


def _writes(stmt: Stmt) -> Iterator[Buffer]:
    if isinstance(stmt, TileOp):
        yield from _buffers(registry.get(stmt.name).effects(stmt).writes)
    elif isinstance(stmt, Store):
        yield stmt.buffer
    elif isinstance(stmt, Print):
        yield PRINTED
    for body in bodies(stmt):
        for nested in body:
            yield from writes(nested)


def _buffers(regions: tuple[Region, ...]) -> Iterator[Buffer]:
    for region in regions:
        yield region.buffer
