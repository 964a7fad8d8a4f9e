"""uninitialised-read: tiles that are read but never written; a T.copy is missing, or a T.clear before T.gemm.

In doubt nothing is reported. A tile is initialised by any write that does not need its value, wherever that stands; a
statement that only adds to it does not count. Reads under an `if`, or in a select, are not analysed.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.analysis.usage import find_reads, find_writes
from tilec.driver.lints.registry import TILE, register_warning
from tilec.ir import tile
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, Label, make_warning


@register_warning(TILE)
def find_uninitialised_reads(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each tile that is read, or added to, but never written."""
    kernel = work.source_kernel
    tiles = {b: None for b in kernel.buffers if b.scope in ("shared", "fragment", "local")}
    first: dict[tile.Buffer, tile.Stmt] = {}
    for stmt in _list_leaves(kernel.body):
        for buffer in find_reads(stmt):
            first.setdefault(buffer, stmt)
        added = _find_only_added(stmt)
        for buffer in find_writes(stmt):
            if buffer not in added:
                tiles.pop(buffer, None)
    for buffer in tiles:
        if buffer in first:
            adds = buffer in find_writes(first[buffer])
            title, use = f"{buffer.name} is read but never written", "adds to it" if adds else "reads it"
            uses = (Label(first[buffer].span, use),)
            advice = f"write T.clear({buffer.name}) before" if adds else f"fill {buffer.name} first, as by T.copy"
            yield make_warning("uninitialised-read", title, buffer.span, "allocated here", secondary=uses, help=advice)


def _list_leaves(body: tuple[tile.Stmt, ...]) -> Iterator[tile.Stmt]:
    """Yield all statements except loops and ifs, whose bodies are entered; elementwise nests are yielded whole."""
    for stmt in body:
        if isinstance(stmt, tile.For | tile.If | tile.While):
            for inner in tile.nested_bodies(stmt):
                yield from _list_leaves(inner)
        else:
            yield stmt


def _find_only_added(stmt: tile.Stmt) -> frozenset[tile.Buffer]:
    """Return the buffers that a statement updates only from their old values; none for a nest with an if."""
    match stmt:
        case tile.TileOp(only_adds=only_adds):
            return frozenset(find_writes(stmt)) if only_adds else frozenset()
        case tile.Parallel(body=body):
            inner = tuple(tile.walk_statements(body))
            if any(isinstance(s, tile.If) for s in inner):
                return frozenset()
            stores = [s for s in inner if isinstance(s, tile.Store)]
            given = {s.buffer for s in stores if s.indices not in _find_needed_elements(s.value, s.buffer)}
            return frozenset(s.buffer for s in stores) - given
        case _:
            return frozenset()


def _find_needed_elements(value: tile.Expr, buffer: tile.Buffer) -> list[tuple[tile.Expr, ...]]:
    """Return the indices of the buffer's elements that the value needs always, not only in an arm of a select."""
    if isinstance(value, tile.Select):
        return []
    own = [value.indices] if isinstance(value, tile.Load) and value.buffer == buffer else []
    return own + [i for child in tile.direct_operands(value) for i in _find_needed_elements(child, buffer)]
