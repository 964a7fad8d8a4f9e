"""Order constraints of a pipelined loop's statements without a data dependence: of explicit synchronisation, and of the
tiles of one ring, which have one wait.

A barrier or fence separates the touches of memory that threads share. Within an iteration no statement crosses it; from
one iteration to the next only tiles with versions do. Waits and commits keep their order among asynchronous copies, and
a tile that is waited for is touched only behind the wait. What a barrier or wait itself waits for is what it reads
(`sema.roles.awaits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.analysis.rings import RingPlan, find_accesses
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir.tile import Parallel, Stmt, TileOp, walk_statements
from tilec.ops.synchronisation.sync import (
    BARRIERS,
    CommitCopies,
    OrderingStatement,
    get_spelling,
    is_ordering_statement,
    is_sync_list_wait,
)
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class OrderConstraint:
    """`dst` issues after `src` of `distance` iterations before. `begun`: it is enough that `src` has issued."""

    src: int
    dst: int
    distance: int
    why: str
    begun: bool = False


def find_order_constraints(statements: Sequence[Stmt], rings: Sequence[RingPlan]) -> Iterator[OrderConstraint]:
    """Yield order constraints of a loop's statements from rings, barriers, waits and commits, beyond data
    dependences."""
    for ring in rings:
        name = "+".join(b.name for b in ring.buffers)
        for producer in ring.producers:
            yield from (OrderConstraint(producer, c, 0, f"data {name}") for c in ring.consumers if producer < c)
    explicit = [
        (i, op) for i, stmt in enumerate(statements) for op in walk_statements((stmt,)) if is_ordering_statement(op)
    ]
    versioned = frozenset(b.name for ring in rings for b in ring.buffers)
    written = frozenset(b.name for stmt in statements for b in find_writes(stmt)) if explicit else frozenset()
    for place, op in explicit:
        if is_sync_list_wait(op):
            yield OrderConstraint(place, place + 1, 0, f"order {get_spelling(op)}")
            continue
        for other, later in explicit:
            if place < other and not is_sync_list_wait(later):
                yield OrderConstraint(place, other, 0, f"order {get_spelling(op)}")
        if isinstance(op, BARRIERS):
            yield from _order_around(
                place, op, statements, [_find_shared_names(stmt, written) for stmt in statements], versioned
            )
        elif isinstance(op, CommitCopies):
            copies = [frozenset(find_accesses(s).writes if is_asynchronous_copy(s) else ()) for s in statements]
            yield from _order_around(place, op, statements, copies, frozenset().union(*copies))
        else:
            yield from _order_behind(place, op, statements, versioned)


def is_asynchronous_copy(stmt: Stmt) -> bool:
    """Return True if the kernel's author marked an operation as asynchronous, or it copies by single threads."""
    return is_thread_copy(stmt) or (isinstance(stmt, TileOp) and stmt.is_asynchronous)


def is_thread_copy(stmt: Stmt) -> bool:
    """Return True if the statement is the nest of a T.ptx_cp_async: each thread copies elements of its own."""
    return isinstance(stmt, Parallel) and stmt.asynchronous and stmt.is_per_thread


def _find_shared_names(stmt: Stmt, written: frozenset[str]) -> frozenset[str]:
    """Return the names in `written` that a statement touches in memory shared by threads; none for barriers or
    waits."""
    touched = () if is_ordering_statement(stmt) else (*find_reads(stmt), *find_writes(stmt))
    return frozenset(b.name for b in touched if b.scope not in ("fragment", "reducer") and b.name in written)


def _order_around(
    place: int,
    op: OrderingStatement,
    statements: Sequence[Stmt],
    touched: Sequence[frozenset[str]],
    versioned: frozenset[str],
) -> Iterator[OrderConstraint]:
    """Yield constraints that keep each statement with touched names on its side of the barrier or commit at `place`."""
    why = f"order {get_spelling(op)}"
    for other, names in enumerate(touched):
        if not names or other == place:
            continue
        begun = is_asynchronous_copy(statements[other])
        if other < place or names - versioned:
            yield OrderConstraint(other, place, int(other > place), why, begun)
        if other > place or names - versioned:
            yield OrderConstraint(place, other, int(other < place), why)


def _order_behind(
    place: int, op: OrderingStatement, statements: Sequence[Stmt], versioned: frozenset[str]
) -> Iterator[OrderConstraint]:
    """Yield constraints that keep touches of the buffers that the wait at `place` awaits behind that wait."""
    awaited = {region.buffer.name for region in op.regions}
    for other, stmt in enumerate(statements):
        used = set() if is_ordering_statement(stmt) or other == place else find_accesses(stmt).all_names & awaited
        if used and (other > place or used - versioned):
            yield OrderConstraint(place, other, int(other < place), f"order {get_spelling(op)}")
