"""Which shared tiles may lie in the memory of the rings: those that begin to live when no ring does any more.

Once the last pipelined loop is over, nothing is prefetched, and what the rings took is free when the last tile in one
has been read: for the tiles through which results leave, for instance. A loop around both, as a persistent grid has,
fills the rings again, and its tiles have memory of their own; so has a tile that may be read before it is written,
which never takes over what lies there.
"""

from __future__ import annotations

from tilec.ir import tile
from tilec.ops.copy.cluster import Send
from tilec.ops.sync import is_ordering_statement
from tilec.passes.analysis.rings import find_accesses, find_pipelined_loops
from tilec.passes.analysis.usage import list_expressions
from tilec.passes.memory.prefetch import versions_of


def over_rings(kernel: tile.Kernel) -> frozenset[str]:
    """The names of these tiles. Lifetimes are counted in statements of the kernel's outermost list."""
    loops = [at for at, stmt in enumerate(kernel.body) if find_pipelined_loops((stmt,))]
    if not loops or any(map(_orders_more, tile.walk_statements(kernel.body))) or _stored_by_loops(kernel):
        return frozenset()
    tiles = {b.name for b in kernel.buffers if b.scope == "shared"}
    early = {name for stmt in kernel.body[: loops[-1] + 1] for name in find_accesses(stmt).all_names}
    filled = {
        name for loop in find_pipelined_loops(kernel.body) for stmt in loop.body for name in find_accesses(stmt).writes
    }
    # What the producer fetches for the statements behind the loops, it loads while they still run.
    prefetched = versions_of(kernel).keys()
    behind = kernel.body[loops[-1] + 1 :]
    reached = [at for at, stmt in enumerate(behind) if find_accesses(stmt).all_names & tiles & (filled | prefetched)]
    late = behind[reached[-1] + 1 :] if reached else behind
    ours = {name for stmt in late for name in find_accesses(stmt).all_names} - early - prefetched
    ours -= {name for stmt in behind[: len(behind) - len(late)] for name in find_accesses(stmt).all_names}
    return frozenset(name for name in tiles & ours if _first_use(name, late) is not False)


def _first_use(buffer: str, body: tuple[tile.Stmt, ...]) -> bool | None:
    """True: it is surely written before it is read; False: it may be read first; None: neither."""
    for stmt in body:
        match stmt:
            case tile.If(then=then, orelse=orelse):
                found = [False] if _decides(stmt, buffer) else [_first_use(buffer, branch) for branch in (then, orelse)]
                use = False if False in found else True if all(found) else None
            case tile.For(body=inner) | tile.While(body=inner):
                # It may make no iteration: what that writes, it writes for itself alone.
                use = False if _decides(stmt, buffer) or _first_use(buffer, inner) is False else None
            case _:
                touched = find_accesses(stmt)
                use = buffer not in touched.reads if buffer in touched.all_names else None
        if use is not None:
            return use
    return None


def _decides(stmt: tile.Stmt, buffer: str) -> bool:
    """Whether an element of the tile says which way a statement around others goes."""
    parts = (part for expr in list_expressions(stmt) for part in tile.walk_expr(expr))
    return any(isinstance(part, tile.Load) and part.buffer.name == buffer for part in parts)


def _stored_by_loops(kernel: tile.Kernel) -> bool:
    """Whether a role of its own may store what a loop left in a ring, at a time that the others do not know."""
    inside = (
        stmt
        for loop in find_pipelined_loops(kernel.body)
        for stmt in tile.walk_statements(loop.body)
        if isinstance(stmt, tile.TileOp)
    )
    return any([region.buffer.scope for region in op.regions] == ["shared", "global"] for op in inside)


def _orders_more(stmt: tile.Stmt) -> bool:
    """Whether somebody besides this block's loops may have the memory of a ring, or the text says who waits for whom:
    another block that sends a tile here, or tensor cores that read the rings for a role of their own."""
    if not isinstance(stmt, tile.TileOp):
        return False
    return is_ordering_statement(stmt) or isinstance(stmt, Send) or any(r.buffer.scope == "tmem" for r in stmt.regions)
