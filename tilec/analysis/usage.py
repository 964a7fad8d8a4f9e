"""Reads and writes of statements, as buffers, and of kernels, as the direction of each tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tilec.ir import tile
from tilec.ir.tile_nodes.walks import list_expressions as list_expressions
from tilec.ops import registry
from tilec.support.identity import cache_by_identity

Direction = Literal["in", "out", "inout"]

_CACHE_SIZE = 1 << 14
"""Statements whose buffers are cached: every pass asks for them again, and most statements stay as they are."""


def find_tensor_directions(kernel: tile.Kernel) -> dict[str, Direction]:
    """Return for each tensor parameter "in" if it is never written, "out" if it is never read, else "inout". An unused
    tensor is `in`."""
    body = kernel.body
    read = {b.name for stmt in body for b in find_reads(stmt)}
    written = {b.name for stmt in body for b in find_writes(stmt)}
    return {
        p.name: "in" if p.name not in written else "inout" if p.name in read else "out"
        for p in kernel.params
        if isinstance(p, tile.Buffer)
    }


@cache_by_identity(_CACHE_SIZE)
def find_reads(stmt: tile.Stmt) -> tuple[tile.Buffer, ...]:
    """Return every buffer that the statement, or one inside it, may read; each once, in program order."""
    return tuple(dict.fromkeys(_walk_reads(stmt)))


@cache_by_identity(_CACHE_SIZE)
def find_writes(stmt: tile.Stmt) -> tuple[tile.Buffer, ...]:
    """Return every buffer that the statement, or one inside it, may write; each once, in program order."""
    return tuple(dict.fromkeys(_walk_writes(stmt)))


def find_unread_tiles(kernel: tile.Kernel) -> frozenset[str]:
    """Return the names of the shared tiles and fragments that no statement reads."""
    read = {buffer for stmt in kernel.body for buffer in find_reads(stmt)}
    return frozenset(b.name for b in kernel.buffers if b.scope in ("shared", "fragment") and b not in read)


def _walk_reads(stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    """Yield every buffer that the statement, or one inside it, may read, in program order."""
    if isinstance(stmt, tile.TileOp):
        yield from (region.buffer for region in registry.get_operation(stmt.name).effects(stmt).reads)
    elif isinstance(stmt, tile.Store) and stmt.atomic is not None:
        yield stmt.buffer
    yield from (load.buffer for load in tile.walk_loads(stmt))
    for body in tile.nested_bodies(stmt):
        for nested in body:
            yield from find_reads(nested)


def _walk_writes(stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    """Yield every buffer that the statement, or one inside it, may write, in program order."""
    if isinstance(stmt, tile.TileOp):
        yield from (region.buffer for region in registry.get_operation(stmt.name).effects(stmt).writes)
    elif isinstance(stmt, tile.Store):
        yield stmt.buffer
    elif isinstance(stmt, tile.Print):
        yield tile.PRINT_OUTPUT
    for body in tile.nested_bodies(stmt):
        for nested in body:
            yield from find_writes(nested)
