"""Which shared tiles may lie in the memory of the rings: those that begin to live when no ring does any more.

Once the last pipelined loop is over, nothing is loaded ahead, and what the rings took is free: for the tiles through
which results leave, for instance. A loop around both, as a persistent grid has, fills the rings again, and its tiles
have memory of their own.
"""

from __future__ import annotations

from tilec.ir.tile import Kernel, Stmt, TileOp, walk
from tilec.ops.sync import is_explicit
from tilec.passes.analysis.rings import accesses, pipelined_loops
from tilec.passes.pipelining.fetched import versions_of


def over_rings(kernel: Kernel) -> frozenset[str]:
    """The names of these tiles. Lifetimes are counted in statements of the kernel's outermost list."""
    loops = [at for at, stmt in enumerate(kernel.body) if pipelined_loops((stmt,))]
    if not loops or any(map(_orders_more, walk(kernel.body))) or _stored_by_loops(kernel):
        return frozenset()
    early = {name for stmt in kernel.body[: loops[-1] + 1] for name in accesses(stmt).all}
    late = {name for stmt in kernel.body[loops[-1] + 1 :] for name in accesses(stmt).all}
    tiles = {b.name for b in kernel.buffers if b.scope == "shared"}
    # What the producer fetches for the statements behind the loops, it loads while they still run.
    return frozenset((tiles & late) - early - versions_of(kernel).keys())


def _stored_by_loops(kernel: Kernel) -> bool:
    """Whether a role of its own may store what a loop left in a ring, at a time that the others do not know."""
    inside = (stmt for loop in pipelined_loops(kernel.body) for stmt in walk(loop.body) if isinstance(stmt, TileOp))
    return any([region.buffer.scope for region in op.regions] == ["shared", "global"] for op in inside)


def _orders_more(stmt: Stmt) -> bool:
    """Whether somebody besides this block's loops may have the memory of a ring, or the text says who waits for whom:
    another block that sends a tile here, or tensor cores that read the rings for a role of their own."""
    if not isinstance(stmt, TileOp):
        return False
    return is_explicit(stmt) or stmt.name == "send" or any(r.buffer.scope == "tmem" for r in stmt.regions)
