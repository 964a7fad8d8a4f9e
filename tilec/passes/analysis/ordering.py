"""The order that a pipelined loop's statements keep without handing anything over: that of explicit synchronisation,
and of the tiles of one ring, which are waited for together.

A barrier or a fence parts what touches memory that threads share. Within an iteration everything keeps to its side of
it; from one iteration to the next only what has no versions does, since versions of other iterations are other memory.
Waits and commits keep their places among the asynchronous copies, and what is waited for is touched only behind the
wait. What a barrier or a wait has itself to wait for is what it reads (`sema.awaits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.ir.tile import Stmt, TileOp, walk
from tilec.ops.sync import BARRIERS, CommitCopies, Explicit, is_explicit, is_rendezvous, spelled
from tilec.passes.analysis.rings import RingPlan, accesses
from tilec.passes.analysis.usage import reads, writes
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """`dst` issues after `src`, of so many iterations before; `begun`: it is enough that `src` has issued."""

    src: int
    dst: int
    distance: int
    why: str
    begun: bool = False


def orders(statements: Sequence[Stmt], rings: Sequence[RingPlan]) -> Iterator[Order]:
    """`statements` are those that the schedule places, in the order of the text."""
    for ring in rings:
        name = "+".join(b.name for b in ring.buffers)
        for producer in ring.producers:
            yield from (Order(producer, c, 0, f"data {name}") for c in ring.consumers if producer < c)
    explicit = [(i, op) for i, stmt in enumerate(statements) for op in walk((stmt,)) if is_explicit(op)]
    versioned = frozenset(b.name for ring in rings for b in ring.buffers)
    written = frozenset(b.name for stmt in statements for b in writes(stmt)) if explicit else frozenset()
    for place, op in explicit:
        if is_rendezvous(op):
            yield Order(place, place + 1, 0, f"order {spelled(op)}")
            continue
        for other, later in explicit:
            if place < other and not is_rendezvous(later):
                yield Order(place, other, 0, f"order {spelled(op)}")
        if isinstance(op, BARRIERS):
            yield from _parted(place, op, statements, [_shared(stmt, written) for stmt in statements], versioned)
        elif isinstance(op, CommitCopies):
            copies = [frozenset(accesses(s).writes if is_asynchronous_copy(s) else ()) for s in statements]
            yield from _parted(place, op, statements, copies, frozenset().union(*copies))
        else:
            yield from _behind(place, op, statements, versioned)


def is_asynchronous_copy(stmt: Stmt) -> bool:
    """Whether it is one by the kernel's own word."""
    return isinstance(stmt, TileOp) and stmt.is_asynchronous


def _shared(stmt: Stmt, written: frozenset[str]) -> frozenset[str]:
    """What the statement touches that other threads may touch too, and that the loop writes."""
    touched = () if is_explicit(stmt) else (*reads(stmt), *writes(stmt))
    return frozenset(b.name for b in touched if b.scope not in ("fragment", "reducer") and b.name in written)


def _parted(
    place: int, op: Explicit, statements: Sequence[Stmt], touched: Sequence[frozenset[str]], versioned: frozenset[str]
) -> Iterator[Order]:
    """All that touches something stays on its side of the statement at `place`."""
    why = f"order {spelled(op)}"
    for other, names in enumerate(touched):
        if not names or other == place:
            continue
        begun = is_asynchronous_copy(statements[other])
        if other < place or names - versioned:
            yield Order(other, place, int(other > place), why, begun)
        if other > place or names - versioned:
            yield Order(place, other, int(other < place), why)


def _behind(place: int, op: Explicit, statements: Sequence[Stmt], versioned: frozenset[str]) -> Iterator[Order]:
    """What is waited for is touched only after the wait; so it is in the next iteration, by what stands before it."""
    awaited = {region.buffer.name for region in op.regions}
    for other, stmt in enumerate(statements):
        used = set() if is_explicit(stmt) or other == place else accesses(stmt).all & awaited
        if used and (other > place or used - versioned):
            yield Order(place, other, int(other < place), f"order {spelled(op)}")
