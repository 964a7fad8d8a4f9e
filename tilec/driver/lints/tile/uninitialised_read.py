"""uninitialised-read: tiles that are read and never given a value: a T.copy was forgotten, or a T.clear before T.gemm.

Whoever is unsure says nothing. A tile counts as set by whatever writes it without needing what it holds, wherever that
stands; a statement that only adds to it sets nothing. Under an `if`, and where a value is chosen, nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import TILE, warns
from tilec.driver.work import Work
from tilec.ir.tile import (
    Buffer,
    Expr,
    For,
    If,
    Load,
    Parallel,
    Select,
    Stmt,
    Store,
    TileOp,
    While,
    bodies,
    children,
    walk,
)
from tilec.passes.analysis.usage import reads, writes
from tilec.support.diagnostics import Diagnostic, Label, warning


@warns(TILE)
def unset(work: Work) -> Iterator[Diagnostic]:
    """A warning for each."""
    kernel = work.source_kernel
    tiles = {b: None for b in kernel.buffers if b.scope in ("shared", "fragment", "local")}
    first: dict[Buffer, Stmt] = {}
    for stmt in _leaves(kernel.body):
        for tile in reads(stmt):
            first.setdefault(tile, stmt)
        for tile in writes(stmt):
            if not _only_adds(stmt, tile):
                tiles.pop(tile, None)
    for tile in tiles:
        if tile in first:
            adds = tile in writes(first[tile])
            yield warning(
                "uninitialised-read",
                f"nothing gives {tile.name} a value",
                tile.span,
                "allocated here",
                secondary=(Label(first[tile].span, "adds to what it holds" if adds else "reads it"),),
                help=f"write T.clear({tile.name}) before" if adds else f"fill {tile.name} first, as by T.copy",
            )


def _leaves(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """The statements that have no others in them, and elementwise nests."""
    for stmt in body:
        if isinstance(stmt, For | If | While):
            for inner in bodies(stmt):
                yield from _leaves(inner)
        else:
            yield stmt


def _only_adds(stmt: Stmt, tile: Buffer) -> bool:
    """Whether what a statement writes to a tile is made of what was there."""
    match stmt:
        case TileOp(only_adds=only_adds):
            return bool(only_adds)
        case Parallel(body=body):
            if any(isinstance(s, If) for s in walk(body)):
                return False
            stores = [s for s in walk(body) if isinstance(s, Store) and s.buffer == tile]
            return bool(stores) and all(s.indices in _needed(s.value, tile) for s in stores)
        case _:
            return False


def _needed(value: Expr, tile: Buffer) -> list[tuple[Expr, ...]]:
    """The elements of the tile without which there is no value."""
    if isinstance(value, Select):
        return []
    here = [value.indices] if isinstance(value, Load) and value.buffer == tile else []
    return here + [i for child in children(value) for i in _needed(child, tile)]
