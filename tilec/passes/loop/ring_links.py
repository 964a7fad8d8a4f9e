"""Signals between roles about a version of a ring's tiles within an iteration, where roles change it in place.

A ring passes each version from the role that fills it to all that use it, and back. That is enough while the tile stays
unchanged. Where one role changes it and another one uses it too, as with products of tiles that threads scale first,
each waits for the earlier statements of the other:

    T.copy(A, A_s)            the producer fills A_s
    A_s[i, j] *= …            the consumers change it, and signal
    T.gemm(A_s, B_s, C)       one thread waits for that signal, issues the product, and signals its completion
    A_s[i, j] *= …            the consumers wait for that signal, and change it again

Each such signal is a link: a ring without tiles, with as many versions as the ring that it is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.analysis.rings import RingPlan, find_accesses
from tilec.ir.tile import Stmt
from tilec.passes.loop.assign_roles import LOADING_THREAD, find_ring_roles, resolve_tile_owner
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class RingLink:
    """A signal about a version of `ring`: the role `sender` has done the statements `told`, and the role `receiver`
    waits for that before its `waiting_statements`."""

    ring: str
    sender: str
    receiver: str
    told: tuple[int, ...]
    waiting_statements: tuple[int, ...]


def find_statements_before_commit(plan: RingPlan, roles: Sequence[str], statements: Sequence[Stmt]) -> tuple[int, ...]:
    """Return the statements that use a ring's version before its producer commits it to the roles that read it. They
    are the statements that fill it, and those of the same role before the first statement of another role."""
    producer = find_ring_roles(plan, roles, statements).producer_role
    users = sorted({*plan.producers, *plan.consumers})
    first = next(
        (i for i in users if i not in plan.producers and resolve_tile_owner(roles[i]) != producer), len(statements)
    )
    return tuple(i for i in users if i in plan.producers or i < first)


def producer_reads_before_commit(
    plan: RingPlan, roles: Sequence[str], statements: Sequence[Stmt]
) -> Iterator[tuple[int, int]]:
    """Yield each statement by which a producer reads a ring slot before it commits it, with each later one of other
    roles. Though both only read, the second cannot begin before the first is done. There is none where all threads
    fill the ring."""
    producer = find_ring_roles(plan, roles, statements).producer_role
    if producer in (LOADING_THREAD, "all"):
        return
    others = [j for j in plan.consumers if resolve_tile_owner(roles[j]) != producer]
    for read in find_statements_before_commit(plan, roles, statements):
        if read not in plan.producers:
            yield from ((read, j) for j in others if read < j)


def find_ring_links(
    ring: str, plan: RingPlan, roles: Sequence[str], statements: Sequence[Stmt]
) -> tuple[RingLink, ...]:
    """Return the signals between roles that change a ring's tiles in place, in program order. Statements of one role
    that wait for the same ones of another share a link."""
    tiles = {b.name for b in plan.buffers}
    touched = [find_accesses(s) for s in statements]
    users = sorted({*plan.producers, *plan.consumers})
    before_commit = set(find_statements_before_commit(plan, roles, statements))
    waiting: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for j in users:
        if j in plan.producers:
            continue
        receiver = resolve_tile_owner(roles[j])
        earlier = [i for i in users if i < j and i not in before_commit and resolve_tile_owner(roles[i]) != receiver]
        later = touched[j]
        earlier = [
            i for i in earlier if tiles & (touched[i].writes & later.all_names | touched[i].all_names & later.writes)
        ]
        for sender in dict.fromkeys(resolve_tile_owner(roles[i]) for i in earlier):
            sender_statements = tuple(i for i in earlier if resolve_tile_owner(roles[i]) == sender)
            waiting.setdefault((sender, receiver, sender_statements), []).append(j)
    return tuple(
        RingLink(ring, sender, receiver, sender_statements, tuple(waiting_statements))
        for (sender, receiver, sender_statements), waiting_statements in waiting.items()
    )
