"""uninitialised-read: tiles that are read and never given a value: a T.copy was forgotten, or a T.clear before T.gemm.

Whoever is unsure says nothing. A tile counts as set by whatever writes it without needing what it holds, wherever that
stands; a statement that only adds to it sets nothing. Under an `if`, and where a value is chosen, nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import TILE, warns
from tilec.driver.work import Work
from tilec.ir import tile
from tilec.passes.analysis.usage import find_reads, find_writes
from tilec.support.diagnostics import Diagnostic, Label, make_warning


@warns(TILE)
def uninitialised_reads(work: Work) -> Iterator[Diagnostic]:
    """A warning for each."""
    kernel = work.source_kernel
    tiles = {b: None for b in kernel.buffers if b.scope in ("shared", "fragment", "local")}
    first: dict[tile.Buffer, tile.Stmt] = {}
    for stmt in _leaves(kernel.body):
        for buffer in find_reads(stmt):
            first.setdefault(buffer, stmt)
        added = _added_to(stmt)
        for buffer in find_writes(stmt):
            if buffer not in added:
                tiles.pop(buffer, None)
    for buffer in tiles:
        if buffer in first:
            adds = buffer in find_writes(first[buffer])
            yield make_warning(
                "uninitialised-read",
                f"nothing gives {buffer.name} a value",
                buffer.span,
                "allocated here",
                secondary=(Label(first[buffer].span, "adds to what it holds" if adds else "reads it"),),
                help=f"write T.clear({buffer.name}) before" if adds else f"fill {buffer.name} first, as by T.copy",
            )


def _leaves(body: tuple[tile.Stmt, ...]) -> Iterator[tile.Stmt]:
    """The statements that have no others in them, and elementwise nests."""
    for stmt in body:
        if isinstance(stmt, tile.For | tile.If | tile.While):
            for inner in tile.nested_bodies(stmt):
                yield from _leaves(inner)
        else:
            yield stmt


def _added_to(stmt: tile.Stmt) -> frozenset[tile.Buffer]:
    """Return the buffers to which a statement writes only what is made of what was there."""
    match stmt:
        case tile.TileOp(only_adds=only_adds):
            return frozenset(find_writes(stmt)) if only_adds else frozenset()
        case tile.Parallel(body=body):
            inner = tuple(tile.walk_statements(body))
            if any(isinstance(s, tile.If) for s in inner):
                return frozenset()
            stores = [s for s in inner if isinstance(s, tile.Store)]
            given = {s.buffer for s in stores if s.indices not in _needed(s.value, s.buffer)}
            return frozenset(s.buffer for s in stores) - given
        case _:
            return frozenset()


def _needed(value: tile.Expr, buffer: tile.Buffer) -> list[tuple[tile.Expr, ...]]:
    """The elements of the tile without which there is no value."""
    if isinstance(value, tile.Select):
        return []
    here = [value.indices] if isinstance(value, tile.Load) and value.buffer == buffer else []
    return here + [i for child in tile.direct_operands(value) for i in _needed(child, buffer)]
