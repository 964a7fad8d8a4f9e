"""Order constraints of a pipelined loop's statements without a data dependence: of explicit synchronisation, and of the
tiles of one ring, which have one wait.

A barrier or fence separates the touches of memory that threads share. Within an iteration no statement crosses it; from
one iteration to the next only tiles with versions do. Waits and commits keep their order among asynchronous copies, and
a tile that is waited for is touched only behind the wait. What a barrier or wait itself waits for is what it reads
(`sema.awaits`).
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
    """`dst` issues after `src` of `distance` iterations before. `begun`: it is enough that `src` has issued."""

    src: int
    dst: int
    distance: int
    why: str
    begun: bool = False


def orders(statements: Sequence[Stmt], rings: Sequence[RingPlan]) -> Iterator[Order]:
    """Yield the constraints among `statements`, those that the schedule places, in program order."""
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
    """Return True if the kernel itself makes the copy asynchronous."""
    return isinstance(stmt, TileOp) and stmt.is_asynchronous


def _shared(stmt: Stmt, written: frozenset[str]) -> frozenset[str]:
    """Return what the statement touches that the loop writes and other threads may touch."""
    touched = () if is_explicit(stmt) else (*reads(stmt), *writes(stmt))
    return frozenset(b.name for b in touched if b.scope not in ("fragment", "reducer") and b.name in written)


def _parted(
    place: int, op: Explicit, statements: Sequence[Stmt], touched: Sequence[frozenset[str]], versioned: frozenset[str]
) -> Iterator[Order]:
    """Keep each statement that touches something on its side of the one at `place`."""
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
    """Keep touches of what is waited for behind the wait; those before it are ordered in the next iteration."""
    awaited = {region.buffer.name for region in op.regions}
    for other, stmt in enumerate(statements):
        used = set() if is_explicit(stmt) or other == place else accesses(stmt).all & awaited
        if used and (other > place or used - versioned):
            yield Order(place, other, int(other < place), f"order {spelled(op)}")
