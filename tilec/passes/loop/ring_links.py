"""Signals between roles about a version of a ring's tiles within an iteration, where roles change it in place.

A ring passes each version from the role that fills it to all that use it, and back. That is enough while the tile stays
unchanged. Where one role changes it and another one uses it too, as with products of tiles that threads scale first,
each waits for the earlier statements of the other:

    T.copy(A, A_s)            the producer fills A_s
    A_s[i, j] *= …            the consumers change it, and signal
    T.gemm(A_s, B_s, C)       one thread waits for that signal, issues the product, and signals its completion
    A_s[i, j] *= …            the consumers wait for that signal, and change it again

Each such signal is a link: a ring without tiles, with as many versions as the ring that it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.ir.tile import Stmt
from tilec.passes.analysis.rings import Accesses, RingPlan, accesses
from tilec.passes.loop.assign_roles import LOADS, passing, user_of
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A signal about a version of `ring`: the role `sender` has done the statements `told`, and the role `receiver`
    waits for that before its `waiting_statements`."""

    ring: str
    teller: str
    hearer: str
    told: tuple[int, ...]
    awaiting: tuple[int, ...]


def begun(plan: RingPlan, roles: Sequence[str], statements: Sequence[Stmt]) -> tuple[int, ...]:
    """Return the statements that use a version before it is committed to the roles that read the ring. They are the
    statements that fill it, and those of the same role before the first statement of another role."""
    producer = passing(plan, roles, statements).filler
    users = sorted({*plan.producers, *plan.consumers})
    first = next((i for i in users if i not in plan.producers and user_of(roles[i]) != producer), len(statements))
    return tuple(i for i in users if i in plan.producers or i < first)


def read_before_handed_on(
    plan: RingPlan, roles: Sequence[str], statements: Sequence[Stmt]
) -> Iterator[tuple[int, int]]:
    """Yield the statements by which a producer reads a ring slot before it commits it, each with a later reader's.
    Though both only read, the second cannot begin before the first is done."""
    producer = passing(plan, roles, statements).filler
    if producer in (LOADS, "all"):
        return
    others = [j for j in plan.consumers if user_of(roles[j]) != producer]
    for read in begun(plan, roles, statements):
        if read not in plan.producers:
            yield from ((read, j) for j in others if read < j)


def links(ring: str, plan: RingPlan, roles: Sequence[str], statements: Sequence[Stmt]) -> tuple[Link, ...]:
    """Return the links in program order. Statements of one role that wait for the same ones of another share a link."""
    tiles = {b.name for b in plan.buffers}
    touched = [accesses(s) for s in statements]
    users = sorted({*plan.producers, *plan.consumers})
    before_commit = set(begun(plan, roles, statements))
    waiting: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for j in users:
        if j in plan.producers:
            continue
        receiver = user_of(roles[j])
        earlier = [i for i in users if i < j and i not in before_commit and user_of(roles[i]) != receiver]
        earlier = [i for i in earlier if _conflict(touched[i], touched[j], tiles)]
        for sender in dict.fromkeys(user_of(roles[i]) for i in earlier):
            sender_statements = tuple(i for i in earlier if user_of(roles[i]) == sender)
            waiting.setdefault((sender, receiver, sender_statements), []).append(j)
    return tuple(
        Link(ring, sender, receiver, sender_statements, tuple(waiting_statements))
        for (sender, receiver, sender_statements), waiting_statements in waiting.items()
    )


def _conflict(a: Accesses, b: Accesses, tiles: set[str]) -> bool:
    return bool(tiles & ((a.writes & b.all) | (a.all & b.writes)))
