"""Loads and stores of single elements of tiles and tensors, as nests and the expressions of other statements have them.
Regions of operations are not among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilec.ir import tile


def find_loads(body: Iterable[tile.Stmt]) -> Iterator[tile.Load]:
    """Yield the loads in the statements and in all inside them, also those in indices."""
    return (access for _, access in find_element_accesses(body) if isinstance(access, tile.Load))


def find_element_accesses(body: Iterable[tile.Stmt]) -> Iterator[tuple[tile.Stmt, tile.Store | tile.Load]]:
    """Yield each element store or load in the statements with its own statement; a store before its loads."""
    for stmt in tile.walk_statements(tuple(body)):
        if isinstance(stmt, tile.Store):
            yield stmt, stmt
        yield from ((stmt, load) for load in tile.walk_loads(stmt))
