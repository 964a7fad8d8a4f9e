"""Shared tiles that may reuse the memory of the rings: their lifetimes begin behind those of all rings.

Behind the last pipelined loop nothing is prefetched, and the memory of the rings is free once their last tile has been
read: for the tiles of staged stores, for instance. If a loop is around both, as in a persistent grid, it fills the
rings again, and such tiles need their own memory. So does a tile that may be read before it is written, which must not
take over other contents."""

from __future__ import annotations

from tilec.analysis.rings import find_accesses, find_pipelined_loops
from tilec.ir import tile
from tilec.ops.copies.copy_cluster import Send
from tilec.ops.synchronisation.sync import is_ordering_statement
from tilec.passes.memory.prefetch_tiles import count_prefetched_versions


def find_tiles_over_rings(kernel: tile.Kernel) -> frozenset[str]:
    """Return the names of shared tiles first used behind the last pipelined loop, which may lie over the rings.
    There are none if the kernel orders its threads itself, or stores tiles in such a loop. Lifetimes are counted in
    outermost statements of the kernel."""
    loops = [at for at, stmt in enumerate(kernel.body) if find_pipelined_loops((stmt,))]
    if not loops or any(map(is_ordered_elsewhere, tile.walk_statements(kernel.body))) or has_loop_stores(kernel):
        return frozenset()
    tiles = {b.name for b in kernel.buffers if b.scope == "shared"}
    early = {name for stmt in kernel.body[: loops[-1] + 1] for name in find_accesses(stmt).all_names}
    filled = {
        name for loop in find_pipelined_loops(kernel.body) for stmt in loop.body for name in find_accesses(stmt).writes
    }
    # The producer prefetches tiles for statements behind the loops while the loops still run.
    prefetched = count_prefetched_versions(kernel).keys()
    behind = kernel.body[loops[-1] + 1 :]
    reached = [at for at, stmt in enumerate(behind) if find_accesses(stmt).all_names & tiles & (filled | prefetched)]
    late = behind[reached[-1] + 1 :] if reached else behind
    ours = {name for stmt in late for name in find_accesses(stmt).all_names} - early - prefetched
    ours -= {name for stmt in behind[: len(behind) - len(late)] for name in find_accesses(stmt).all_names}
    return frozenset(name for name in tiles & ours if is_written_first(name, late) is not False)


def is_written_first(buffer: str, body: tuple[tile.Stmt, ...]) -> bool | None:
    """Return True if the tile is surely written before it is read, False if it may be read first, None if neither."""
    for stmt in body:
        match stmt:
            case tile.If(then=then, orelse=orelse):
                is_read = _is_read_by_condition(stmt, buffer)
                found = [False] if is_read else [is_written_first(buffer, branch) for branch in (then, orelse)]
                use = False if False in found else True if all(found) else None
            case tile.For(body=inner) | tile.While(body=inner):
                # The loop may have no iteration, so its writes do not count for later statements.
                is_read = _is_read_by_condition(stmt, buffer) or is_written_first(buffer, inner) is False
                use = False if is_read else None
            case _:
                touched = find_accesses(stmt)
                use = buffer not in touched.reads if buffer in touched.all_names else None
        if use is not None:
            return use
    return None


def _is_read_by_condition(stmt: tile.Stmt, buffer: str) -> bool:
    """Return whether a bound or condition of the statement reads the tile."""
    return any(load.buffer.name == buffer for load in tile.walk_loads(stmt))


def has_loop_stores(kernel: tile.Kernel) -> bool:
    """Return whether a pipelined loop has a copy from a shared tile to a tensor, which a store role may run late."""
    inside = (stmt for loop in find_pipelined_loops(kernel.body) for stmt in tile.walk_statements(loop.body))
    operations = (stmt for stmt in inside if isinstance(stmt, tile.TileOp))
    return any([region.buffer.scope for region in op.regions] == ["shared", "global"] for op in operations)


def is_ordered_elsewhere(stmt: tile.Stmt) -> bool:
    """Return whether an operation is a barrier or wait, a send to another block, or accesses tensor memory."""
    if not isinstance(stmt, tile.TileOp):
        return False
    return is_ordering_statement(stmt) or isinstance(stmt, Send) or any(r.buffer.scope == "tmem" for r in stmt.regions)
