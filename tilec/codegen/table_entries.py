"""The entries of tables of addresses that operations use, so that a loop's are loaded before it."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir import tile, warp
from tilec.passes.layout.element_accesses import find_element_accesses

TableEntry = tuple[tile.Buffer, tuple[tile.Expr, ...]]


def find_table_entries(body: tuple[warp.Operation, ...]) -> Iterator[TableEntry]:
    """Yield a table and the indices of an entry for each access to a tensor of a table, of nested operations too."""
    for op in warp.walk_operations(body):
        for buffer, indices in _find_accesses(op):
            if buffer.table_rank:
                yield buffer, indices[: buffer.table_rank]


def _find_accesses(op: warp.Operation) -> Iterator[TableEntry]:
    """Yield each buffer that an asynchronous copy reads or a nest accesses, with the indices of an element."""
    match op:
        case warp.CpAsync(source=tile.Region(buffer=buffer, start=start)):
            yield buffer, start
        case warp.CpAsync(source=warp.Gather(buffer=buffer, indices=indices)):
            yield buffer, indices
        case warp.Elementwise(nest=nest):
            for _, access in find_element_accesses(nest.body):
                yield access.buffer, access.indices
        case _:
            return
